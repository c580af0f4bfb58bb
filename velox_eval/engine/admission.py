"""How many sequences decode together: a number, or as many as fit a memory limit, decided before each starts.

A sequence's needs are worked out from what its method declares: the same caches are fed arrays that are never
evaluated, whose sizes are known all the same. Counted are the buffers as they are allocated, free slots and rows in
transit included, and the policies' own arrays; not the model's weights and activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from velox_eval.caches.base import GROWTH, EvictionCache
from velox_eval.caches.session import MethodSession, Prompt
from velox_eval.errors import ConfigError
from velox_eval.mlx import mx

AUTO_BATCH = 32  # most sequences a batch grows to by itself
POSITION_BYTES = 4  # a slot's position; one more per head for the hole an evicted row leaves
STATE_BYTES = 4  # of a number a policy keeps for a row
SETTLED = 3  # chunks after which a cache at its budget repeats itself


@dataclass(frozen=True)
class LayerShape:
    """What one layer's rows look like, read from a cache that held some."""

    heads: int
    query_heads: int
    key_dim: int
    value_dim: int
    dtype: mx.Dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: key and value, all heads."""
        return int(self.heads * (self.key_dim + self.value_dim) * self.dtype.size)


@dataclass(frozen=True)
class Footprint:
    """What one sequence needs: bytes while its prompt comes in; slots per layer and other bytes while it decodes.

    `prefill_slots`: the slots per layer behind `prefill_bytes`.
    """

    prefill_bytes: int
    slots: tuple[int, ...]
    aux_bytes: int
    prefill_slots: tuple[int, ...]

    def allocated_bytes(self, shapes: Sequence[LayerShape]) -> int:
        """Returns the key and value buffers' bytes at their largest, each layer at its own."""
        layers = zip(self.prefill_slots, self.slots, shapes, strict=True)
        return sum(max(first, later) * shape.row_bytes for first, later, shape in layers)


@dataclass(frozen=True)
class Admission:
    """`batch_size` sequences at most (None: AUTO_BATCH), within `memory_limit` bytes of caches if one is given."""

    batch_size: int | None
    memory_limit: int | None
    shapes: Sequence[LayerShape]

    @property
    def most(self) -> int:
        """Most sequences that decode together."""
        return AUTO_BATCH if self.batch_size is None else self.batch_size

    def fits(self, running: Sequence[Footprint], new: Footprint, *, prefilled: bool = False) -> bool:
        """Returns whether `new` may start (or, `prefilled`, join) beside those running.

        Raises ConfigError if it never could, even alone.
        """
        if self.memory_limit is None:
            return len(running) < self.most
        together = self.held_bytes([*running, new])
        coming = 0 if prefilled else self.held_bytes(running) + new.prefill_bytes
        need = max(together, coming)
        if not running and need > self.memory_limit:
            raise ConfigError(
                f"this sample's caches need {need:,} bytes, over memory_limit={self.memory_limit:,}; "
                "raise the limit or lower the budget"
            )
        return len(running) < self.most and need <= self.memory_limit

    def held_bytes(self, running: Sequence[Footprint]) -> int:
        """Bytes a batch of these may hold at its largest: every layer as wide as its widest sequence."""
        if not running:
            return 0
        layers = zip(*(each.slots for each in running), strict=True)
        widest: list[int] = [max(slots) for slots in layers]
        rows: int = sum(width * shape.row_bytes for width, shape in zip(widest, self.shapes, strict=True))
        return rows * len(running) + max(each.aux_bytes for each in running) * len(running)


def layer_shapes(session: MethodSession) -> list[LayerShape]:
    """Returns the shapes of the evicting layers of a session that was fed at least one token, tapped."""
    shapes = []
    for cache in session.evicting:
        assert cache.slots is not None
        keys, values = cache.slots.keys, cache.slots.values
        query_heads = cache.query_heads or keys.shape[1]
        shapes.append(LayerShape(keys.shape[1], query_heads, keys.shape[3], values.shape[3], keys.dtype))
    return shapes


def footprint(
    session: MethodSession, shapes: Sequence[LayerShape], prompt: Prompt, new_tokens: int, prefill_step: int
) -> Footprint:
    """Returns what a sequence of that prompt and `new_tokens` more needs under the session's method and budget.

    `session` is fresh and is used up: its caches are fed arrays that are never evaluated. Of the prompt only its
    length and parts count. A method that shares its budget out by what the prompt says is counted at equal shares.
    """
    variant = session.method.variant
    session.prompt = prompt
    if variant.fits_by_length and variant.after_prefill is not None and session.budget is not None:
        variant.after_prefill(session)
    passes = [] if variant.passes is None else list(variant.passes(session))
    known: dict[object, _LayerNeeds] = {}
    needs = []
    for cache, shape in zip(session.evicting, shapes, strict=True):
        key = (cache.budgets[0], shape)  # layers alike need the same
        if key not in known:
            cut = variant.after_prefill is None or variant.fits_by_length
            known[key] = _layer_needs(cache, shape, len(prompt.tokens), new_tokens, prefill_step, passes, cut=cut)
        needs.append(known[key])
    return Footprint(
        prefill_bytes=sum(each.prefill_bytes for each in needs),
        slots=tuple(each.slots for each in needs),
        aux_bytes=sum(each.aux_bytes for each in needs),
        prefill_slots=tuple(each.prefill_slots for each in needs),
    )


class _LayerNeeds(NamedTuple):
    """A layer's part of a Footprint."""

    prefill_slots: int
    prefill_bytes: int
    slots: int
    aux_bytes: int


def _layer_needs(
    cache: EvictionCache,
    shape: LayerShape,
    prompt_tokens: int,
    new_tokens: int,
    prefill_step: int,
    passes: Sequence[tuple[int, int]],
    *,
    cut: bool,
) -> _LayerNeeds:
    """`passes`: (rows kept, tokens) of each pass over the prompt; `cut`: the cache can be cut without the model."""
    budget = cache.budgets[0]
    bound = None if budget is None or cache.policy.grows or cache.policy.holds_prompt else max(budget, cache.starts[0])
    feed = prompt_tokens - 1
    if bound is not None:  # further chunks change nothing once the budget is reached
        feed = min(feed, (-(-bound // prefill_step) + SETTLED) * prefill_step)
    peak_rows = 0
    for start in range(0, feed, prefill_step):
        _feed(cache, shape, min(prefill_step, feed - start))
        peak_rows = max(peak_rows, cache.peak_slots)
    _feed(cache, shape, 1)
    rows = held = max(peak_rows, cache.peak_slots)
    for after, count in passes:  # what follows `after` is set aside meanwhile
        rows = max(rows, max(held, -(-(after + count) // GROWTH) * GROWTH) + prompt_tokens - after)
    if cut:
        cache.finish_prompt()
    prefill = rows * shape.row_bytes + cache.peak_aux_bytes * rows // max(peak_rows, cache.peak_slots)
    judged = max((after + count for after, count in passes), default=0)  # rows that the passes' own state is about
    prefill += judged * len(cache.policy.slot_state) * shape.heads * STATE_BYTES
    if cut:
        for _ in range(2):
            _feed(cache, shape, 1)
    slots = _decode_slots(cache, prompt_tokens, new_tokens)
    if cut and cache.slots is not None:
        slots = max(slots, cache.slots.count)
    most = min(slots, prompt_tokens + new_tokens)
    grown = max(1.0, most / max(cache.rows))  # what a policy keeps per row grows with the rows, or with their square
    state = sum(int(array.nbytes) for array in cache.policy_state.values())
    beside = state * grown ** (2 if cache.policy.pair_state else 1) + (slots + 1) * shape.heads * POSITION_BYTES
    return _LayerNeeds(rows, prefill, slots, int(beside))


def settled(session: MethodSession, needs: Footprint, new_tokens: int) -> Footprint:
    """Returns the needs once the prompt is in, with the budgets its layers were given by then."""
    tokens = len(session.prompt.tokens)
    slots = tuple(
        max(_decode_slots(cache, tokens, new_tokens), cache.slots.count if cache.slots is not None else 0)
        for cache in session.evicting
    )
    wider = max(1.0, sum(slots) / sum(needs.slots))  # what policies keep beside widens with the slots
    return replace(needs, slots=slots, aux_bytes=int(needs.aux_bytes * wider))


def _decode_slots(cache: EvictionCache, prompt_tokens: int, new_tokens: int) -> int:
    """Slots of one layer while decoding, at their largest."""
    budget, total = cache.budgets[0], prompt_tokens + new_tokens
    if budget is None or cache.policy.grows:
        held = total if budget is None else min(budget, prompt_tokens) + new_tokens
        slots = -(-held // GROWTH) * GROWTH
    else:
        slots = min(max(budget, cache.starts[0]) + cache.policy.slack + 1, -(-total // GROWTH) * GROWTH)
    return slots


def _feed(cache: EvictionCache, shape: LayerShape, count: int) -> None:
    cache.update_and_fetch(
        mx.zeros((1, shape.heads, count, shape.key_dim), shape.dtype),
        mx.zeros((1, shape.heads, count, shape.value_dim), shape.dtype),
    )
    if cache.awaits_queries:
        cache.attended(mx.zeros((1, shape.query_heads, count, shape.key_dim), shape.dtype), 1.0)
