"""The one abstraction a method implements: how much each stored row is worth keeping.

A Policy is a rule without memory of its own: what it must remember of a sequence lives in a `State` that
the cache carries, moves with the rows and stacks with the batch. See ARCHITECTURE.md, "Adding a method".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from velox_eval.errors import MethodError
from velox_eval.methods.spec import Value
from velox_eval.mlx import mx

Directions: TypeAlias = "Callable[[int, int], mx.array]"  # of H heads and D features: [H, D] float32
State: TypeAlias = "dict[str, mx.array]"  # batch on the first axis; a string: importing this must not load mlx


@dataclass(frozen=True)
class Layer:
    """Where a policy works: which of the evicting layers, in which session."""

    index: int = 0
    count: int = 1
    seed: int = 0  # the sample's own, for rules that draw
    module: Any = None  # the model's decoder layer
    shared: dict[str, Any] = field(default_factory=dict)  # one for all layers of a session
    directions: Directions | None = None  # the layer's, of its queries, for methods that need the model calibrated


@dataclass(frozen=True)
class Rows:
    """The rows of a layer as a policy sees them, right after new ones came in and were attended to.

    B sequences, H KV heads, C slots. Without `new_slots` the slots are in temporal order and the new rows are
    last (prefill); with it slot order means nothing, and `positions` alone says what is old and what is new.
    Where several layers choose together (`Policy.chooses_together`), theirs follow one another on the first axis.
    """

    layers: tuple[tuple[mx.array, mx.array], ...]  # each one's keys [B, H, C, D], after RoPE, and values [B, H, C, Dv]
    positions: mx.array  # [B, H, C] int32, true position of each row; -1: free slot
    newest: mx.array | int  # position of the newest row; [B, 1, 1] int32 where sequences differ
    new_keys: mx.array  # [B, H, S, D], the rows that just came in
    new_slots: mx.array | slice | None  # where the one new row went: int32 [B, H, 1], or the same slot for all
    any_free: bool  # whether some slots are free (then they must not count)
    queries: mx.array | None = None  # [B, H_q, S, D] of the new rows, after RoPE; with `needs_queries` only
    scale: float = 0.0  # what the model multiplies its logits by; with `needs_queries` only
    budgets: tuple[int | None, ...] = ()  # rows each sequence may keep; None: all
    place: mx.array | int = 0  # RoPE position of the first new row; [B, 1, 1] int32 where sequences differ
    seen: tuple[int, ...] = ()  # tokens of each sequence so far, the new ones too; in prefill the same for all
    # Logits of one new token, float32, where attention has computed them: with `needs_queries` [B, H, G, C] of its
    # queries, with `key_as_query` [B, H, 1, C] of its key in place of one, scaled by 1/sqrt(D). Free slots: anything.
    logits: mx.array | None = None
    weights: mx.array | None = None  # with `needs_queries`, there as `logits` are: their softmax, 0 in free slots

    @property
    def keys(self) -> mx.array:
        """The one layer's keys [B, H, C, D]. Raises MethodError for layers that choose together."""
        return self._only_layer[0]

    @property
    def values(self) -> mx.array:
        """The one layer's values [B, H, C, Dv]. Raises MethodError for layers that choose together."""
        return self._only_layer[1]

    @property
    def _only_layer(self) -> tuple[mx.array, mx.array]:
        if len(self.layers) > 1:
            raise MethodError(
                "a policy that chooses_together reads rows through products, keys_at, values_at and new_values: the "
                "layers have no array in common"
            )
        return self.layers[0]

    @property
    def new_values(self) -> mx.array:
        """The values [B, H, S, Dv] of the rows that just came in."""
        at, count = self.new_slots, self.new_keys.shape[2]
        if isinstance(at, mx.array):
            return self.values_at(at)
        place = slice(-count, None) if at is None else at
        parts = [values[:, :, place] for _, values in self.layers]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    @property
    def heads(self) -> int:
        """KV heads H."""
        return int(self.new_keys.shape[1])

    @property
    def head_dim(self) -> int:
        """Features D of a key."""
        return int(self.new_keys.shape[3])

    def products(self, wanted: mx.array) -> mx.array:
        """Returns float32 [B, H, n, C]: the products of `wanted` [B, H, n, D] with all keys."""
        return self._by_layer(lambda part, keys, _: part @ keys.astype(mx.float32).swapaxes(-1, -2), wanted)

    def keys_at(self, slots: mx.array) -> mx.array:
        """Returns float32 [B, H, n, D]: the keys at slots int32 [B, H, n]."""
        found = self._by_layer(lambda at, keys, _: mx.take_along_axis(keys, at[..., None], axis=2), slots)
        return found.astype(mx.float32)

    def values_at(self, slots: mx.array) -> mx.array:
        """Returns [B, H, n, Dv] in the model's dtype: the values at slots int32 [B, H, n]."""
        return self._by_layer(lambda at, _, values: mx.take_along_axis(values, at[..., None], axis=2), slots)

    def _by_layer(self, work: Callable[[mx.array, mx.array, mx.array], mx.array], array: mx.array) -> mx.array:
        if len(self.layers) == 1:
            return work(array, *self.layers[0])
        parts = zip(mx.split(array, len(self.layers)), self.layers, strict=True)
        return mx.concatenate([work(part, *layer) for part, layer in parts])


class Policy:
    """One layer's eviction rule. Subclasses set the class attributes that apply and define `importance`."""

    # Layers of equal budgets are ranked in one go while decoding, which costs a few operations instead of a few a
    # layer. Such a policy asks nothing of `layer` then, keeps all it needs in its state, and reads what is held only
    # through `Rows.products`, `keys_at` and `values_at`.
    chooses_together: ClassVar[bool] = False
    needs_queries: ClassVar[bool] = False  # Rows.queries; runs only where the attention can be tapped
    key_as_query: ClassVar[bool] = False  # ranks by the newest key's logits (`newest_key_logits`)
    holds_prompt: ClassVar[bool] = False  # cuts to the budget once, when the whole prompt is in
    grows: ClassVar[bool] = False  # keeps every row that is decoded
    merges: ClassVar[bool] = False  # `merge` folds what is evicted into what stays
    renumbers: ClassVar[bool] = False  # RoPE positions are places in the cache; `present` turns keys to theirs
    slot_state: ClassVar[tuple[str, ...]] = ()  # names in State whose last axis is the slots
    pair_state: ClassVar[tuple[str, ...]] = ()  # names in State whose last two axes are the slots

    n_sink = 0  # first positions that are never evicted
    protected_recent = 0  # newest positions that are never evicted
    first_cut = 0  # tokens that must have been seen before anything is evicted
    slack = 0  # rows over the budget that may gather while decoding before it is cut again

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        self.params = dict(params)
        self.layer = layer or Layer()
        if "n_sink" in params:
            self.n_sink = int(params["n_sink"])

    def initial_state(self) -> State:
        """Returns what is known before any row: arrays with a first axis of 1 (the sequence)."""
        return {}

    def observe(self, rows: Rows, state: State) -> State:
        """Returns the state after `rows.new_keys` came in; called once per step or block, before eviction.

        Per-slot arrays arrive as wide as `rows`; a row's entry in a slot that was just written is stale (see `placed`).
        Numbers must stay finite.
        """
        return state

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns [B, H, C] float32: the lowest is evicted first, equal ones oldest first."""
        raise NotImplementedError

    def keep_scores(self, rows: Rows, state: State) -> mx.array:
        """Returns `importance` with +inf on sinks, protected recent rows and free slots; [B, H, C] float32.

        A worth that is no number goes first. Raises MethodError for an importance of another shape.
        """
        worth = self.importance(rows, state)
        if worth.shape != rows.positions.shape:
            raise MethodError(f"{type(self).__name__}.importance gave {worth.shape} for rows {rows.positions.shape}")
        # A free slot's position is -1, so the sink test covers it for every n_sink >= 0.
        protected = rows.positions < self.n_sink
        if self.protected_recent:
            protected = protected | (rows.positions > rows.newest - self.protected_recent)
        return mx.where(protected, mx.inf, mx.where(mx.isnan(worth), -mx.inf, worth))

    def present(self, rows: Rows, state: State, longest: int) -> mx.array:
        """Returns the keys [B, H, C, D] as attention is to see them; the new ones are at their places already.

        `longest`: no place so far was further. Only asked of policies that `renumbers`, once rows were evicted.
        """
        raise NotImplementedError

    def merge(
        self, rows: Rows, state: State, evicted: mx.array, over: mx.array | None
    ) -> tuple[mx.array, mx.array, State]:
        """Returns (slots int32 [B, H, n], their new values [B, H, n, Dv], state): what goes is folded into what stays.

        `evicted` int32 [B, H, k]: the slots that go, lowest first; `over` boolean [B, 1, 1] marks the sequences that
        evict (None: all). Only asked of policies that `merges`, right before the rows leave.
        """
        raise NotImplementedError


def fresh(rows: Rows) -> mx.array:
    """Returns boolean [B, H, C]: the rows that just came in, whose entries in per-slot state are stale."""
    return rows.positions > rows.newest - rows.new_keys.shape[2]


def placed(rows: Rows, old: mx.array | None, new: mx.array) -> mx.array:
    """Returns per-slot numbers [B, H, C]: `new` [B, H, S] at the rows that just came in, `old` at the others."""
    if rows.new_slots is not None:
        return mx.where(fresh(rows), new, 0.0 if old is None else old)
    return new if old is None else mx.concatenate([old[..., : old.shape[-1] - new.shape[-1]], new], axis=-1)


def masked_softmax(logits: mx.array, rows: Rows) -> mx.array:
    """Returns the softmax of `logits` [B, H, W, C] over the rows held, free slots left out; float32."""
    if rows.any_free:
        logits = mx.where(rows.positions[:, :, None, :] >= 0, logits, -mx.inf)
    return mx.softmax(logits.astype(mx.float32), axis=-1)


def attention_weights(queries: mx.array, rows: Rows) -> mx.array:
    """Returns the softmax attention of `queries` [B, H, W, D] over the rows held: [B, H, W, C] float32.

    Scaled by 1/sqrt(D), in float32, free slots left out. `queries` are keys standing in for queries in the
    adapted rules.
    """
    return masked_softmax(rows.products(queries.astype(mx.float32)) * (1.0 / float(rows.head_dim) ** 0.5), rows)


def newest_key_logits(rows: Rows) -> mx.array:
    """Returns [B, H, 1, C] float32: the logits of the newest key in place of a query, scaled by 1/sqrt(D)."""
    if rows.logits is not None:
        return rows.logits
    newest = rows.new_keys[:, :, -1:].astype(mx.float32)
    logits: mx.array = rows.products(newest) * (1.0 / float(rows.head_dim) ** 0.5)
    return logits


def newest_key_attention(rows: Rows) -> mx.array:
    """Returns [B, H, C] float32: the softmax attention of the newest key, in place of a query, to the rows held."""
    return masked_softmax(newest_key_logits(rows), rows)[:, :, 0]


def latest_attention(rows: Rows) -> mx.array:
    """Returns [B, H, G, C] float32: the newest query's softmax attention to the rows held, by query head."""
    if rows.weights is not None:
        return rows.weights
    assert rows.queries is not None
    queries = grouped(rows.queries[:, :, -1:], rows)[:, :, :, 0]
    return masked_softmax(rows.products(queries) * rows.scale, rows)


def grouped(queries: mx.array, rows: Rows) -> mx.array:
    """Returns `queries` [B, H_q, W, D] by the KV head they belong to: [B, H, H_q / H, W, D] float32."""
    batch, heads, count, dim = queries.shape
    return queries.astype(mx.float32).reshape(batch, rows.heads, heads // rows.heads, count, dim)


def latest(new: mx.array, old: mx.array | None, count: int) -> mx.array:
    """Returns the last `count` of `old` [B, H, count, D] and `new` [B, H, S, D]; `old` None: zeros before `new`."""
    new = new[:, :, -count:]
    if old is None:
        old = mx.zeros((*new.shape[:2], count, new.shape[-1]), new.dtype)
    return mx.concatenate([old[:, :, new.shape[2] :], new], axis=2)


def grouped_logits(queries: mx.array, keys: mx.array, scale: float) -> mx.array:
    """Returns the logits [B, H, G, W, C] of `queries` [B, H * G, W, D] with `keys` [B, H, C, D], float32."""
    batch, heads, slots, dim = keys.shape
    together = (queries.astype(mx.float32) * scale).reshape(batch, heads, -1, dim)  # one product a KV head
    logits = together @ keys.astype(mx.float32).swapaxes(-1, -2)
    return logits.reshape(batch, heads, -1, queries.shape[2], slots)
