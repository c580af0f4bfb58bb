"""Accumulated attention: what H2O, Keyformer, CaM and their kin remember of every row.

New rows come in one at a time or as a causal block; both add up to the same sums. All arrays are float32; nothing
here asks the device for a value.
"""

from __future__ import annotations

from velox_eval.methods.policy import Rows, fresh, grouped, newest_key_logits
from velox_eval.mlx import mx


def new_positions(rows: Rows) -> mx.array:
    """Returns int32 [1 or B, 1, S, 1]: the true positions of the rows that just came in."""
    count = rows.new_keys.shape[2]
    offsets = mx.arange(1 - count, 1, dtype=mx.int32)[None, None, :, None]
    newest = rows.newest
    return offsets + (newest if isinstance(newest, int) else newest[..., None])


def _has_earlier(rows: Rows) -> bool:
    """Whether a single row came in, and none is the first of its sequence: then all have some row to pay to."""
    return rows.new_keys.shape[2] == 1 and min(rows.seen, default=0) > 1


def key_attention(rows: Rows, counted: mx.array | None = None, *, some: bool = False) -> mx.array:
    """Returns [B, H, S, C]: what each new key, standing in for a query, pays to the rows before it.

    Scaled by 1/sqrt(D). A new row pays nothing to itself, to later ones, to free slots and to rows that are not
    `counted` (boolean [B, H, C]; None: all are); where nothing is left, as before the first row, it pays nothing.
    `some`: of the rows before it, one is sure to be counted.
    """
    if rows.new_keys.shape[2] == 1:
        logits = newest_key_logits(rows)
        before = (rows.positions < rows.newest)[:, :, None]
    else:
        logits = rows.products(rows.new_keys.astype(mx.float32)) * (1.0 / float(rows.head_dim) ** 0.5)
        before = rows.positions[:, :, None] < new_positions(rows)
    if rows.any_free:
        before = before & (rows.positions[:, :, None] >= 0)
    if counted is not None:
        before = before & counted[:, :, None]
    weights = mx.softmax(mx.where(before, logits, -mx.inf), axis=-1)
    if (counted is None or some) and _has_earlier(rows):
        return weights
    return mx.where(before, weights, 0.0)  # also where there was nothing to pay to


def query_logits(rows: Rows) -> mx.array:
    """Returns [B, H, G, S, C]: the logits of the G query heads that share a KV head, -inf where they see nothing.

    A new query sees the rows up to its own. Needs `Rows.queries`.
    """
    if rows.logits is not None:
        logits = rows.logits[:, :, :, None]
        return mx.where((rows.positions >= 0)[:, :, None, None], logits, -mx.inf) if rows.any_free else logits
    assert rows.queries is not None
    queries = grouped(rows.queries, rows)
    batch, heads, group, new, dim = queries.shape
    logits = rows.products(queries.reshape(batch, heads, group * new, dim)) * rows.scale
    logits = logits.reshape(batch, heads, group, new, -1)
    if new == 1 and not rows.any_free:
        return logits
    seen = rows.positions[:, :, None] <= new_positions(rows)
    if rows.any_free:
        seen = seen & (rows.positions[:, :, None] >= 0)
    return mx.where(seen[:, :, None], logits, -mx.inf)


def query_attention(rows: Rows) -> mx.array:
    """Returns [B, H, G, S, C]: the model's own attention of the new queries, by query head; see `query_logits`."""
    if rows.weights is not None:
        return rows.weights[:, :, :, None]
    return mx.softmax(query_logits(rows), axis=-1)


def accumulated(
    rows: Rows, scores: mx.array | None, received: mx.array, *, decay: float = 1.0, first: float = 0.0
) -> mx.array:
    """Returns the new cumulative scores [B, H, C] after the S new rows.

    `scores` [B, H, C] are those before (None: no row yet; entries of new rows are stale), `received` [B, H, S, C]
    what each new row pays to each row. Every new row multiplies what was there by `decay`, then adds what it pays.
    New rows start at 0, the very first of a sequence at `first`.
    """
    new = rows.new_keys.shape[2]
    if decay == 1.0 or new == 1:
        gained = received.sum(axis=2) if new > 1 else received[:, :, 0]
    else:
        fading = mx.array([decay ** (new - 1 - step) for step in range(new)], mx.float32)
        gained = fading @ received  # over the new rows
    start: mx.array | float = 0.0
    if first and not _has_earlier(rows):
        start = mx.where(rows.positions == 0, first * decay ** (new - 1), 0.0)
    if scores is None:
        return gained + start
    return mx.where(fresh(rows), start, scores * decay**new if decay != 1.0 else scores) + gained


def accumulated_key_attention(rows: Rows, scores: mx.array | None, decay: float = 1.0) -> mx.array:
    """Returns the new cumulative key-as-query scores [B, H, C], as VeloxQuant-MLX counts them.

    The very first row of a sequence starts at 1, every other at 0.
    """
    return accumulated(rows, scores, key_attention(rows), decay=decay, first=1.0)
