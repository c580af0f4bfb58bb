"""Key and value streams for cache tests, and what a cache kept of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from velox_eval.caches.base import EvictionCache
from velox_eval.methods import resolve
from velox_eval.mlx import mx

Array = np.ndarray[Any, Any]


def stream(seed: int, batch: int, heads: int, tokens: int, dim: int, scale: float = 2.0) -> tuple[Array, Array]:
    """Keys and values [B, H, T, D], float32 that float16 holds exactly."""
    rng = np.random.default_rng(seed)
    shape = (batch, heads, tokens, dim)
    keys, values = (rng.normal(size=shape) * scale).astype(np.float16), rng.normal(size=shape).astype(np.float16)
    return keys.astype(np.float32), values.astype(np.float32)


def new_cache(method: str, params: Any, budget: int | None, block: int | None = None) -> EvictionCache:
    """A cache for one layer under a method."""
    chosen = resolve(method, params, budget=budget)
    return EvictionCache(chosen.variant.policy(chosen.params), chosen.budget, evict_block=block)


def feed(cache: Any, keys: Array, values: Array, chunks: list[int]) -> list[tuple[Array, Array]]:
    """Feeds the stream in chunks; returns what each step handed to attention."""
    fed, seen = 0, []
    for chunk in chunks:
        part = slice(fed, fed + chunk)
        got = cache.update_and_fetch(mx.array(keys[:, :, part]), mx.array(values[:, :, part]))
        seen.append((np.array(got[0]), np.array(got[1])))
        fed += chunk
    return seen


def kept(cache: EvictionCache) -> Array:
    """Positions held [B, H, n], ascending; every head of a sequence holds the same number."""
    positions = np.array(cache.kept_positions())
    counts = (positions >= 0).sum(axis=-1)
    assert (counts == counts.flat[0]).all()
    return np.sort(np.where(positions < 0, np.iinfo(np.int32).max, positions), axis=-1)[..., : counts.flat[0]]
