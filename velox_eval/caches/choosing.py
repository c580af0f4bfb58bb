"""What goes after one token: a policy's choice in one layer, or in several layers at once.

Append, attend, then evict: a Step is what a layer's cache was handed and has attended to. Rows that go one by one
leave a hole in their layer's slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from velox_eval.caches.slots import lowest_slot
from velox_eval.methods.policy import Rows, State
from velox_eval.mlx import mx

if TYPE_CHECKING:
    from velox_eval.caches.base import EvictionCache


@dataclass(frozen=True)
class Step:
    """A token that came into a layer: its key [B, H, 1, D], and what its attention showed (see Rows)."""

    cache: EvictionCache
    new_keys: mx.array
    queries: mx.array | None = None
    scale: float = 0.0
    logits: mx.array | None = None
    weights: mx.array | None = None


def rows_of(steps: Sequence[Step]) -> Rows:
    """Returns the rows that the layers of `steps` hold, layer by layer on the first axis.

    Layers differ in what they hold, not in how much: the first one's counts are all theirs.
    """
    first, layers = steps[0].cache, len(steps)
    held = [step.cache.held for step in steps]
    written = [step.cache.written for step in steps if isinstance(step.cache.written, mx.array)]
    new = steps[0].new_keys.shape[2]
    return Rows(
        tuple((slots.keys, slots.values) for slots in held),
        joined([slots.positions for slots in held]),
        newest=number_of_each([seen - 1 for seen in first.tokens_seen] * layers),
        place=number_of_each([place - new for place in first.places] * layers),
        seen=tuple(first.tokens_seen) * layers,
        new_keys=joined([step.new_keys for step in steps]),
        new_slots=joined(written) if written else first.written,
        any_free=len(set(first.rows)) > 1,
        queries=_all_or_none([step.queries for step in steps]),
        scale=steps[0].scale,
        budgets=tuple(first.budgets) * layers,
        logits=_all_or_none([step.logits for step in steps]),
        weights=_all_or_none([step.weights for step in steps]),
    )


def _all_or_none(arrays: Sequence[mx.array | None]) -> mx.array | None:
    there = [array for array in arrays if array is not None]
    return joined(there) if len(there) == len(arrays) else None


def evict_one(caches: Sequence[EvictionCache], rows: Rows, state: State, over: list[bool]) -> State:
    """Has each layer lose the least worthy row of each sequence that is `over`; returns the policy's state.

    `rows` and `state` are those of all layers, as `rows_of` puts them together.
    """
    policy, layers = caches[0].policy, len(caches)
    holes = lowest_slot(policy.keep_scores(rows, state), rows.positions)
    if policy.merges:
        mask = None if all(over) else mx.array(over * layers)[:, None, None]
        where, values, state = policy.merge(rows, state, holes, mask)
        merged = zip(caches, parted(where, layers), parted(values, layers), strict=True)
        for cache, at, new in merged if where.size else ():
            cache.held_slots.put_values(at, new)
    for cache, hole in zip(caches, parted(holes, layers), strict=True):
        cache.leave_hole(hole, over)
    return state


def joined(arrays: Sequence[mx.array]) -> mx.array:
    """Returns the layers' arrays one after another on the first axis."""
    return arrays[0] if len(arrays) == 1 else mx.concatenate(list(arrays))


def parted(array: mx.array, layers: int) -> list[mx.array]:
    """Returns each layer's part of what `joined` put together."""
    return [array] if layers == 1 else list(mx.split(array, layers))


def number_of_each(numbers: list[int]) -> int | mx.array:
    """Returns one number a sequence as an int if they are equal, else as int32 [B, 1, 1]."""
    return numbers[0] if len(set(numbers)) == 1 else mx.array(numbers, mx.int32)[:, None, None]
