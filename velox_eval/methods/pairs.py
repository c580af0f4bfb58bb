"""The share of its attention that every held key pays to every other, kept up to date row by row and column by column.

For rules that look at all pairs of rows. The shares cost C x C float32 a head beside the cache, more than the rows
themselves; computing them afresh every step would cost C x C exponentials instead, several times as long on a CPU.
Each key's logits are relative to its own, which is held as long as the key is, so none that matters vanishes.
"""

from __future__ import annotations

from velox_eval.methods.policy import Rows, State, newest_key_logits
from velox_eval.methods.sums import over_slots
from velox_eval.methods.window import CEILING
from velox_eval.mlx import mx

PAIR_STATE = ("share",)
SLOT_STATE = ("own", "factor")


def paired(rows: Rows, state: State) -> State:
    """Returns the state after the new rows came in, for keys standing in for queries, scaled by 1/sqrt(D).

    `share` [B, H, C, C]: what the row of the second-last axis pays to that of the last, rows adding up to 1; 0 where
    either slot is free. `own` [B, H, C]: each key's logit for itself; `factor` [B, H, C]: what turns exp(logit - own)
    into a share.
    """
    new, scale = rows.new_keys.astype(mx.float32), 1.0 / float(rows.head_dim) ** 0.5
    logits = newest_key_logits(rows) if new.shape[2] == 1 else rows.products(new * scale)  # [B, H, S, C]
    own_new = (new * new).sum(axis=-1) * scale  # [B, H, S]
    batch, heads, count, slots = logits.shape
    if not state:
        state = {
            "share": mx.zeros((batch, heads, slots, slots)),
            "own": mx.zeros((batch, heads, slots)),
            "factor": mx.zeros((batch, heads, slots)),  # a free slot pays nothing
        }
    pays = mx.exp(mx.minimum(logits - own_new[..., None], CEILING))
    gets = mx.exp(mx.minimum(logits - state["own"][:, :, None], CEILING)) * state["factor"][:, :, None]
    if rows.any_free:
        pays = mx.where((rows.positions >= 0)[:, :, None], pays, 0.0)
    share, own, factor = (state[name] for name in ("share", "own", "factor"))
    if isinstance(rows.new_slots, mx.array):
        share = mx.put_along_axis(share, rows.new_slots[:, :, None], gets.swapaxes(-1, -2), axis=3)
        share = mx.put_along_axis(share, rows.new_slots[..., None], pays, axis=2)
        own = mx.put_along_axis(own, rows.new_slots, own_new, axis=2)
        factor = mx.put_along_axis(factor, rows.new_slots, mx.ones_like(own_new), axis=2)
    else:
        at = rows.new_slots or slice(slots - count, slots)
        share[..., at] = gets.swapaxes(-1, -2)
        share[:, :, at] = pays
        own[..., at] = own_new
        factor[..., at] = 1.0
    total = over_slots(share)[..., 0]
    change = mx.where(total > 0, 1.0 / total, 0.0)
    # In place when nothing else holds the array, which a product with a fresh result would not be.
    return {"share": share * change[..., None], "own": own, "factor": factor * change}


def largest_share(state: State) -> mx.array:
    """Returns [B, H, C]: the largest share of its attention that any held key pays to each row."""
    return state["share"].max(axis=2)
