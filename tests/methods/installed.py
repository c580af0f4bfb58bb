"""The installed package's caches, VeloxQuant-MLX 0.94.15: the oracle of the adapted rules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from velox_eval.mlx import mx

from .matrix import Case
from .streams import Array, Stream

CLASSES = {
    "tova": "TOVAKVCache",
    "morphkv": "MorphKVKVCache",
    "kvzip": "KVzipKVCache",
    "h2o": "H2OKVCache",
    "keyformer": "KeyformerKVCache",
    "streaming_llm": "StreamingLLMKVCache",
    "knorm": "L2NormKVCache",
    "qfilters": "QFiltersKVCache",
    "chunkkv": "ChunkKVCache",
    "snapkv": "SnapKVKVCache",
    "pyramidkv": "PyramidKVCache",
    "squeeze": "SqueezeAttentionCache",
    "cam": "CaMKVCache",
}
# What the package calls the positions it holds; else _positions.
POSITIONS = {
    "tova": "_bh_positions",
    "h2o": "_bh_positions",
    "keyformer": "_bh_positions",
    "streaming_llm": "_kept_positions",
    "chunkkv": "_bh_positions",
}
PREFIXES = {"snapkv": "snap", "pyramidkv": "pyramid"}  # of its settings, where not the method's name
BY_CHUNK = ("snapkv",)  # one rule for a whole chunk of a prompt, not row by row
# Where it holds the keys that tell the positions: it says nothing of them, or (cam) means those of merged rows.
KEYS: dict[str, Callable[[Any], mx.array]] = {
    "cam": lambda cache: cache._bh_keys,
    "snapkv": lambda cache: cache.keys[:, :, : cache._row_offset],
    "pyramidkv": lambda cache: mx.stack([state.keys for state in cache._states]),
    "squeeze": lambda cache: cache._bh_keys,
}
BY_CALL = ("knorm", "qfilters")  # evict once a call, however many rows it brings: fed row by row


def installed_cache(case: Case, dim: int) -> Any:
    """The package's cache for the same rule and settings."""
    from veloxquant_mlx import KVCacheConfig

    name = case.installed
    assert name is not None
    module = importlib.import_module(f"veloxquant_mlx.cache.{name}_cache")
    prefix = PREFIXES.get(name, name)
    named = {f"{prefix}_{key}": value for key, value in {**case.params, "budget": case.budget}.items()}
    if name == "streaming_llm":
        named = {"stream_n_sink": case.sinks, "stream_window_size": case.budget - case.sinks}
    if name == "pyramidkv":
        schedule = importlib.import_module("veloxquant_mlx.quantizers.pyramidkv").pyramid_budgets
        shares = schedule(case.layer.count, case.budget, case.sinks, case.params["beta"])
        named["pyramid_resolved_budget"] = shares[case.layer.index]
    if name == "cam":
        named["seed"] = named.pop("cam_seed", 0)
    if name == "qfilters":
        named["qfilters_on_low_retention"] = "ignore"  # it warns, and keeps the same rows
    config = KVCacheConfig(method=name, head_dim=dim, **named)
    return getattr(module, CLASSES[name])(config)


def installed_positions(case: Case, cache: Any, data: Stream) -> Array:
    """Positions it holds [B, H, n] of what it was fed of `data`, ascending."""
    shape = data.keys.shape[:2]
    if case.installed in KEYS:
        held = KEYS[case.installed](cache).astype(mx.float32)
        return positions_of(np.array(held).reshape(*shape, -1, data.keys.shape[-1]), data)
    positions = np.array(getattr(cache, POSITIONS.get(str(case.installed), "_positions")))
    if case.installed == "chunkkv":  # a buffer with free places behind
        positions = positions[:, : int(cache._bh_lengths[0])]
    if case.installed == "streaming_llm":  # the same for every head
        positions = np.repeat(positions[:, None], shape[1], axis=1)
    return np.sort(positions.reshape(*shape, -1), axis=-1)


def positions_of(keys: Array, data: Stream) -> Array:
    """Where in the stream the keys [B, H, n, D] are; ascending."""
    same = (keys[:, :, :, None] == data.keys[:, :, None]).all(axis=-1)
    assert same.any(axis=-1).all()
    return np.sort(same.argmax(axis=-1), axis=-1)
