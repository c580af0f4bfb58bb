"""EvictionCache: one layer's rows in slots, a policy that says what goes, and an honest count.

The model's contract is mlx-lm's: `offset` before RoPE, `make_mask`, then `update_and_fetch`. The policy's: append,
attend, then evict. What `update_and_fetch` returns still holds every row; what is evicted is gone for the next step.

While a prompt comes in, slots are in temporal order. While decoding, an evicted row leaves a hole that the next row
overwrites in place. How many rows a sequence holds is known on the host; which they are is not, and no step asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from velox_eval.caches import policy_state
from velox_eval.caches.attention import layer_mask
from velox_eval.caches.counted import CountedCache
from velox_eval.caches.slots import (
    FREE,
    Slots,
    highest_slots,
    joint,
    lowest_slot,
    lowest_slots,
    rows_mask,
)
from velox_eval.errors import MethodError
from velox_eval.methods.policy import Policy, Rows, State
from velox_eval.mlx import mx
from velox_eval.mlx_lm import create_causal_mask

GROWTH = 256  # slots added at a time to a cache that grows, as mlx-lm's KVCache does
FLUSH = 32  # blocks of a block-wise prefill between evaluations, to keep the graph short
PER_SEQUENCE = ("budgets", "starts", "rows", "tokens_seen", "peak_rows", "_has_hole")


class EvictionCache(CountedCache):
    """One layer's cache for B sequences.

    `budgets[b]` bounds the rows per KV head of sequence b after each step (None: unbounded); nothing is
    evicted before more than `starts[b]` tokens were seen (a layer's share of a budget starts with the whole).
    `evict_block`: rows of a chunk that are evicted together (None: the whole chunk at once).
    """

    def __init__(
        self, policy: Policy, budget: int | None, *, start: int | None = None, evict_block: int | None = None
    ) -> None:
        super().__init__(budget)
        self.policy = policy
        self.evict_block = evict_block
        self.starts: list[int] = [max(start if start is not None else budget or 0, policy.first_cut - 1)]
        self.slots: Slots | None = None
        self.policy_state: State = policy.initial_state()
        self.prompt_done = False
        self.query_heads: int | None = None  # known once the attention tap has shown queries
        self._hole: mx.array | None = None  # int32 [B, H, 1], meant only where _has_hole
        self._has_hole = [False]
        self._written: slice | mx.array = slice(0, 0)  # where the last single row went
        self._attended_rows = [0]  # rows per sequence in what update_and_fetch last returned
        self.read_by_others = False  # later layers of the model attend to this layer's rows
        self._shown: tuple[mx.array, mx.array] | None = None  # what they attend to
        self._unseen_keys: mx.array | None = None  # new keys whose attention the policy still waits for
        self._scale = 0.0  # of the logits, as last shown
        self._logits: mx.array | None = None  # of the step that is being observed, as Rows has them

    # What the model asks.

    @property
    def offset(self) -> Any:
        """Returns the next token's position for RoPE: an int for one sequence, int32 [B] for several."""
        places = self._places
        return places[0] if len(places) == 1 else mx.array(places, mx.int32)

    @property
    def _places(self) -> list[int]:
        """The number of tokens seen, or of rows held where the policy renumbers them."""
        return self.rows if self.policy.renumbers else self.tokens_seen

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """Returns the mask for N new tokens: None, "causal" (lower-right aligned) or a boolean array.

        Raises MethodError when the model wants this layer masked to a window that the sequence outgrows.
        """
        if window_size is not None and max(self.tokens_seen) + N > window_size:
            raise MethodError(
                f"this model masks a layer to a window of {window_size} tokens through a plain cache; "
                "eviction there is not supported"
            )
        if N == 1:
            return rows_mask([rows + 1 for rows in self.rows])
        return create_causal_mask(N, self.rows[0]) if return_array else "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends rows [B, H, S, D] and returns all rows held, new ones included, for this step's attention.

        Raises MethodError when several tokens at once meet sequences of different lengths.
        """
        if self._unseen_keys is not None:
            raise MethodError("this method ranks by the model's queries: run it inside a MethodSession")
        self._shown = None  # nothing else may hold the buffers that are written to
        new = keys.shape[2]
        if keys.shape[0] != len(self.rows):
            self._set_batch(keys.shape[0])
        if new > 1:
            self._append_chunk(keys, values)
        else:
            self._append_one(keys, values)
        self.rows = [rows + new for rows in self.rows]
        self.tokens_seen = [seen + new for seen in self.tokens_seen]
        self.peak_rows = [max(peak, rows) for peak, rows in zip(self.peak_rows, self.rows, strict=True)]
        self.peak_slots = max(self.peak_slots, self._held_slots.count)
        self._attended_rows = self.rows
        held = self._held
        shown = self._renumbered(keys) if self.policy.renumbers and self.rows != self.tokens_seen else held.keys
        shown_values = held.values  # before anything is merged into them
        if self.policy.needs_queries or (self.tapped and self.policy.key_as_query):
            self._unseen_keys = keys
        else:
            self._observe_and_evict(keys, None, 0.0)
        if self.read_by_others:
            self._shown = shown, shown_values
        return shown, shown_values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Returns what `update_and_fetch` last returned, for layers that share this layer's rows."""
        if self._shown is None:
            raise MethodError("this cache keeps no rows for other layers: let a MethodSession build it for the model")
        return self._shown

    def _renumbered(self, new_keys: mx.array) -> mx.array:
        rows = self._view(new_keys, None, 0.0)
        state = policy_state.fitted(self.policy, self.policy_state, rows.positions.shape[-1])
        return self.policy.present(rows, state, max(self.peak_rows))

    # What the attention tap asks.

    def mask_for(self, new: int, slots: int, mask: Any) -> Any:
        """Returns the mask this layer needs for `new` queries over `slots` rows, given the model's own."""
        return layer_mask(self._attended_rows, new, slots, mask)

    @property
    def awaits_queries(self) -> bool:
        """Whether the policy waits to be shown the last step's attention."""
        return self._unseen_keys is not None

    @property
    def probe(self) -> mx.array | None:
        """The newest keys [B, H, 1, D] where the policy has them stand in for queries."""
        return self._unseen_keys if self.policy.key_as_query else None

    def attended(self, queries: mx.array, scale: float, logits: mx.array | None = None) -> None:
        """Shows the policy the queries [B, H_q, S, D] of this step and the logits' scale, once attention is done.

        `logits` [B, H, G + 1, C]: those of one token's queries, scaled, and of the probe; None: not at hand.
        """
        keys, self._unseen_keys = self._unseen_keys, None
        self.query_heads = queries.shape[1]
        self._scale = scale
        if keys is None:
            return
        if self.policy.needs_queries and queries.shape[-1] != keys.shape[-1]:
            raise MethodError(
                f"this model's queries have {queries.shape[-1]} dimensions, and its cache holds latents of "
                f"{keys.shape[-1]}: a method that ranks by queries cannot run on it; use the adapted variant"
            )
        self._logits = logits
        self._observe_and_evict(keys, queries if self.policy.needs_queries else None, scale)
        self._logits = None

    # Appending.

    @property
    def _held_slots(self) -> Slots:
        if self.slots is None:
            raise MethodError("the cache is empty: nothing was fed yet")
        return self.slots

    @property
    def _held(self) -> Slots:
        return self._held_slots.first(max(self.rows))

    def _set_batch(self, batch: int) -> None:
        if self.slots is not None or len(self.rows) != 1:
            raise MethodError(f"the cache holds {len(self.rows)} sequences but {batch} came in")
        for name in PER_SEQUENCE:
            setattr(self, name, getattr(self, name) * batch)
        self.policy_state = {name: mx.repeat(array, batch, axis=0) for name, array in self.policy_state.items()}

    def _append_chunk(self, keys: mx.array, values: mx.array) -> None:
        if len(set(self.rows)) > 1:
            raise MethodError("several tokens at once need sequences with equally many rows; feed one at a time")
        self._compact()
        held = self.rows[0]
        slots = self._reserve(held + keys.shape[2], keys, values)
        slots.write(slice(held, held + keys.shape[2]), keys, values, self._new_positions(keys))

    def _append_one(self, keys: mx.array, values: mx.array) -> None:
        slots = self._reserve(max(self.rows) + 1, keys, values)
        if not any(self._has_hole) and len(set(self.rows)) == 1:
            where: slice | mx.array = slice(self.rows[0], self.rows[0] + 1)
        elif self._hole is not None and all(self._has_hole):
            where = self._hole
        else:
            where = mx.broadcast_to(mx.array(self.rows, mx.int32)[:, None, None], (*keys.shape[:2], 1))
            if self._hole is not None:
                where = mx.where(mx.array(self._has_hole)[:, None, None], self._hole, where)
        slots.write(where, keys, values, self._new_positions(keys))
        self._written = where
        self._has_hole = [False] * len(self.rows)

    def _new_positions(self, keys: mx.array) -> mx.array:
        batch, heads, new, _ = keys.shape
        first = mx.array(self.tokens_seen, mx.int32)[:, None, None]
        return mx.broadcast_to(first + mx.arange(new, dtype=mx.int32), (batch, heads, new))

    def _reserve(self, needed: int, keys: mx.array, values: mx.array) -> Slots:
        """Makes room for `needed` slots, in steps of GROWTH up to the budget and the row that goes over it."""
        count = -(-needed // GROWTH) * GROWTH
        budgets = [budget for budget in self.budgets if budget is not None]
        if len(budgets) == len(self.budgets) and not self.policy.grows:
            bound = max([*budgets, *self.starts]) + self.policy.slack + 1
            count = max(needed, min(count, bound))
        if self.slots is None:
            self.slots = Slots.free(count, keys, values)
        elif needed > self.slots.count:
            self.slots.grow(count)
        return self.slots

    # Evicting.

    def _observe_and_evict(self, new_keys: mx.array, queries: mx.array | None, scale: float) -> None:
        if all(budget is None for budget in self.budgets):
            return
        if new_keys.shape[2] > 1:
            self._evict_from_chunk(new_keys, queries, scale)
        else:
            grows = self.policy.grows
            if not (grows and self.prompt_done):  # else nothing will ever be evicted again
                rows = self._view(new_keys, queries, scale)
                self._observe(rows)
                if not grows and (self.prompt_done or not self.policy.holds_prompt):
                    self._evict(rows, self._excess(self.policy.slack))
        self.peak_aux_bytes = max(self.peak_aux_bytes, self.aux_bytes // len(self.rows))

    def finish_prompt(self) -> None:
        """Cuts the prompt to the budget where the policy waits for its end, or let it grow over it token by token."""
        self.prompt_done = True
        excess = self._excess(0)
        if self.slots is not None and any(excess):
            self._compact()
            self._evict(self._view(self._held.keys[:, :, :0], None, self._scale), excess)
        if self.policy.grows:
            self.policy_state = {}

    def _excess(self, slack: int) -> list[int]:
        """Returns how many rows each sequence must lose now."""
        counts = zip(self.rows, self.budgets, self.starts, self.tokens_seen, strict=True)
        return [
            rows - budget if budget is not None and rows > budget + slack and seen > start else 0
            for rows, budget, start, seen in counts
        ]

    def _view(self, new_keys: mx.array, queries: mx.array | None, scale: float) -> Rows:
        held, new = self._held, new_keys.shape[2]
        return Rows(
            held.keys,
            held.values,
            held.positions,
            newest=joint([seen - 1 for seen in self.tokens_seen]),
            place=joint([place - new for place in self._places]),
            seen=tuple(self.tokens_seen),
            new_keys=new_keys,
            new_slots=self._written,
            any_free=len(set(self.rows)) > 1,
            queries=queries,
            scale=scale,
            budgets=tuple(self.budgets),
            logits=self._logits,
        )

    def _observe(self, rows: Rows) -> None:
        state = policy_state.fitted(self.policy, self.policy_state, rows.positions.shape[-1])
        self.policy_state = self.policy.observe(rows, state)

    def _evict(self, rows: Rows, excess: list[int]) -> None:
        """Frees `excess` rows of each sequence: one at a time by a hole, several by moving what stays together."""
        if not any(excess):
            return
        scores = self.policy.keep_scores(rows, self.policy_state)
        over = [count > 0 for count in excess]
        if max(excess) == 1:
            self._hole, self._has_hole = lowest_slot(scores, rows.positions), over
            if self.policy.merges:
                mask = None if all(over) else mx.array(over)[:, None, None]
                where, values, self.policy_state = self.policy.merge(rows, self.policy_state, self._hole, mask)
                self._held_slots.put_values(where, values)
        else:
            self._evict_several(scores, excess)
        self.rows = [count - gone for count, gone in zip(self.rows, excess, strict=True)]

    def _evict_several(self, scores: mx.array, excess: list[int]) -> None:
        if self.policy.merges:
            raise MethodError("a merging method evicts one row at a time while decoding")
        slots, parts, states = self._held_slots, [], []
        for sequence, gone in enumerate(excess):
            index = mx.array([sequence])
            part, count = slots.selected(index), self.rows[sequence]
            state = policy_state.selected(self.policy_state, index)
            if gone:
                order = part.temporal_order()[..., :count]
                ranked = mx.take_along_axis(scores[sequence : sequence + 1], order, axis=-1)
                kept = mx.take_along_axis(order, highest_slots(ranked, count - gone), axis=-1)
                part = part.gathered(kept)
                state = policy_state.gathered(self.policy, state, kept)
            parts.append(part)
            states.append(state)
        self.slots = Slots.stacked(parts)
        self.policy_state = policy_state.stacked(self.policy, states)
        self._has_hole = [False] * len(self.rows)

    def _evict_from_chunk(self, new_keys: mx.array, queries: mx.array | None, scale: float) -> None:
        """Evicts down to the budget block by block, in temporal order; a block sees only rows before its end."""
        new, budget = new_keys.shape[2], self.budgets[0]
        slots, held = self._held_slots, self.rows[0] - new
        before = self.tokens_seen[0] - new
        block = min(self.evict_block or new, new)
        kept: mx.array | None = None  # int32 [B, H, n]: slots kept so far; None: all up to `end`
        for start in range(0, new, block):
            end = held + min(start + block, new)
            if kept is not None:
                arrived = mx.arange(held + start, end, dtype=mx.int32)
                kept = mx.concatenate([kept, mx.broadcast_to(arrived, (*kept.shape[:2], arrived.size))], axis=2)
            part = slots.first(end) if kept is None else slots.gathered(kept)
            rows = Rows(
                part.keys,
                part.values,
                part.positions,
                newest=before + end - held - 1,
                place=self._places[0] - new + start,
                seen=(before + end - held,) * len(self.rows),
                new_keys=new_keys[:, :, start : end - held],
                new_slots=None,
                any_free=False,
                queries=None if queries is None else queries[:, :, start : end - held],
                scale=scale,
                budgets=tuple(self.budgets),
            )
            self._observe(rows)
            seen = before + end - held
            if not self.policy.holds_prompt and budget is not None and part.count > budget and seen > self.starts[0]:
                scores = self.policy.keep_scores(rows, self.policy_state)
                if self.policy.merges:
                    gone = lowest_slots(scores, part.count - budget)
                    where, values, self.policy_state = self.policy.merge(rows, self.policy_state, gone, None)
                    slots.put_values(where if kept is None else mx.take_along_axis(kept, where, axis=2), values)
                best = highest_slots(scores, budget)
                kept = best if kept is None else mx.take_along_axis(kept, best, axis=2)
                self.policy_state = policy_state.gathered(self.policy, self.policy_state, best)
            if block < new and start // block % FLUSH == FLUSH - 1:
                mx.eval([array for array in (kept, slots.values) if array is not None], self.policy_state)
        if kept is not None:
            self.slots = slots.gathered(kept)
            self.rows = [kept.shape[2]] * len(self.rows)

    def _compact(self) -> None:
        """Brings the rows into temporal order in the first slots, so that a chunk can follow them."""
        if self.slots is None or not any(self._has_hole):
            return
        self.slots.positions = self.kept_positions()
        order = self.slots.temporal_order()[..., : self.rows[0]]
        self.slots = self.slots.gathered(order)
        self.policy_state = policy_state.gathered(self.policy, self.policy_state, order)
        self._has_hole = [False] * len(self.rows)

    # Counting.

    def kept_positions(self) -> mx.array:
        """Returns int32 [B, H, C]: the true position of the row in each slot, -1 where none is held."""
        positions = self._held_slots.positions
        if self._hole is None or not any(self._has_hole):
            return positions
        here = (mx.arange(positions.shape[-1]) == self._hole) & mx.array(self._has_hole)[:, None, None]
        return mx.where(here, FREE, positions)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (key and value, all KV heads), from the arrays held."""
        return self.slots.row_bytes if self.slots else 0

    @property
    def aux_bytes(self) -> int:
        """Bytes held beside keys and values: positions, holes and the policy's state, all sequences."""
        return sum(int(array.nbytes) for array in self.state) - self.allocated_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the key and value buffers, free slots included."""
        return self.slots.nbytes if self.slots else 0

    @property
    def state(self) -> list[mx.array]:
        """All arrays held, for mx.eval."""
        arrays = [*self.policy_state.values()]
        if self.slots is not None:
            arrays += [self.slots.keys, self.slots.values, self.slots.positions]
        if self._hole is not None:
            arrays.append(self._hole)
        return arrays

    @state.setter
    def state(self, _value: Any) -> None:
        raise MethodError("an eviction cache cannot be restored from arrays alone; prefill the prompt again")

    # Batching, by our engine only.

    @classmethod
    def stack(cls, caches: Sequence[EvictionCache]) -> EvictionCache:
        """Returns one cache holding the sequences of all, in order; those given must not be used afterwards."""
        first = caches[0]
        joined = cls(first.policy, None, evict_block=first.evict_block)
        for name in PER_SEQUENCE:
            setattr(joined, name, [item for cache in caches for item in getattr(cache, name)])
        joined.slots = Slots.stacked([cache._held_slots for cache in caches])
        joined.prompt_done = all(cache.prompt_done for cache in caches)
        joined._scale, joined.read_by_others = first._scale, first.read_by_others
        joined.policy_state = policy_state.stacked(first.policy, [cache.policy_state for cache in caches])
        if any(joined._has_hole):
            joined._hole = mx.concatenate([cache._hole_or_first for cache in caches], axis=0)
        joined.peak_slots = max(cache.peak_slots for cache in caches)
        joined.peak_aux_bytes = max(cache.peak_aux_bytes for cache in caches)
        return joined

    @property
    def _hole_or_first(self) -> mx.array:
        if self._hole is not None:
            return self._hole
        return mx.zeros((*self._held_slots.positions.shape[:2], 1), mx.int32)

    def select(self, sequences: Sequence[int]) -> None:
        """Keeps only these sequences, in this order."""
        index = mx.array(list(sequences))
        for name in PER_SEQUENCE:
            setattr(self, name, [getattr(self, name)[i] for i in sequences])
        self.slots = self._held_slots.selected(index)
        if self._hole is not None:
            self._hole = mx.take(self._hole, index, axis=0)
        self.policy_state = policy_state.selected(self.policy_state, index)
