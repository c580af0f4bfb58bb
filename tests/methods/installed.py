"""The installed package's caches, VeloxQuant-MLX 0.94.15: the oracle of the adapted rules."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .matrix import Case
from .streams import Array

CLASSES = {
    "tova": "TOVAKVCache",
    "morphkv": "MorphKVKVCache",
    "kvzip": "KVzipKVCache",
    "h2o": "H2OKVCache",
    "keyformer": "KeyformerKVCache",
    "streaming_llm": "StreamingLLMKVCache",
    "knorm": "L2NormKVCache",
    "chunkkv": "ChunkKVCache",
}
# What the package calls the positions it holds; else _positions.
POSITIONS = {
    "tova": "_bh_positions",
    "h2o": "_bh_positions",
    "keyformer": "_bh_positions",
    "streaming_llm": "_kept_positions",
    "chunkkv": "_bh_positions",
}
BY_CALL = ("knorm", "qfilters")  # evict once a call, however many rows it brings: fed row by row


def installed_cache(case: Case, dim: int) -> Any:
    """The package's cache for the same rule and settings."""
    from veloxquant_mlx import KVCacheConfig

    name = case.installed
    assert name is not None
    module = importlib.import_module(f"veloxquant_mlx.cache.{name}_cache")
    named = {f"{name}_{key}": value for key, value in {**case.params, "budget": case.budget}.items()}
    if name == "streaming_llm":
        named = {"stream_n_sink": case.sinks, "stream_window_size": case.budget - case.sinks}
    config = KVCacheConfig(method=name, head_dim=dim, **named)
    return getattr(module, CLASSES[name])(config)


def installed_positions(case: Case, cache: Any, shape: tuple[int, int]) -> Array:
    """Positions it holds [*shape, n], ascending."""
    positions = np.array(getattr(cache, POSITIONS.get(str(case.installed), "_positions")))
    if case.installed == "chunkkv":  # a buffer with free places behind
        positions = positions[:, : int(cache._bh_lengths[0])]
    if case.installed == "streaming_llm":  # the same for every head
        positions = np.repeat(positions[:, None], shape[1], axis=1)
    return np.sort(positions.reshape(*shape, -1), axis=-1)
