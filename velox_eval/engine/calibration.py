"""Calibration: the direction of a model's queries, measured once on text and kept in the user's cache directory.

A calibration belongs to a model's content and to a text: it lies under the model's hash, named "bundled" for the
text that comes with the package, else by the text's own hash, so a name never stands for two texts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from velox_eval.caches.attention import Lent
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.session import layer_kinds
from velox_eval.engine.model_store import CACHE_VARIABLE, cache_directory
from velox_eval.engine.models import LoadedModel
from velox_eval.errors import ConfigError, MethodError, ModelError
from velox_eval.methods import MethodConfig
from velox_eval.methods.full import Full
from velox_eval.methods.policy import Directions
from velox_eval.mlx import mx

BUNDLED = "bundled"
BUNDLED_SHA256 = "aec2aabbf0a7e66f4639e73633c090efb981d32afe1c9d22426b3e33cdd14569"  # of tasks/calibration
WINDOW = 2048  # tokens of a sequence, as the authors take
MAX_WINDOWS = 20
MIN_TOKENS = 512
CHUNK = 256


@dataclass(frozen=True)
class Calibration:
    """Directions of one model's queries: for each evicting layer [H, D] float32, one a KV head."""

    name: str
    tokens: int  # the text's tokens that were used
    path: Path
    directions: tuple[mx.array, ...]

    def of_layer(self, index: int) -> Directions:
        """Returns the evicting layer's directions as its policy asks for them."""
        directions = self.directions[index]

        def matching(heads: int, dim: int) -> mx.array:
            if directions.shape != (heads, dim):
                raise MethodError(f"{self.path} has directions {directions.shape} for keys of {heads} heads x {dim}")
            return directions

        return matching


class _QueryMoments(EvictionCache):
    """A cache that keeps everything and adds up what the tap shows it: sums and second moments of the queries."""

    def __init__(self) -> None:
        super().__init__(Full({}), None)
        self.second: mx.array | float = 0.0  # [H_q, D, D]
        self.first: mx.array | float = 0.0  # [H_q, D]

    def attended(self, queries: mx.array, scale: float, lent: Lent | None = None) -> None:
        """Adds the queries [1, H_q, S, D]."""
        rows = queries[0].astype(mx.float32)
        self.second = self.second + rows.swapaxes(-1, -2) @ rows
        self.first = self.first + rows.sum(axis=1)


def text_name(text: str) -> str:
    """Returns the name a text's calibration has."""
    digest = text_sha256(text)
    return BUNDLED if digest == BUNDLED_SHA256 else digest[:12]


def text_sha256(text: str) -> str:
    """Returns the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def calibrate(loaded: LoadedModel, text: str) -> Calibration:
    """Returns the directions of the model's queries over the text, after writing them to the cache directory.

    Per query head the first right-singular vector of all its queries as attention uses them, not centred, turned
    so that the mean query lies on its positive side; the mean over the query heads that share a KV head. At most
    MAX_WINDOWS sequences of WINDOW tokens are used. Raises ConfigError for too short a text, MethodError for a
    model whose attention cannot be tapped, ModelError when the cache directory cannot be written.
    """
    tokens = list(loaded.tokenizer.encode(text))
    size = min(WINDOW, loaded.context_length or WINDOW)
    windows = [tokens[start : start + size] for start in range(0, len(tokens), size)][:MAX_WINDOWS]
    used = sum(len(window) for window in windows)
    if used < MIN_TOKENS:
        raise ConfigError(f"the text has {used} tokens; give at least {MIN_TOKENS} to measure directions on")
    moments = [_moments(loaded, window) for window in windows]
    directions = []
    for layer, caches in enumerate(zip(*moments, strict=True)):
        if any(isinstance(cache.first, float) for cache in caches):
            raise MethodError(
                f"the attention of layer {layer} of this model ({type(loaded.model).__module__}) cannot be tapped, "
                "so its queries cannot be measured"
            )
        second = np.sum([np.array(cache.second, np.float64) for cache in caches], axis=0)
        first = np.sum([np.array(cache.first, np.float64) for cache in caches], axis=0)
        assert caches[0].slots is not None
        directions.append(mx.array(main_directions(second, first, caches[0].slots.keys.shape[1])))
    calibration = Calibration(text_name(text), used, _path(loaded, text_name(text)), tuple(directions))
    _write(calibration, {"text_sha256": text_sha256(text), "model_sha256": loaded.content_sha256})
    return calibration


def _moments(loaded: LoadedModel, tokens: Sequence[int]) -> list[_QueryMoments]:
    caches, layers = layer_kinds(loaded.model)
    measured = [_QueryMoments() for _ in layers]
    for layer, cache in zip(layers, measured, strict=True):
        caches[layer] = cache
    with attention_tap(loaded.model):
        for start in range(0, len(tokens), CHUNK):
            loaded.model(mx.array([list(tokens[start : start + CHUNK])]), cache=caches)
            mx.eval([cache.state for cache in caches], [(cache.first, cache.second) for cache in measured])
            mx.clear_cache()
    return measured


def main_directions(second: NDArray[np.float64], first: NDArray[np.float64], kv_heads: int) -> NDArray[np.float32]:
    """Returns [kv_heads, D] float32 from the second moments [H_q, D, D] and sums [H_q, D] of queries."""
    axes = np.linalg.eigh(second)[1][..., -1]  # of Q^T Q: the right-singular vectors of Q, largest last
    axes *= np.where((axes * first).sum(axis=-1, keepdims=True) < 0, -1.0, 1.0)
    means: NDArray[np.float32] = axes.reshape(kv_heads, -1, axes.shape[-1]).mean(axis=1).astype(np.float32)
    return means


def find_directions(loaded: LoadedModel, method: MethodConfig) -> list[Directions] | None:
    """Returns each evicting layer's directions for a method that needs them, None for others.

    Raises ConfigError naming the command when this model was not calibrated on that text.
    """
    if not method.variant.needs_directions:
        return None
    name = str(method.params["calibration"])
    path = _path(loaded, name)
    command = f"velox-eval calibrate {loaded.name}" + ("" if name == BUNDLED else " --text FILE")
    if not path.is_file():
        raise ConfigError(f"{method.label} needs directions of this model (calibration={name}): run `{command}`")
    try:
        stored: tuple[dict[str, mx.array], dict[str, str]] = mx.load(str(path), return_metadata=True)  # type: ignore[assignment]
        arrays, metadata = stored
        tokens, digest = int(metadata["tokens"]), metadata["text_sha256"]
        directions = tuple(arrays[str(index)] for index in range(len(arrays)))
    except (RuntimeError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is no calibration: run `{command}` again") from error
    if name == BUNDLED and digest != BUNDLED_SHA256:
        raise ConfigError(f"{path} was measured on another version of the bundled text: run `{command}` again")
    calibration = Calibration(name, tokens, path, directions)
    return [calibration.of_layer(index) for index in range(len(directions))]


def _path(loaded: LoadedModel, name: str) -> Path:
    return cache_directory() / "calibration" / loaded.content_sha256[:16] / f"{name}.safetensors"


def _write(calibration: Calibration, origin: dict[str, str]) -> None:
    """Writes the file whole or not at all."""
    path = calibration.path
    arrays = {str(index): array for index, array in enumerate(calibration.directions)}
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".tmp-", suffix=".safetensors", dir=path.parent)
        os.close(handle)
        mx.save_safetensors(part, arrays, {"tokens": str(calibration.tokens), **origin})
        os.replace(part, path)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise ModelError(
            f"cannot write {path} ({error}): free or open its folder, or set {CACHE_VARIABLE} to another"
        ) from error
