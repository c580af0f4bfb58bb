"""Moving a policy's state with the rows it belongs to: widened, gathered, stacked and selected as they are.

`Policy.slot_state` names arrays whose last axis is the slots, `Policy.pair_state` those whose last two axes are
(row against row); everything else only has a batch axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox_eval.methods.policy import Policy, State
from velox_eval.mlx import mx


def fitted(policy: Policy, state: State, count: int) -> State:
    """Returns the state cut or widened with zeros to `count` slots."""
    fit = dict(state)
    for name in policy.slot_state:
        if name in fit:
            fit[name] = _fit(fit[name], count, -1)
    for name in policy.pair_state:
        if name in fit:
            fit[name] = _fit(_fit(fit[name], count, -1), count, -2)
    return fit


def gathered(policy: Policy, state: State, index: mx.array) -> State:
    """Returns the state of the rows at slots `index` int32 [B, H, n], in that order."""
    moved = dict(state)
    for name in policy.slot_state:
        if name in moved:
            moved[name] = _gather(moved[name], index, -1)
    for name in policy.pair_state:
        if name in moved:
            moved[name] = _gather(_gather(moved[name], index, -1), index, -2)
    return moved


def stacked(policy: Policy, states: Sequence[State]) -> State:
    """Returns one state for the sequences of all, in order."""
    per_slot = [*policy.slot_state, *policy.pair_state]
    width = max((state[name].shape[-1] for state in states for name in per_slot if name in state), default=0)
    fit = [fitted(policy, state, width) for state in states]
    return {name: mx.concatenate([state[name] for state in fit], axis=0) for name in states[0]}


def selected(state: State, sequences: mx.array) -> State:
    """Returns the state of these sequences only, in this order."""
    return {name: mx.take(array, sequences, axis=0) for name, array in state.items()}


def _fit(array: mx.array, count: int, axis: int) -> mx.array:
    have = array.shape[axis]
    if have == count:
        return array
    if have > count:
        return array[..., :count] if axis == -1 else array[..., :count, :]
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, count - have)
    return mx.pad(array, widths)


def _gather(array: mx.array, index: mx.array, axis: int) -> mx.array:
    """`array` [B, H, ..., C, ...] along the slots at `axis`, for `index` [B, H, n]."""
    shape = [*index.shape[:2], *([1] * (array.ndim - 2))]
    shape[axis] = index.shape[-1]
    return mx.take_along_axis(array, index.reshape(shape), axis=axis)
