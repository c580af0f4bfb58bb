"""Finding and loading a language model: a known name, a local directory or a hub id."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from velox_eval.blas import BlasStatus, load_fast_blas
from velox_eval.engine.memory import free_memory
from velox_eval.engine.model_identity import content_sha256
from velox_eval.engine.model_store import KNOWN_MODELS, fetch_model
from velox_eval.engine.safetensors_check import check_safetensors
from velox_eval.errors import ModelError, unknown_name
from velox_eval.mlx import mx

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module
    from mlx_lm.tokenizer_utils import TokenizerWrapper

__all__ = ["KNOWN_MODELS", "LoadedModel", "fetch_model", "load_model"]

Route = Literal["as stored", "dense float32", "quantised, float32 scales"]

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "model_max_length", "n_positions", "max_seq_len")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
# What mlx-lm and transformers raise for a directory they cannot make a model or tokenizer of.
_LOAD_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ImportError, OSError, RuntimeError)
_MEMORY_SHARE = 0.7  # of the free memory, for dense weights: the caches need the rest


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what is known about it.

    `content_sha256` identifies weights, configuration and tokenizer by content; `route` says how the weights are
    held here; `dtype` is the type activations have; `context_length` is None where the configuration names none.
    """

    model: Module
    tokenizer: TokenizerWrapper
    name: str
    path: Path
    content_sha256: str
    context_length: int | None
    device: Literal["gpu", "cpu"]
    route: Route
    dtype: str
    n_layers: int
    load_seconds: float


def load_model(name: str) -> LoadedModel:
    """The model `name` (known name, mlx-lm directory or hub id), loaded for this machine's device.

    On a GPU weights stay as stored. On a CPU nothing is float16 or bfloat16: with a fast BLAS weights are made
    dense float32, without one quantised weights stay, with float32 scales. ModelError says in one line what is
    missing and what to do. Code that a model directory brings along is never run.
    """
    started = time.perf_counter()
    blas = load_fast_blas()
    path = find_model(name)
    config = check_directory(path)
    model, tokenizer = _load(path)
    device: Literal["gpu", "cpu"] = "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"
    route: Route = "as stored" if device == "gpu" else _settle_on_cpu(model, blas)
    try:
        mx.eval(model.parameters())
    except RuntimeError as error:
        raise ModelError(f"{path}: the weights cannot be read ({_one_line(error)})") from error
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        path=path,
        content_sha256=content_sha256(path),
        context_length=context_length(config),
        device=device,
        route=route,
        dtype=_activation_dtype(model),
        n_layers=len(model.layers),
        load_seconds=time.perf_counter() - started,
    )


def find_model(name: str) -> Path:
    """The directory of the model `name`, fetched or downloaded if need be; ModelError if there is none."""
    if name in KNOWN_MODELS:
        return fetch_model(name)
    if not name.strip():
        raise ModelError(f"no model named: give a known model ({_known()}), a directory or a hub id (org/name)")
    path = Path(name).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.is_file() or name.lower().endswith(".gguf"):
        raise ModelError(_not_a_directory(name, path))
    if _HUB_ID.fullmatch(name):
        return _from_hub(name)
    if len(path.parts) > 1 or name.startswith((".", "~")):
        raise ModelError(f"no model directory {name!r}: check the path, or name a known model ({_known()})")
    raise ModelError(f"{unknown_name('model', name, KNOWN_MODELS)}; a directory or a hub id (org/name) works too")


def check_name(name: str) -> None:
    """Raises ModelError for a name that is neither known, nor a model's directory, nor shaped like a hub id.

    Loads and fetches nothing.
    """
    if name not in KNOWN_MODELS and (Path(name).expanduser().exists() or not _HUB_ID.fullmatch(name)):
        check_directory(find_model(name))


def check_directory(path: Path) -> dict[str, Any]:
    """The configuration of the model directory `path`, after its parts were found whole; ModelError names the fault."""
    config_path = path / "config.json"
    if not config_path.is_file():
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"; {_gguf_advice(ggufs[0])}" if ggufs else ": it is no directory in MLX or Hugging Face format"
        raise ModelError(f"{path} has no config.json{hint}")
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{config_path} is not valid JSON ({_one_line(error)}): fetch the model again") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ModelError(f"{config_path} names no model_type: it is not a language model's configuration")
    weights = sorted(path.glob("model*.safetensors"))
    if not weights:
        others = sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".npz"))
        hint = f" (only {others[0]}): convert it with `mlx_lm.convert`" if others else ": fetch the weights"
        raise ModelError(f"{path} has no model*.safetensors{hint}")
    _check_shards(path)
    for file in weights:
        check_safetensors(file)
    if not any(any(path.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise ModelError(f"{path} has no tokenizer ({', '.join(_TOKENIZER_FILES)}): copy the model's own there")
    return config


def _check_shards(path: Path) -> None:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a readable list of weights: fetch the model again") from error
    if missing := sorted(shard for shard in shards if not (path / shard).is_file()):
        raise ModelError(f"{path} lacks {missing[0]} ({len(missing)} of {len(shards)} files): fetch the model again")


def _load(path: Path) -> tuple[Module, TokenizerWrapper]:
    """Model (weights still lazy) and tokenizer of a checked directory."""
    from mlx_lm import utils as mlx_lm_loading

    try:
        model, config = mlx_lm_loading.load_model(path, lazy=True)
    except _LOAD_ERRORS as error:
        raise ModelError(f"{path}: mlx-lm cannot load this model ({_one_line(error)})") from error
    try:
        tokenizer = mlx_lm_loading.load_tokenizer(
            path, {"trust_remote_code": False}, eos_token_ids=config.get("eos_token_id")
        )
    except _LOAD_ERRORS as error:
        raise ModelError(f"{path}: the tokenizer cannot be loaded ({_one_line(error)})") from error
    return model, tokenizer


def _from_hub(name: str) -> Path:
    """The snapshot of a hub repository, from the local cache when it is whole there, else downloaded."""
    from huggingface_hub import constants, errors, snapshot_download
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

    # Which HTTP library the hub client uses, and so whose errors pass through, depends on the client's version.
    transport_error = errors.HTTPError  # type: ignore[attr-defined]
    elsewhere = f"give a local directory (there is no directory {name!r} here)"
    try:
        return Path(snapshot_download(name, allow_patterns=DEFAULT_ALLOW_PATTERNS))
    except errors.GatedRepoError as error:
        raise ModelError(
            f"model {name!r} is gated on the hub: accept its terms there and run `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"no model {name!r} on the hub, or it is private: check the spelling, run `hf auth login`, or {elsewhere}"
        ) from error
    except errors.HFValidationError as error:
        raise ModelError(f"{name!r} is no valid hub id ({_one_line(error)})") from error
    except (OSError, transport_error) as error:
        if constants.is_offline_mode():
            raise ModelError(
                f"model {name!r} is not in the local hub cache and HF_HUB_OFFLINE is set: unset it to download, "
                f"or {elsewhere}"
            ) from error
        raise ModelError(
            f"model {name!r} is not in the local hub cache and the hub cannot be reached "
            f"({_root_cause(error)}): check the network (HF_HUB_OFFLINE=1 skips the tries), or {elsewhere}"
        ) from error


def _settle_on_cpu(model: Module, blas: BlasStatus) -> Route:
    """Make all floating values float32, and weights dense where a fast BLAS makes that pay."""
    from mlx_lm.utils import dequantize_model

    quantised = [module for _, module in model.named_modules() if "scales" in module]
    _to_float32(model)
    if not quantised:
        return "dense float32"
    exact = all("global_scale" not in module for module in quantised)  # dequantize_model leaves that factor out
    if blas.fast and exact and _dense_fits(model):
        dequantize_model(model)
        _to_float32(model)
        if not any("scales" in module for _, module in model.named_modules()):
            return "dense float32"
    return "quantised, float32 scales"


def _to_float32(model: Module) -> None:
    """Cast every half-precision array of every module, private ones (rotary frequencies) included."""
    for _, module in model.named_modules():
        for key, value in module.items():
            if isinstance(value, mx.array) and value.dtype in (mx.float16, mx.bfloat16):
                module[key] = value.astype(mx.float32)


def _dense_fits(model: Module) -> bool:
    """Whether float32 copies of all weights leave room in the free memory."""
    from mlx_lm.utils import get_total_parameters

    free = free_memory()
    return free is None or 4 * get_total_parameters(model) < _MEMORY_SHARE * free


def _activation_dtype(model: Module) -> str:
    """The commonest floating type among the parameters, by bytes; mlx computes in it."""
    from mlx.utils import tree_flatten

    sizes: dict[str, int] = {}
    arrays: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    for _, value in arrays:
        if mx.issubdtype(value.dtype, mx.floating):
            kind = str(value.dtype).removeprefix("mlx.core.")
            sizes[kind] = sizes.get(kind, 0) + value.nbytes
    return max(sizes, key=lambda kind: sizes[kind])


def context_length(config: dict[str, Any]) -> int | None:
    """Positions the model was made for, from the configuration or its nested text part."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(part, dict):
            for key in _CONTEXT_KEYS:
                if isinstance(part.get(key), int):
                    return int(part[key])
    return None


def _known() -> str:
    return ", ".join(sorted(KNOWN_MODELS))


def _not_a_directory(name: str, path: Path) -> str:
    if name.lower().endswith(".gguf"):
        return _gguf_advice(path) if path.is_file() else f"no file {name!r}; {_gguf_advice(path)}"
    return f"{name!r} is a file: --model takes a directory in MLX or Hugging Face format"


def _gguf_advice(path: Path) -> str:
    return (
        f"{path.name} is a GGUF and --model takes a directory in MLX or Hugging Face format: use that form of the "
        f"model, or `velox-eval models convert {path.name} DIRECTORY` if it is a llama"
    )


def _root_cause(error: BaseException) -> str:
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
