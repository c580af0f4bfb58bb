"""Streams of keys, values and queries for cache tests, and what a cache kept of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.nn as nn
import numpy as np

from velox_eval.caches.base import EvictionCache
from velox_eval.caches.rewind import rewound
from velox_eval.methods import MethodConfig, resolve
from velox_eval.methods.kvzip import KVzipPaper, passes
from velox_eval.methods.policy import Layer
from velox_eval.mlx import mx

Array = np.ndarray[Any, Any]

GROUP = 2  # query heads per KV head
QUESTION = 2  # last tokens of a prompt that are no context, see end_prompt
ROTATED = nn.RoPE(2)  # stands for a decoder layer, to methods that turn keys to other positions


def tilted(heads: int, dim: int) -> mx.array:
    """Directions [heads, dim], each another: what a calibration might have found."""
    return mx.cos(mx.arange(heads)[:, None] * 2.0 + mx.arange(dim) * 3.0)


@dataclass(frozen=True)
class Stream:
    """What one layer's attention produces over T tokens; float32 that float16 holds exactly."""

    keys: Array  # [B, H, T, D]
    values: Array  # [B, H, T, D]
    queries: Array  # [B, H * GROUP, T, D]

    def part(self, start: int, end: int) -> Stream:
        """Tokens start to end."""
        return Stream(*(array[:, :, start:end] for array in (self.keys, self.values, self.queries)))

    def backwards(self) -> Stream:
        """The last token first."""
        # A copy: of one token, ascontiguousarray would leave the view and its negative stride as they are.
        return Stream(*(array[:, :, ::-1].copy() for array in (self.keys, self.values, self.queries)))

    def one(self, sequence: int) -> Stream:
        """One sequence, still with a batch axis."""
        one = slice(sequence, sequence + 1)
        return Stream(self.keys[one], self.values[one], self.queries[one])


def stream(seed: int, batch: int, heads: int, tokens: int, dim: int, scale: float = 2.0) -> Stream:
    """A random stream."""
    rng = np.random.default_rng(seed)

    def draw(heads: int, scale: float) -> Array:
        drawn = (rng.normal(size=(batch, heads, tokens, dim)) * scale).astype(np.float16)
        return drawn.astype(np.float32)

    return Stream(draw(heads, scale), draw(heads, 1.0), draw(heads * GROUP, scale))


def new_cache(
    method: str | MethodConfig,
    params: Any = None,
    budget: int | None = None,
    block: int | None = None,
    layer: Layer | None = None,
) -> EvictionCache:
    """A cache for one layer under a method, with the layer's share of the budget."""
    chosen = method if isinstance(method, MethodConfig) else resolve(method, params, budget=budget)
    layer, share = layer or Layer(), chosen.budget
    if layer.module is None:
        layer = replace(layer, module=ROTATED)
    if layer.directions is None:
        layer = replace(layer, directions=tilted)
    if share is not None:
        share = chosen.variant.layer_budgets(share, chosen.params, layer.count)[layer.index]
    policy = chosen.variant.policy(chosen.params, layer)
    return EvictionCache(policy, share, start=chosen.budget, evict_block=block)


def feed(cache: Any, data: Stream, chunks: Sequence[int], start: int = 0) -> list[tuple[Array, Array]]:
    """Feeds tokens from `start` on in chunks; returns what each step handed to attention.

    A policy that needs queries is shown them after each step, as the attention tap does.
    """
    handed = []
    for chunk in chunks:
        part = data.part(start, start + chunk)
        got = cache.update_and_fetch(mx.array(part.keys), mx.array(part.values))
        if getattr(cache, "awaits_queries", False):
            cache.attended(mx.array(part.queries), part.keys.shape[-1] ** -0.5)
        handed.append((np.array(got[0]), np.array(got[1])))
        start += chunk
    return handed


def end_prompt(cache: EvictionCache, data: Stream) -> int:
    """Does what a session does once the prompt is in; returns the most rows held meanwhile.

    A rule that runs passes over the context gets the stream's own rows backwards, in the place of what a model would
    make of "repeat the context". The last QUESTION tokens are a question, where the budget can hold them.
    """
    prompt = peak = cache.size()
    budget, policy = cache.budgets[0], cache.policy
    if isinstance(policy, KVzipPaper) and budget is not None and prompt > budget:
        end = prompt - (QUESTION if budget > policy.n_sink + QUESTION else 0)
        policy.layer.shared["context"] = (policy.n_sink, end)
        for now in passes(policy.n_sink, end, int(policy.params["chunk"]), end):
            policy.layer.shared["pass"] = now
            part = data.part(now.start, now.end)
            size = now.end - now.start
            with rewound(cache, end):
                feed(cache, part.backwards(), [size])
            peak = max(peak, prompt + size)
        del policy.layer.shared["pass"]
    cache.finish_prompt()
    return peak


def kept(cache: EvictionCache) -> Array:
    """Positions held [B, H, n], ascending; every head holds the same number."""
    positions = np.array(cache.kept_positions())
    counts = (positions >= 0).sum(axis=-1)
    assert (counts == counts.flat[0]).all()
    return np.sort(np.where(positions < 0, np.iinfo(np.int32).max, positions), axis=-1)[..., : counts.flat[0]]


def split(total: int, chunk: int) -> list[int]:
    """`total` tokens in chunks."""
    return [min(chunk, total - start) for start in range(0, total, chunk)]


def blocks(prompt: Sequence[int], decoded: int, block: int | None) -> Iterator[tuple[int, int, bool]]:
    """The (start, end, decoding) of every eviction: the prompt's chunks cut into blocks, then single tokens."""
    at = 0
    for chunk in prompt:
        for size in split(chunk, min(block or chunk, chunk)):
            yield at, at + size, chunk == 1
            at += size
    for _ in range(decoded):
        yield at, at + 1, True
        at += 1
