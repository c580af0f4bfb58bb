"""A window of queries and the share of its attention each pays to the distant rows, kept up to date step by step.

Distant are the rows older than the window. A query votes from the step after its own, for as many steps as there are
voters. Its softmax runs over distant rows only; recomputing it costs voters x rows exponentials a step. Kept are the
shares: a row that becomes distant adds a column, a query that begins to vote a row, and then each voter's shares are
brought back to a sum of 1. The voter of position p lies at ring index p modulo voters.
"""

from __future__ import annotations

from velox_eval.methods.policy import Rows, State
from velox_eval.methods.sums import over_slots
from velox_eval.methods.window import CEILING, group_logits, put_slot, put_voter
from velox_eval.mlx import mx

SLOT_STATE = ("share", "asked")  # the arrays of the state whose last axis is the slots


def watched(
    rows: Rows,
    state: State,
    queries: mx.array,
    voters: int,
    oldest_recent: mx.array | int,
    logits: mx.array | None = None,
) -> State:
    """Returns the state after the new rows' queries [B, H, G, S, D] (float32, scaled) came in.

    `logits` [B, H, G, 1, C] are those of one new query, where attention has them at hand.

    `ring` [B, H, G, voters, D]; `latest` [B, H, G, 1, D], the query that votes from the next step on, and `asked`
    [B, H, G, 1, C], its logits when it came: no row that came since is distant when it votes; `share` [B, H, G,
    voters, C], 0 for rows that are not distant (at or after position `oldest_recent`); `base` [B, H, G, voters, 1]:
    exp(logit - base) is a share.
    """
    if not state:
        state = {
            "ring": mx.zeros((*queries.shape[:3], voters, queries.shape[4]), mx.float32),
            "latest": mx.zeros((*queries.shape[:3], 1, queries.shape[4]), mx.float32),
            "share": mx.zeros((*queries.shape[:3], voters, rows.positions.shape[-1]), mx.float32),
            "asked": mx.zeros((*queries.shape[:3], 1, rows.positions.shape[-1]), mx.float32),
            "base": mx.zeros((*queries.shape[:3], voters, 1), mx.float32),
        }
    if rows.new_slots is None:
        return _recomputed(rows, state, queries, voters, oldest_recent)
    if logits is None:
        logits = group_logits(queries, rows)
    return _stepped(rows, state, queries, logits, voters, oldest_recent)


def _recomputed(rows: Rows, state: State, queries: mx.array, voters: int, oldest_recent: mx.array | int) -> State:
    """From scratch, for a prompt's chunk: rows in temporal order, `newest` one number."""
    newest = rows.newest
    assert isinstance(newest, int)
    before = newest - queries.shape[3]  # position of the query that was latest
    oldest_first = mx.array([(before + step) % voters for step in range(voters)])
    history = mx.concatenate([mx.take(state["ring"], oldest_first, axis=3), state["latest"], queries], axis=3)
    recent = history[:, :, :, -voters - 1 : -1]  # positions newest - voters to newest - 1
    ring = mx.take(recent, mx.array([(index - newest) % voters for index in range(voters)]), axis=3)
    share, base = _weighed(group_logits(ring, rows), rows, oldest_recent)
    latest = history[:, :, :, -1:]
    return {"ring": ring, "latest": latest, "asked": group_logits(latest, rows), "share": share, "base": base}


def _stepped(
    rows: Rows, state: State, query: mx.array, asked: mx.array, voters: int, oldest_recent: mx.array | int
) -> State:
    """One token: a column for the row that became distant, then a row for the query that begins to vote."""
    share, newly = state["share"], oldest_recent - 1
    at = mx.argmax(rows.positions == newly, axis=-1, keepdims=True)  # [B, H, 1]; recent till now, so it is held
    logit = (state["ring"].flatten(2, 3) @ rows.keys_at(at).swapaxes(-1, -2)).reshape(*state["base"].shape)
    column = mx.exp(mx.minimum(logit - state["base"], CEILING))
    at = at[:, :, None, None]
    if not isinstance(newly, int):
        column = mx.where((newly >= 0)[..., None, None], column, 0.0)
    elif newly < 0:
        column = mx.zeros_like(column)
    share = mx.put_along_axis(share, at, column, axis=-1)
    share = put_slot(share, rows.new_slots, mx.zeros((*share.shape[:-1], 1)))

    begins, base = _weighed(state["asked"], rows, oldest_recent)
    ring = (rows.newest - 1) % voters
    share = put_voter(share, ring, begins)
    total = over_slots(share)
    total = mx.where(total > 0, total, 1.0)
    return {
        "ring": put_voter(state["ring"], ring, state["latest"]),
        "latest": query,
        "asked": asked,
        "share": share * (1.0 / total),  # in place when nothing else holds the array
        "base": put_voter(state["base"], ring, base) + mx.log(total),
    }


def _weighed(logits: mx.array, rows: Rows, oldest_recent: mx.array | int) -> tuple[mx.array, mx.array]:
    """Returns (shares [B, H, G, W, C], base [B, H, G, W, 1]) of logits over the distant rows held."""
    distant = rows.positions < oldest_recent
    if rows.any_free:
        distant = distant & (rows.positions >= 0)
    counted = mx.where(distant[:, :, None, None], logits, -mx.inf)
    top = counted.max(axis=-1, keepdims=True)
    if not isinstance(oldest_recent, int) or oldest_recent <= 0:
        # Before any row is distant, any logit serves as a base: that of the first slot, which position 0 has then.
        top = mx.where(top > -mx.inf, top, logits[..., :1])
    paid = mx.exp(counted - top)
    total = mx.maximum(over_slots(paid), 1.0)  # the largest pays 1
    return paid * (1.0 / total), top + mx.log(total)
