"""Models load the same from any path, never in half precision on a CPU, and fail in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velox_eval.blas import BlasStatus
from velox_eval.engine import models
from velox_eval.engine.model_identity import content_sha256
from velox_eval.engine.models import find_model, load_model
from velox_eval.errors import ModelError
from velox_eval.mlx import mx

FAST = BlasStatus("custom", "/a/fast/blas.so", None, "as a test says")
SLOW = BlasStatus("none", None, None, "as a test says")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(folder))
    return folder


@pytest.fixture
def copy_of_tiny(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A model directory to damage."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "copy"))


def rewrite_weights(folder: Path, change: Callable[[mx.array], mx.array]) -> None:
    weights: Any = mx.load(str(folder / "model.safetensors"))
    weights = {name: change(array) for name, array in weights.items()}
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def dtypes_of(model: Any) -> set[str]:
    """Types of every array in the model, private ones included."""
    found = {str(v.dtype) for _, m in model.named_modules() for v in m.values() if isinstance(v, mx.array)}
    return {name.removeprefix("mlx.core.") for name in found}


def quantise(folder: Path, bits: int, scales: mx.Dtype) -> None:
    """Rewrite a directory as mlx-lm's own quantisation would, with scales of type `scales`."""
    from mlx.utils import tree_flatten
    from mlx_lm import utils

    model, config = utils.load_model(folder)
    model.set_dtype(scales)
    model, config = utils.quantize_model(model, config, group_size=32, bits=bits)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))


def test_a_directory_loads_with_what_is_known_about_it(tiny_model_dir: Path) -> None:
    loaded = load_model(str(tiny_model_dir))
    assert loaded.name == str(tiny_model_dir)
    assert loaded.path == tiny_model_dir
    assert loaded.context_length == 4096
    assert loaded.n_layers == 2
    assert loaded.dtype == "float32"
    assert loaded.load_seconds > 0
    assert len(loaded.content_sha256) == 64
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("any bytes: é漢")) == "any bytes: é漢"
    assert loaded.model(mx.array([[1, 2, 3]])).shape == (1, 3, 300)


def test_paths_with_spaces_home_and_relative(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home of a user"
    shutil.copytree(tiny_model_dir, home / "my models" / "tiny one")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    target = home / "my models" / "tiny one"
    for name in (str(target), "~/my models/tiny one", "my models/tiny one", "./my models/tiny one/"):
        assert find_model(name) == target, name
    monkeypatch.chdir(home / "my models")
    assert find_model("tiny one") == target
    assert load_model("tiny one").n_layers == 2


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_dense_half_precision_becomes_float32_on_a_cpu(copy_of_tiny: Path, dtype: mx.Dtype) -> None:
    rewrite_weights(copy_of_tiny, lambda array: array.astype(dtype))
    loaded = load_model(str(copy_of_tiny))
    if loaded.device == "gpu":
        pytest.skip("a GPU keeps weights as stored")
    assert loaded.route == "dense float32"
    assert loaded.dtype == "float32"
    assert dtypes_of(loaded.model) == {"float32"}
    assert loaded.model(mx.array([[1, 2]])).dtype == mx.float32


@pytest.mark.parametrize(("bits", "scales"), [(4, mx.float16), (8, mx.bfloat16)])
def test_quantised_routes_agree_and_hold_no_half_precision(
    copy_of_tiny: Path, monkeypatch: pytest.MonkeyPatch, bits: int, scales: mx.Dtype
) -> None:
    quantise(copy_of_tiny, bits, scales)
    monkeypatch.setattr(models, "load_fast_blas", lambda: SLOW)
    quantised = load_model(str(copy_of_tiny))
    if quantised.device == "gpu":
        pytest.skip("a GPU keeps weights as stored")
    monkeypatch.setattr(models, "load_fast_blas", lambda: FAST)
    dense = load_model(str(copy_of_tiny))
    assert quantised.route == "quantised, float32 scales"
    assert dtypes_of(quantised.model) == {"float32", "uint32"}
    assert dense.route == "dense float32"
    assert dtypes_of(dense.model) == {"float32"}
    assert dense.content_sha256 == quantised.content_sha256
    tokens = mx.array([[3, 100, 42, 7]])
    assert mx.allclose(dense.model(tokens), quantised.model(tokens), atol=1e-4)


def test_weights_too_large_for_the_memory_stay_quantised(copy_of_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantise(copy_of_tiny, 4, mx.float32)
    monkeypatch.setattr(models, "load_fast_blas", lambda: FAST)
    monkeypatch.setattr(models, "free_memory", lambda: 10_000)
    loaded = load_model(str(copy_of_tiny))
    assert loaded.route in ("quantised, float32 scales", "as stored")


def test_identity_is_content_not_place(tiny_model_dir: Path, copy_of_tiny: Path) -> None:
    original = content_sha256(tiny_model_dir)
    assert content_sha256(copy_of_tiny) == original
    (copy_of_tiny / "README.md").write_text("notes do not change a model")
    assert content_sha256(copy_of_tiny) == original
    rewrite_weights(copy_of_tiny, lambda array: array * 1.001)
    changed = content_sha256(copy_of_tiny)
    assert changed != original
    tokenizer = copy_of_tiny / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text().replace("assistant:", "bot:"))
    assert content_sha256(copy_of_tiny) not in (original, changed)


def test_identity_survives_a_lost_or_broken_hash_cache(tiny_model_dir: Path, cache: Path) -> None:
    original = content_sha256(tiny_model_dir)
    remembered = json.loads((cache / "hashes.json").read_text())
    assert str(tiny_model_dir / "model.safetensors") in remembered
    for broken in ("", "[]", '{"half": '):
        (cache / "hashes.json").write_text(broken)
        assert content_sha256(tiny_model_dir) == original


def hub_cache(root: Path, source: Path) -> Path:
    """`source` as the repository org/tiny in a hub cache: weights under their sha256, small files under a git hash."""
    import hashlib

    repository = root / "models--org--tiny"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    for file in source.iterdir():
        data = file.read_bytes()
        sha = hashlib.sha256(data) if file.suffix == ".safetensors" else hashlib.sha1(data)
        (repository / "blobs" / sha.hexdigest()).write_bytes(data)
        (snapshot / file.name).symlink_to(Path("../../blobs") / sha.hexdigest())
    return snapshot


def in_a_process(code: str, **environment: str) -> str:
    """What `code` prints in a fresh interpreter (the hub client reads its settings when imported)."""
    base = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=base | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


REPORT = """
import socket, sys
def refuse(*arguments, **options):
    raise OSError(101, "Network is unreachable")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from velox_eval.engine.models import load_model
from velox_eval.errors import ModelError
try:
    loaded = load_model("org/tiny")
    print(loaded.path, loaded.content_sha256, loaded.n_layers)
except ModelError as error:
    print("ModelError:", error)
"""


@pytest.mark.parametrize("offline", ["1", "0"])
def test_a_cached_hub_model_loads_without_network(tiny_model_dir: Path, tmp_path: Path, offline: str) -> None:
    snapshot = hub_cache(tmp_path / "hub", tiny_model_dir)
    printed = in_a_process(REPORT, HF_HUB_CACHE=str(tmp_path / "hub"), HF_HUB_OFFLINE=offline)
    assert printed == f"{snapshot} {content_sha256(tiny_model_dir)} 2"


@pytest.mark.parametrize(("offline", "said"), [("1", "HF_HUB_OFFLINE is set"), ("0", "hub cannot be reached")])
def test_an_uncached_hub_model_without_network_is_one_quick_line(tmp_path: Path, offline: str, said: str) -> None:
    started = time.monotonic()
    printed = in_a_process(REPORT, HF_HUB_CACHE=str(tmp_path / "hub"), HF_HUB_OFFLINE=offline)
    assert time.monotonic() - started < 15
    assert printed.startswith("ModelError: model 'org/tiny' is not in the local hub cache")
    assert said in printed
    assert "\n" not in printed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm2-13m", "did you mean 'smollm2-135m'"),
        ("./nowhere/at all", "no model directory './nowhere/at all'"),
        ("/no/such/model", "no model directory '/no/such/model'"),
        ("~/no such", "no model directory '~/no such'"),
        ("absent.gguf", "no file 'absent.gguf'; absent.gguf is a GGUF"),
        ("org/a..b", "no valid hub id"),
        (" ", "no model named"),
    ],
)
def test_names_that_lead_nowhere(name: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        find_model(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gguf_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "model.Q4_K_M.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"is a GGUF and --model takes a directory.*velox-eval models convert"):
        load_model(str(path))
    with pytest.raises(ModelError, match=r"has no config.json; model.Q4_K_M.gguf is a GGUF"):
        load_model(str(tmp_path))
    (tmp_path / "notes.txt").write_text("a file")
    with pytest.raises(ModelError, match="is a file: --model takes a directory"):
        load_model(str(tmp_path / "notes.txt"))


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        merged = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))

    return change


def _index(folder: Path) -> None:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), "has no config.json"),
    "config cut": (lambda d: _cut(d / "config.json"), "config.json is not valid JSON"),
    "config a list": (lambda d: (d / "config.json").write_text("[]"), "names no model_type"),
    "no model type": (_config(model_type=None), "names no model_type"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "has no model*.safetensors"),
    "torch weights": (
        lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        "only pytorch_model.bin): convert it with `mlx_lm.convert`",
    ),
    "weights cut": (lambda d: _cut(d / "model.safetensors"), "where its header promises"),
    "weights empty": (lambda d: (d / "model.safetensors").write_bytes(b""), "is no whole safetensors file (0 bytes)"),
    "LFS pointer": (
        lambda d: (d / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "git lfs pull",
    ),
    "shard missing": (_index, "lacks model-00001-of-00002.safetensors (1 of 2 files)"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer"),
    "tokenizer broken": (lambda d: (d / "tokenizer.json").write_text('{"version": '), "tokenizer cannot be loaded"),
    "unknown architecture": (_config(model_type="perceiver9"), "perceiver9 not supported"),
    "needs own code": (_config(model_file="own.py"), "own.py"),
    "other shapes": (_config(hidden_size=64), "mlx-lm cannot load this model"),
    "more layers": (_config(num_hidden_layers=3), "mlx-lm cannot load this model"),
    "size missing": (_config(hidden_size=None), "mlx-lm cannot load this model"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_directories_are_one_line(copy_of_tiny: Path, fault: str) -> None:
    damage, said = FAULTS[fault]
    damage(copy_of_tiny)
    with pytest.raises(ModelError) as caught:
        load_model(str(copy_of_tiny))
    assert said in str(caught.value)
    assert str(copy_of_tiny) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_context_length_is_found_in_nested_parts(copy_of_tiny: Path) -> None:
    _config(max_position_embeddings=None, text_config={"max_position_embeddings": 1234})(copy_of_tiny)
    assert load_model(str(copy_of_tiny)).context_length == 1234
    _config(text_config=None)(copy_of_tiny)
    assert load_model(str(copy_of_tiny)).context_length is None


@pytest.mark.model
def test_the_default_model_is_what_it_says(real_model: Any) -> None:
    assert real_model.name == "smollm2-135m"
    assert real_model.n_layers == 30
    assert real_model.context_length == 8192
    assert real_model.dtype == "float32"
    assert dtypes_of(real_model.model) <= {"float32", "uint32"}
