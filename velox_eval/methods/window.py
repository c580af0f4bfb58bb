"""A window of voters (recent keys or queries) and what each pays to every row, kept up to date step by step.

Recomputing a window's softmax costs window x rows exponentials a step. Kept are the voters' exponentiated logits: a
new voter adds a row, a new key a column, and nothing else needs an exponential. Each voter's logits are relative to
one of them, so that none overflows and none that matters vanishes: its own (a key pays to itself, and is held as long
as it votes) or its largest when it came (a query). Voter of position p lies at ring index p modulo window. G voters
share a KV head (query heads of a group; 1 for keys).
"""

from __future__ import annotations

from velox_eval.methods.policy import Rows, State, newest_key_logits
from velox_eval.methods.sums import over_slots
from velox_eval.mlx import mx

SLOT_STATE = ("paid",)  # the array of the state whose last axis is the slots
CEILING = 80.0  # exponents end here: sums over thousands of rows stay finite, and all else is negligible beside
NOT_YET = 3e38  # base of a voter that has not come: it pays exp(-3e38), nothing


def watched(rows: Rows, state: State, new: mx.array, window: int, scale: float, *, own: bool) -> State:
    """Returns the state after the new voters [B, H, G, S, D] came in; the last `window` are kept.

    `voters` [B, H, G, window, D], float32, times `scale`; `paid` [B, H, G, window, C]: exp(logit - base), 0 in free
    slots and for voters that have not come yet; `base` [B, H, G, window, 1]: the voter's logit for its own row
    (`own`: voters are the rows' keys) or its largest logit when it came.
    """
    new = new.astype(mx.float32) * scale
    if not state:
        state = _empty(rows, new, window)
    if rows.new_slots is None:
        return _recomputed(rows, state, new, window, scale if own else None)
    return _stepped(rows, state, new, window, scale if own else None)


def shares(state: State) -> mx.array:
    """Returns one over what each voter pays in all, [B, H, G, window, 1]; 0 for voters that pay nothing."""
    total = over_slots(state["paid"])
    return mx.where(total > 0, 1.0 / total, 0.0)


def _empty(rows: Rows, new: mx.array, window: int) -> State:
    batch, heads, group, _, dim = new.shape
    return {
        "voters": mx.zeros((batch, heads, group, window, dim), mx.float32),
        "paid": mx.zeros((batch, heads, group, window, rows.positions.shape[-1]), mx.float32),
        "base": mx.full((batch, heads, group, window, 1), NOT_YET, mx.float32),
    }


def _base(voters: mx.array, logits: mx.array, scale: float | None) -> mx.array:
    if scale is None:
        return logits.max(axis=-1, keepdims=True)
    return (voters * voters).sum(axis=-1, keepdims=True) / scale  # the voter carries the scale once already


def _recomputed(rows: Rows, state: State, new: mx.array, window: int, scale: float | None) -> State:
    """From scratch, for a prompt's chunk: rows in temporal order, `newest` one number."""
    newest = rows.newest
    assert isinstance(newest, int)
    # Ring index r holds the latest position that is r modulo window.
    position = [newest - (newest - ring) % window for ring in range(window)]
    first_new = newest - new.shape[3] + 1
    index = mx.array([max(0, p - first_new) for p in position])
    arrived = mx.array([p >= first_new for p in position])[:, None]
    voters = mx.where(arrived, mx.take(new, index, axis=3), state["voters"])
    there = mx.array([p >= 0 for p in position])[:, None]
    logits = group_logits(voters, rows)
    base = mx.where(there, _base(voters, logits, scale), NOT_YET)
    return {"voters": voters, "paid": mx.exp(mx.minimum(logits - base, CEILING)), "base": base}


def _stepped(rows: Rows, state: State, new: mx.array, window: int, scale: float | None) -> State:
    """One token: a column for the new key, then a row for the new voter."""
    column = state["voters"] @ rows.new_keys.astype(mx.float32)[:, :, None].swapaxes(-1, -2)  # [B, H, G, window, 1]
    paid = put_slot(state["paid"], rows.new_slots, mx.exp(mx.minimum(column - state["base"], CEILING)))
    if scale is not None and rows.logits is not None:
        logits = newest_key_logits(rows)[:, :, None]  # [B, H, G, 1, C]
    else:
        logits = group_logits(new, rows)
    if rows.any_free:
        logits = mx.where(rows.positions[:, :, None, None] >= 0, logits, -mx.inf)
    base = _base(new, logits, scale)
    ring = rows.newest % window
    return {
        "voters": put_voter(state["voters"], ring, new),
        "paid": put_voter(paid, ring, mx.exp(mx.minimum(logits - base, CEILING))),
        "base": put_voter(state["base"], ring, base),
    }


def group_logits(voters: mx.array, rows: Rows) -> mx.array:
    """Returns the products [B, H, G, W, C] of voters [B, H, G, W, D], which carry the scale, with the rows."""
    return rows.products(voters.flatten(2, 3)).reshape(*voters.shape[:4], -1)


def put_slot(array: mx.array, slot: mx.array | slice | None, column: mx.array) -> mx.array:
    """Returns the array with a column [B, H, G, W, 1] at the new row's slot; in place when nothing else holds it."""
    if isinstance(slot, slice):
        array[..., slot] = column
        return array
    assert slot is not None
    return mx.put_along_axis(array, slot[:, :, None, None], column, axis=-1)


def put_voter(array: mx.array, ring: mx.array | int, row: mx.array) -> mx.array:
    """Returns the array [B, H, G, W, n] with `row` [B, H, G, 1, n] at the voter's index; in place like `put_slot`.

    `ring`: the index, int32 [B, 1, 1] where sequences differ.
    """
    if isinstance(ring, int):
        array[:, :, :, ring : ring + 1] = row
        return array
    index = mx.broadcast_to(ring.reshape(-1, 1, 1, 1, 1), (*array.shape[:3], 1, 1))
    return mx.put_along_axis(array, index, row, axis=3)
