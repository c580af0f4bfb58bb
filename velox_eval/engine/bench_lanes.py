"""Sequences that decode together in steady state, and the caches' part of a step alone: what `bench` times.

A lane starts from one real prompt: one sequence reads it, and is stacked with itself.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from velox_eval.caches.attention import Lent
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.together import choose_together
from velox_eval.engine.engine import Engine
from velox_eval.engine.memory import machine_memory
from velox_eval.engine.requests import Generate, Sampling
from velox_eval.engine.sampling import choose
from velox_eval.errors import ConfigError
from velox_eval.mlx import mx
from velox_eval.mlx_lm import KVCache, make_prompt_cache


class Lane:
    """Sequences that decode together, greedily, step after step; `pinned` plain caches never get longer."""

    def __init__(self, model: Any, caches: list[Any], batch: int, *, pinned: int | None = None) -> None:
        self.model = model
        self.caches = caches
        self.pinned = pinned
        self.last = [0] * batch

    def step(self) -> None:
        """Decodes one token of every sequence, as the engine does."""
        logits = self.model(mx.array([[token] for token in self.last]), cache=self.caches)[:, -1]
        if self.pinned is None:
            mx.async_eval([cache.state for cache in self.caches])
        self.last = choose(logits, [("bench", 0)] * len(self.last), Sampling())
        for cache in self.caches if self.pinned is not None else ():
            if type(cache) is KVCache:
                cache.offset = self.pinned

    def timed(self, steps: int) -> float:
        """Returns seconds a step, over `steps` of them."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        return (time.perf_counter() - began) / steps

    def recorded(self) -> list[StepInput]:
        """Returns what one more step brings to each layer's cache."""
        with ExitStack() as stack:
            inputs = [stack.enter_context(_recorded(cache)) for cache in self.caches]
            self.step()
        mx.eval([[a for a in (i.keys, i.values, i.queries, *(i.lent or ())) if a is not None] for i in inputs])
        return inputs


@dataclass
class StepInput:
    """What a step brings to one layer's cache: keys and values [B, H, 1, D], and the queries it may be shown."""

    keys: Any = None
    values: Any = None
    queries: Any = None
    scale: float = 0.0
    lent: Any = None  # of attention's own work


@contextmanager
def _recorded(cache: EvictionCache) -> Iterator[StepInput]:
    """Notes what is given to `cache` while it works on."""
    seen = StepInput()
    update, attended = cache.update_and_fetch, cache.attended

    def noted_update(keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        seen.keys, seen.values = keys, values
        return update(keys, values)

    def noted_queries(queries: mx.array, scale: float, lent: Lent | None = None) -> None:
        seen.queries, seen.scale, seen.lent = queries, scale, lent
        attended(queries, scale, lent)

    cache.__dict__ |= {"update_and_fetch": noted_update, "attended": noted_queries}
    try:
        yield seen
    finally:
        del cache.__dict__["update_and_fetch"], cache.__dict__["attended"]


class CachesAlone:
    """The caches' part of a decode step without the model: append, rank, evict, in every layer."""

    def __init__(self, caches: Sequence[EvictionCache], inputs: Sequence[StepInput]) -> None:
        self.caches = caches
        self.inputs = inputs

    def step(self) -> None:
        """Gives every cache its part of the step and evaluates what it holds."""
        shown = []
        for cache, new in zip(self.caches, self.inputs, strict=True):
            shown.append(cache.update_and_fetch(new.keys, new.values))
            if new.queries is not None:
                cache.attended(new.queries, new.scale, new.lent)
        mx.eval(shown, [cache.state for cache in self.caches])

    def timed(self, steps: int) -> float:
        """Returns seconds a step, over `steps` of them."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        return (time.perf_counter() - began) / steps


def method_lane(engine: Engine, text_of: Callable[[int], str], budget: int, batch: int) -> Lane:
    """Returns `batch` sequences under the engine's method, each the same prompt of `budget` tokens, every layer full.

    `text_of(n)` is a text of n tokens. Where layers have budgets of their own, more tokens follow until all are full.
    Raises ConfigError for a batch beyond this machine's memory.
    """
    ready = engine.prepare(Generate("bench", text_of(budget), 1))
    engine.read(ready)
    caches: list[Any] = ready.session.caches
    missing = max(map(_room, caches))
    if missing > 0:
        feed(engine.model, engine.encode(text_of(missing)), caches, engine.prefill_step)
    if batch > 1:
        _check_fits(batch, sum(cache.allocated_bytes + cache.aux_bytes for cache in caches))
        caches = [EvictionCache.stack([cache] * batch) for cache in caches]
        choose_together(caches)
    mx.eval([cache.state for cache in caches])
    return Lane(engine.model, caches, batch)


def _room(cache: Any) -> int:
    """The rows a cache of one sequence may still take before it evicts."""
    budget = cache.budgets[0] if isinstance(cache, EvictionCache) else None
    return 0 if budget is None else budget - cache.rows[0]


def plain_caches(model: Any, tokens: Sequence[int], prefill_step: int) -> list[Any]:
    """Returns mlx-lm's own caches of one sequence that holds the prompt `tokens`."""
    caches: list[Any] = make_prompt_cache(model)
    feed(model, tokens, caches, prefill_step)
    return caches


def plain_lane(model: Any, caches: Sequence[Any], rows: int, batch: int) -> Lane:
    """Returns `batch` sequences pinned at `rows` rows, those of one sequence's plain caches over and over.

    Raises ConfigError for a batch beyond this machine's memory.
    """
    held = [cache for cache in caches if type(cache) is KVCache]
    _check_fits(batch, sum((cache.keys.nbytes + cache.values.nbytes) // cache.keys.shape[2] * rows for cache in held))
    longer = [_repeated(cache, rows, batch) if type(cache) is KVCache else copy.deepcopy(cache) for cache in caches]
    return Lane(model, longer, batch, pinned=rows)


def _check_fits(batch: int, sequence_bytes: int) -> None:
    if batch * sequence_bytes > machine_memory():
        raise ConfigError(
            f"batch={batch} takes {batch * sequence_bytes:,} bytes of caches, and this machine has "
            f"{machine_memory():,}: at most {machine_memory() // sequence_bytes} sequences fit, less the model"
        )


def feed(model: Any, tokens: Sequence[int], caches: Sequence[Any], prefill_step: int) -> None:
    """Runs a prompt through the model in chunks, as the engine does."""
    for start in range(0, len(tokens), prefill_step):
        model(mx.array([list(tokens[start : start + prefill_step])]), cache=caches)
        mx.eval([cache.state for cache in caches])
        mx.clear_cache()


def _repeated(cache: Any, rows: int, batch: int) -> Any:
    """A plain cache of `rows` rows: those of `cache` over and over, the same for every sequence."""
    place = mx.arange(rows) % cache.offset
    longer = KVCache()
    longer.update_and_fetch(
        *(mx.repeat(mx.take(array, place, axis=2), batch, axis=0) for array in (cache.keys, cache.values))
    )
    mx.eval(longer.keys, longer.values)
    return longer
