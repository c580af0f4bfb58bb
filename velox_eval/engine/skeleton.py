"""A model's skeleton: built by mlx-lm from the configuration alone, its weights never made, read or evaluated.

Enough to know what caches will hold. Nothing is downloaded, and code that a model brings along is never run.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from velox_eval.blas import load_fast_blas
from velox_eval.engine.model_store import KNOWN_MODELS
from velox_eval.engine.models import context_length, fetch_model
from velox_eval.errors import ModelError, unknown_name
from velox_eval.mlx import mx
from velox_eval.mlx_lm import load_config, model_classes

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module

Device = Literal["gpu", "cpu"]

# What building a model from a configuration that lacks something raises, in mlx-lm's model files.
_BUILD_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError, IndexError)
_FLOATING = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SCALE_BYTES = 2  # of a scale or bias of a quantised group
_HEADER_LIMIT = 100_000_000  # bytes; longer is no header


@dataclass(frozen=True)
class Skeleton:
    """A model without its weights.

    `dtype`: what caches hold on `device`. `weights_bytes`: what the weights take there; `weights_source` says in words
    where that is from. `encode` turns text into tokens, None where no tokenizer is at hand. `assumed`: what the
    configuration does not say.
    """

    model: Module
    name: str
    device: Device
    dtype: str
    weights_bytes: int
    weights_source: str
    parameters: int
    context_length: int | None
    encode: Callable[[str], list[int]] | None
    assumed: tuple[str, ...]


def build_skeleton(name: str, device: Device | None = None) -> Skeleton:
    """Returns the skeleton of a known model, a directory with a config.json (or that file), or a hub id at hand.

    `device`: where it would run (default: this machine's). ModelError when there is no configuration here, or mlx-lm
    cannot make a model of it.
    """
    load_fast_blas()
    folder = find_configuration(name)
    where: Device = device or ("gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu")
    try:
        config = load_config(folder)
    except (ValueError, OSError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read as JSON ({_one_line(error)})") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ModelError(f"{folder / 'config.json'} names no model_type: it is not a language model's configuration")
    if config.get("model_file"):
        raise ModelError(f"{name!r} brings its own code ({config['model_file']}), which is never run")
    try:
        kind, arguments = model_classes(config)
        model = kind(arguments.from_dict(config))
    except _BUILD_ERRORS as error:
        raise ModelError(f"{folder}: mlx-lm cannot make a model of this configuration ({_one_line(error)})") from error
    files = sorted(folder.glob("model*.safetensors"))
    dtype, assumed = _cache_dtype(config, files, where)
    model.set_dtype(getattr(mx, dtype))
    stored, source = _stored_bytes(model, config, files, dtype)
    held, said = _held_bytes(model, config, stored, where)
    return Skeleton(
        model=model,
        name=name,
        device=where,
        dtype=dtype,
        weights_bytes=held,
        weights_source=f"{said}, {source}" if said else source,
        parameters=_parameters(model),
        context_length=context_length(config),
        encode=_encoder(folder),
        assumed=assumed,
    )


def find_configuration(name: str) -> Path:
    """Returns the folder of the model's config.json, without the network. ModelError if there is none here."""
    if name in KNOWN_MODELS:
        return fetch_model(name)
    path = Path(name).expanduser()
    if path.name == "config.json" and path.is_file():
        return path.parent.absolute()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json: it is no directory in MLX or Hugging Face format")
        return path.absolute()
    if name.count("/") == 1 and not name.startswith((".", "~", "/")):
        from huggingface_hub import errors, try_to_load_from_cache

        try:
            found = try_to_load_from_cache(name, "config.json")
        except errors.HFValidationError as error:
            raise ModelError(f"{name!r} is no valid hub id ({_one_line(error)})") from error
        if isinstance(found, str):
            return Path(found).parent
        raise ModelError(
            f"no configuration of {name!r} in the local hub cache, and nothing is downloaded for a plan: save its "
            "config.json and give that file, or run the model once"
        )
    raise ModelError(f"{unknown_name('model', name, KNOWN_MODELS)}; a directory or a config.json works too")


def _cache_dtype(config: dict[str, Any], files: list[Path], device: Device) -> tuple[str, tuple[str, ...]]:
    """The type of keys and values: float32 on a CPU, else the weights' commonest, else the configuration's."""
    if device == "cpu":
        return "float32", ()
    sizes: dict[str, int] = {}
    for file in files:
        for entry in _header(file).values():
            kind = _FLOATING.get(str(entry.get("dtype")))
            if kind is not None:
                start, end = entry["data_offsets"]
                sizes[kind] = sizes.get(kind, 0) + end - start
    if sizes:
        return max(sizes, key=lambda kind: sizes[kind]), ()
    for part in (config, config.get("text_config"), config.get("llm_config")):
        for key in ("torch_dtype", "dtype"):
            if isinstance(part, dict) and part.get(key) in _FLOATING.values():
                return str(part[key]), ()
    return "bfloat16", ("the configuration names no type of numbers: bfloat16 is assumed",)


def _header(file: Path) -> dict[str, Any]:
    """The entries of a safetensors file by name; no weights are read. ModelError for another file."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > _HEADER_LIMIT:
                raise ValueError("its header is too long")
            entries = json.loads(opened.read(length))
        entries.pop("__metadata__", None)
    except (OSError, ValueError, struct.error, AttributeError) as error:
        raise ModelError(f"{file} is no whole safetensors file ({_one_line(error)}): fetch the model again") from error
    return dict(entries)


def _stored_bytes(model: Module, config: dict[str, Any], files: list[Path], dtype: str) -> tuple[int, str]:
    """Bytes of the weights as stored, and where that is from: the files, else the configuration."""
    if files:
        return sum(file.stat().st_size for file in files), "from the weight files"
    quantised = config.get("quantization")
    total = 0
    for path, module in model.named_modules():
        own = [value for value in module.values() if isinstance(value, mx.array)]
        count = sum(value.size for value in own)
        if isinstance(quantised, dict) and hasattr(module, "to_quantized") and quantised.get(path) is not False:
            setting = {**quantised, **(quantised[path] if isinstance(quantised.get(path), dict) else {})}
            weight = module["weight"].size
            groups = weight // int(setting["group_size"])
            total += weight * int(setting["bits"]) // 8 + 2 * groups * _SCALE_BYTES
            count -= weight
        total += count * getattr(mx, dtype).size
    return total, "worked out from the configuration"


def _held_bytes(model: Module, config: dict[str, Any], stored: int, device: Device) -> tuple[int, str]:
    """Bytes of the weights as they are held on the device, and that in words; on a CPU they are made float32."""
    if device == "gpu":
        return stored, "as stored"
    if config.get("quantization") and not load_fast_blas().fast:
        return stored, "quantised (no fast BLAS here)"
    return 4 * _parameters(model), "dense float32"


def _parameters(model: Module) -> int:
    from mlx.utils import tree_flatten

    leaves: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return sum(int(value.size) for _, value in leaves)


def _encoder(folder: Path) -> Callable[[str], list[int]] | None:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read ({_one_line(error)}): fetch the model again") from error
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
