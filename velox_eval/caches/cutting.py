"""Several rows at once: a prompt's chunk cut to the budget, and layers or sequences that are over by more than one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from velox_eval.caches import policy_state
from velox_eval.caches.choosing import Step
from velox_eval.caches.slots import Slots, highest_slots, lowest_slots
from velox_eval.errors import MethodError
from velox_eval.methods.policy import Rows
from velox_eval.mlx import mx

if TYPE_CHECKING:
    from velox_eval.caches.base import EvictionCache

FLUSH = 32  # blocks of a block-wise prefill between evaluations, to keep the graph short


def cut_rows(cache: EvictionCache, scores: mx.array, excess: list[int]) -> None:
    """Has each sequence lose its `excess` rows of the lowest `scores` [B, H, C]; what stays moves together.

    Raises MethodError for a policy that merges: while decoding it can take in one row at a time.
    """
    if cache.policy.merges:
        raise MethodError("a merging method evicts one row at a time while decoding")
    slots, parts, states = cache.held_slots, [], []
    for sequence, gone in enumerate(excess):
        index = mx.array([sequence])
        part, count = slots.selected(index), cache.rows[sequence]
        state = policy_state.selected(cache.policy_state, index)
        if gone:
            order = part.temporal_order()[..., :count]
            ranked = mx.take_along_axis(scores[sequence : sequence + 1], order, axis=-1)
            kept = mx.take_along_axis(order, highest_slots(ranked, count - gone), axis=-1)
            part = part.gathered(kept)
            state = policy_state.gathered(cache.policy, state, kept)
        parts.append(part)
        states.append(state)
    cache.policy_state = policy_state.stacked(cache.policy, states)
    cache.moved(Slots.stacked(parts), [count - gone for count, gone in zip(cache.rows, excess, strict=True)])


def cut_chunk(cache: EvictionCache, step: Step) -> None:
    """Evicts down to the budget block by block, in temporal order; a block sees only rows before its end."""
    policy, budget, new = cache.policy, cache.budgets[0], step.new_keys.shape[2]
    slots, held = cache.held_slots, cache.rows[0] - new
    before = cache.tokens_seen[0] - new
    block = min(cache.evict_block or new, new)
    kept: mx.array | None = None  # int32 [B, H, n]: slots kept so far; None: all up to `end`
    for start in range(0, new, block):
        end = held + min(start + block, new)
        seen = before + end - held
        if kept is not None:
            arrived = mx.arange(held + start, end, dtype=mx.int32)
            kept = mx.concatenate([kept, mx.broadcast_to(arrived, (*kept.shape[:2], arrived.size))], axis=2)
        part = slots.first(end) if kept is None else slots.gathered(kept)
        rows = Rows(
            ((part.keys, part.values),),
            part.positions,
            newest=seen - 1,
            place=cache.places[0] - new + start,
            seen=(seen,) * len(cache.rows),
            new_keys=step.new_keys[:, :, start : end - held],
            new_slots=None,
            any_free=False,
            queries=None if step.queries is None else step.queries[:, :, start : end - held],
            scale=step.scale,
            budgets=tuple(cache.budgets),
        )
        state = policy_state.fitted(policy, cache.policy_state, part.count)
        cache.policy_state = policy.observe(rows, state)
        if not policy.holds_prompt and budget is not None and part.count > budget and seen > cache.starts[0]:
            scores = policy.keep_scores(rows, cache.policy_state)
            if policy.merges:
                gone = lowest_slots(scores, part.count - budget)
                where, values, cache.policy_state = policy.merge(rows, cache.policy_state, gone, None)
                slots.put_values(where if kept is None else mx.take_along_axis(kept, where, axis=2), values)
            best = highest_slots(scores, budget)
            kept = best if kept is None else mx.take_along_axis(kept, best, axis=2)
            cache.policy_state = policy_state.gathered(policy, cache.policy_state, best)
        if block < new and start // block % FLUSH == FLUSH - 1:
            mx.eval([array for array in (kept, slots.values) if array is not None], cache.policy_state)
    if kept is not None:
        cache.moved(slots.gathered(kept), [kept.shape[2]] * len(cache.rows))
