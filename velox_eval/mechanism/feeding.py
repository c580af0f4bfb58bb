"""Feeds streams to one layer's cache under a method, without a model, and says what it kept.

Streams go along the batch axis. Rows come one at a time, as while decoding; methods that cut once, at the prompt's
end, get the stream as one prompt. Methods that rank by queries are shown the stream's own, as the attention tap does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from velox_eval.caches.base import EvictionCache
from velox_eval.caches.rewind import rewound
from velox_eval.mechanism.regimes import DIM, SINKS, Array, Streams
from velox_eval.methods import MethodConfig
from velox_eval.methods.kvzip import KVzipPaper, passes
from velox_eval.methods.policy import Directions, Layer, Policy
from velox_eval.mlx import mx

SCALE = DIM**-0.5
WHOLE = 16  # streams at a time where the whole stream is held: attention over all pairs of rows takes memory
FLUSH = 16  # rows between evaluations, to keep the graph short


@dataclass(frozen=True)
class Kept:
    """What a method held at the end of S streams: n rows each, ascending by position."""

    protected: int  # newest rows kept whatever they are worth
    positions: Array  # int [S, n]
    keys: Array  # float32 [S, n, DIM]
    values: Array  # float32 [S, n, DIM], merged ones as they are


def keep(method: MethodConfig, data: Streams, block: int | None = 1) -> Kept:
    """Returns what the method keeps of each stream.

    `block`: rows that are evicted together; 1: row by row; None: the whole stream as one chunk.
    """
    one = policy_for(method, data)
    size = WHOLE if block != 1 or cuts_once(one) else len(data.seeds)
    places = np.arange(len(data.seeds))
    parts = [
        _keep(method, data.select(places[start : start + size]), block, _protected(one, method))
        for start in range(0, len(data.seeds), size)
    ]
    arrays = zip(*((part.positions, part.keys, part.values) for part in parts), strict=True)
    return Kept(_protected(one, method), *(np.concatenate(array) for array in arrays))


def policy_for(method: MethodConfig, data: Streams, seed: int = 0) -> Policy:
    """Returns the method's policy for one layer that is all there is; its directions are those of `data`."""
    directions: Directions | None = None
    if method.variant.needs_directions:
        measured = mx.array(main_directions(data.queries))[:, None]
        directions = lambda _heads, _dim: measured  # noqa: E731
    policy: Policy = method.variant.policy(method.params, Layer(seed=seed, directions=directions))
    return policy


def cuts_once(policy: Policy) -> bool:
    """Returns whether the method chooses at the end of a prompt alone, so that it must see the stream as one."""
    return policy.holds_prompt or policy.grows


def main_directions(queries: Array) -> Array:
    """Returns [S, DIM] float32: the first right-singular vector of each stream's queries, on their mean's side.

    As `velox_eval.engine.calibration` measures a model's.
    """
    rows = queries.astype(np.float64)
    axes = np.linalg.eigh(rows.swapaxes(1, 2) @ rows)[1][..., -1]
    sides = np.where((axes * rows.sum(axis=1)).sum(axis=-1, keepdims=True) < 0, -1.0, 1.0)
    turned: Array = (axes * sides).astype(np.float32)
    return turned


def _protected(policy: Policy, method: MethodConfig) -> int:
    assert method.budget is not None
    ratio = float(policy.params.get("recent_ratio", 0.0))
    return max(policy.protected_recent, int(ratio * method.budget + 1e-9))


def _keep(method: MethodConfig, data: Streams, block: int | None, protected: int) -> Kept:
    policy = policy_for(method, data)
    keys, values, queries = (mx.array(array)[:, None] for array in (data.keys, data.values, data.queries))
    drawing = bool(policy.initial_state())
    in_blocks = None if block == 1 or cuts_once(policy) else block
    made = [
        EvictionCache(policy_for(method, data, seed), method.budget, evict_block=in_blocks)
        for seed in (data.seeds if drawing else data.seeds[:1])
    ]
    if block != 1 or cuts_once(policy):
        cache = _joined(made, keys, values, queries) if drawing else made[0]
        _feed(cache, cache.tokens_seen[0], data.length, keys, values, queries)
        _finish(cache, keys, values, queries)
    else:
        cache = _joined(made, keys, values, queries)
        for row in range(cache.tokens_seen[0], data.length):
            _feed(cache, row, row + 1, keys, values, queries)
            if row % FLUSH == 0:
                mx.eval(cache.state)
    return _kept(cache, protected)


def _joined(caches: list[EvictionCache], *rows: mx.array) -> EvictionCache:
    """One cache for all streams. Rules that draw by lot have one lot a seed: their caches begin alone."""
    if len(caches) == 1:
        return caches[0]
    for at, cache in enumerate(caches):
        _feed(cache, 0, 1, *(array[at : at + 1] for array in rows))
    return EvictionCache.stack(caches)


def _feed(cache: EvictionCache, start: int, end: int, keys: mx.array, values: mx.array, queries: mx.array) -> None:
    cache.update_and_fetch(keys[:, :, start:end], values[:, :, start:end])
    if cache.awaits_queries:
        cache.attended(queries[:, :, start:end], SCALE)


def _finish(cache: EvictionCache, keys: mx.array, values: mx.array, queries: mx.array) -> None:
    """Ends the prompt. In place of a model that repeats its context, kvzip:paper gets the stream's rows once more."""
    policy, length = cache.policy, keys.shape[2]
    if isinstance(policy, KVzipPaper):
        shared = policy.layer.shared
        shared["context"] = (SINKS, length)
        for now in passes(SINKS, length, int(policy.params["chunk"]), length):
            shared["pass"] = now
            with rewound(cache, length):
                _feed(cache, now.start, now.end, keys, values, queries)
            del shared["pass"]
    cache.finish_prompt()


def _kept(cache: EvictionCache, protected: int) -> Kept:
    slots = cache.slots
    assert slots is not None
    positions = np.array(cache.kept_positions())[:, 0]
    order = np.argsort(np.where(positions < 0, np.iinfo(np.int32).max, positions), axis=-1, kind="stable")
    order = order[:, : cache.rows[0]]
    rows = [np.array(array.astype(mx.float32))[:, 0] for array in (slots.keys, slots.values)]
    return Kept(
        protected,
        np.take_along_axis(positions, order, axis=1),
        *(np.take_along_axis(array, order[..., None], axis=1) for array in rows),
    )
