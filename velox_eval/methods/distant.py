"""A window of queries and the share of its attention each pays to the distant rows, kept up to date step by step.

Distant are the rows older than the window. A query votes from the step after its own, for as many steps as there are
voters. Its softmax runs over distant rows only; recomputing it costs voters x rows exponentials a step. Kept are the
shares: a row that becomes distant adds a column, a query that begins to vote a row, and then each voter's shares are
brought back to a sum of 1. The voter of position p lies at ring index p modulo voters.
"""

from __future__ import annotations

from velox_eval.methods.policy import LOWEST, Rows, State
from velox_eval.methods.window import CEILING, put_slot, put_voter
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
    asked = _logits(queries, rows) if logits is None else logits
    return _stepped(rows, state, queries, asked, voters, oldest_recent)


def _recomputed(rows: Rows, state: State, queries: mx.array, voters: int, oldest_recent: mx.array | int) -> State:
    """From scratch, for a prompt's chunk: rows in temporal order, `newest` one number."""
    newest = rows.newest
    assert isinstance(newest, int)
    before = newest - queries.shape[3]  # position of the query that was latest
    oldest_first = mx.array([(before + step) % voters for step in range(voters)])
    history = mx.concatenate([mx.take(state["ring"], oldest_first, axis=3), state["latest"], queries], axis=3)
    recent = history[:, :, :, -voters - 1 : -1]  # positions newest - voters to newest - 1
    ring = mx.take(recent, mx.array([(index - newest) % voters for index in range(voters)]), axis=3)
    share, base = _weighed(_logits(ring, rows), rows, oldest_recent)
    latest = history[:, :, :, -1:]
    return {"ring": ring, "latest": latest, "asked": _logits(latest, rows), "share": share, "base": base}


def _stepped(
    rows: Rows, state: State, query: mx.array, asked: mx.array, voters: int, oldest_recent: mx.array | int
) -> State:
    """One token: a column for the row that became distant, then a row for the query that begins to vote."""
    share, newly = state["share"], oldest_recent - 1
    share = put_slot(share, rows.new_slots, mx.zeros((*share.shape[:-1], 1)))
    at = mx.argmax(rows.positions == newly, axis=-1, keepdims=True)  # [B, H, 1]
    there = (mx.take_along_axis(rows.positions, at, axis=-1) == newly)[:, :, None, None]
    key = mx.take_along_axis(rows.keys, at[..., None], axis=2).astype(mx.float32)[:, :, None]
    column = mx.exp(mx.minimum(state["ring"] @ key.swapaxes(-1, -2) - state["base"], CEILING))
    at = at[:, :, None, None]
    column = mx.where(there, column, mx.take_along_axis(share, at, axis=-1))
    share = mx.put_along_axis(share, at, column, axis=-1)

    begins, base = _weighed(state["asked"], rows, oldest_recent)
    ring = (rows.newest - 1) % voters
    share = put_voter(share, ring, begins)
    bases = put_voter(state["base"], ring, base)
    total = share.sum(axis=-1, keepdims=True)
    paying = total > 0
    return {
        "ring": put_voter(state["ring"], ring, state["latest"]),
        "latest": query,
        "asked": asked,
        "share": share * mx.where(paying, 1.0 / total, 0.0),  # in place when nothing else holds the array
        "base": bases + mx.log(mx.where(paying, total, 1.0)),
    }


def _logits(queries: mx.array, rows: Rows) -> mx.array:
    """Returns the logits [B, H, G, W, C] of queries [B, H, G, W, D] with the rows."""
    return (rows.keys.astype(mx.float32)[:, :, None] @ queries.swapaxes(-1, -2)).swapaxes(-1, -2)


def _weighed(logits: mx.array, rows: Rows, oldest_recent: mx.array | int) -> tuple[mx.array, mx.array]:
    """Returns (shares [B, H, G, W, C], base [B, H, G, W, 1]) of logits over the distant rows held."""
    held = (rows.positions >= 0)[:, :, None, None]
    distant = held & (rows.positions < oldest_recent)[:, :, None, None]
    top = mx.where(distant, logits, LOWEST).max(axis=-1, keepdims=True)
    # Before any row is distant, any logit serves as a base.
    top = mx.where(top > LOWEST, top, mx.where(held, logits, LOWEST).max(axis=-1, keepdims=True))
    paid = mx.where(distant, mx.exp(mx.minimum(logits - top, 0.0)), 0.0)
    total = paid.sum(axis=-1, keepdims=True)
    paying = total > 0
    return paid * mx.where(paying, 1.0 / total, 0.0), top + mx.log(mx.where(paying, total, 1.0))
