"""The one abstraction a method implements: how much each stored row is worth keeping.

A Policy is a rule without memory of its own: what it must remember of a sequence lives in a `State` that
the cache carries, moves with the rows and stacks with the batch. See ARCHITECTURE.md, "Adding a method".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from velox_eval.methods.spec import Value
from velox_eval.mlx import mx

State: TypeAlias = "dict[str, mx.array]"  # a string: importing this must not load mlx


@dataclass(frozen=True)
class Rows:
    """The rows of one layer as a policy sees them, right after new ones came in and were attended to.

    B sequences, H KV heads, C slots. `compact`: slots are in temporal order and the new rows are last
    (prefill); otherwise slot order means nothing and `positions` alone says what is old and what is new.
    """

    keys: mx.array  # [B, H, C, D], after RoPE, in the model's dtype
    values: mx.array  # [B, H, C, Dv]
    positions: mx.array  # [B, H, C] int32, true position of each row; -1: free slot
    newest: mx.array | int  # position of the newest row; [B, 1, 1] int32 where sequences differ
    new_keys: mx.array  # [B, H, S, D], the rows that just came in
    compact: bool
    any_free: bool  # whether some slots are free (then they must not count)
    queries: mx.array | None = None  # [B, H_q, S, D] of the new rows, after RoPE; with `needs_queries` only


class Policy:
    """One layer's eviction rule. Subclasses set the class attributes that apply and define `importance`."""

    needs_queries: ClassVar[bool] = False  # Rows.queries; runs only where the attention can be tapped
    slot_state: ClassVar[tuple[str, ...]] = ()  # names in State whose last axis is the slots

    n_sink = 0  # first positions that are never evicted
    protected_recent = 0  # newest positions that are never evicted

    def __init__(self, params: Mapping[str, Value]) -> None:
        self.params = dict(params)
        if "n_sink" in params:
            self.n_sink = int(params["n_sink"])

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns [B, H, C] float32: the lowest is evicted first, equal ones oldest first."""
        raise NotImplementedError

    def observe(self, rows: Rows, state: State) -> State:
        """Returns the state after `rows.new_keys` came in; called once per step or block, before eviction."""
        return state

    def keep_scores(self, rows: Rows, state: State) -> mx.array:
        """Returns `importance` with +inf on sinks, protected recent rows and free slots; [B, H, C] float32."""
        # A free slot's position is -1, so the sink test covers it for every n_sink >= 0.
        protected = rows.positions < self.n_sink
        if self.protected_recent:
            protected = protected | (rows.positions > rows.newest - self.protected_recent)
        return mx.where(protected, mx.inf, self.importance(rows, state))


def attention_weights(queries: mx.array, rows: Rows) -> mx.array:
    """Returns the softmax attention of `queries` [B, H, W, D] over the rows held: [B, H, W, C] float32.

    Scaled by 1/sqrt(D), in float32, free slots left out. `queries` are keys standing in for queries in the
    adapted rules.
    """
    logits = queries.astype(mx.float32) @ rows.keys.astype(mx.float32).swapaxes(-1, -2)
    logits = logits * (1.0 / float(rows.keys.shape[-1]) ** 0.5)
    if rows.any_free:
        logits = mx.where(rows.positions[:, :, None, :] >= 0, logits, -mx.inf)
    return mx.softmax(logits, axis=-1)
