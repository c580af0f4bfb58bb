"""EvictionCache: one layer's rows in slots, a policy that says what goes, and an honest count.

The model's contract is mlx-lm's: `offset` before RoPE, `make_mask`, then `update_and_fetch`. The policy's: append,
attend, then evict. What `update_and_fetch` returns still holds every row; what is evicted is gone for the next step.

While a prompt comes in, slots are in temporal order. While decoding, an evicted row leaves a hole that the next row
overwrites in place. How many rows a sequence holds is known on the host; which they are is not, and no step asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from velox_eval.caches import policy_state
from velox_eval.caches.attention import Lent, layer_mask
from velox_eval.caches.choosing import Step, evict_one, rows_of
from velox_eval.caches.counted import CountedCache
from velox_eval.caches.cutting import cut_chunk, cut_rows
from velox_eval.caches.slots import FREE, Slots, rows_mask
from velox_eval.errors import MethodError
from velox_eval.methods.policy import Policy, Rows, State
from velox_eval.mlx import mx
from velox_eval.mlx_lm import create_causal_mask

if TYPE_CHECKING:
    from velox_eval.caches.together import Together

GROWTH = 256  # slots added at a time to a cache that grows, as mlx-lm's KVCache does
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
        self._own_state: State = policy.initial_state()
        self.together: Together | None = None  # the layers that choose with this one
        self.prompt_done = False
        self.query_heads: int | None = None  # known once the attention tap has shown queries
        self._hole: mx.array | None = None  # int32 [B, H, 1], meant only where _has_hole
        self._has_hole = [False]
        self.written: slice | mx.array = slice(0, 0)  # where the last single row went
        self._attended_rows = [0]  # rows per sequence in what update_and_fetch last returned
        self.read_by_others = False  # later layers of the model attend to this layer's rows
        self._shown: tuple[mx.array, mx.array] | None = None  # what they attend to
        self._unseen_keys: mx.array | None = None  # new keys whose attention the policy still waits for
        self._scale = 0.0  # of the logits, as last shown

    # What the model asks.

    @property
    def offset(self) -> Any:
        """Returns the next token's position for RoPE: an int for one sequence, int32 [B] for several."""
        places = self.places
        return places[0] if len(places) == 1 else mx.array(places, mx.int32)

    @property
    def places(self) -> list[int]:
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
        if self.together is not None:
            self.together.begin(self)
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
        self.peak_slots = max(self.peak_slots, self.held_slots.count)
        self._attended_rows = self.rows
        held = self.held
        shown = self._renumbered(keys) if self.policy.renumbers and self.rows != self.tokens_seen else held.keys
        shown_values = held.values  # before anything is merged into them
        if self.policy.needs_queries or (self.tapped and self.policy.key_as_query):
            self._unseen_keys = keys
        else:
            self._observe_and_evict(Step(self, keys))
        if self.read_by_others:
            self._shown = shown, shown_values
        return shown, shown_values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Returns what `update_and_fetch` last returned, for layers that share this layer's rows."""
        if self._shown is None:
            raise MethodError("this cache keeps no rows for other layers: let a MethodSession build it for the model")
        return self._shown

    def _renumbered(self, new_keys: mx.array) -> mx.array:
        rows = rows_of([Step(self, new_keys)])
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

    def attended(self, queries: mx.array, scale: float, lent: Lent | None = None) -> None:
        """Shows the policy the queries [B, H_q, S, D] of this step and the logits' scale, once attention is done.

        `lent`: what attention had at hand; None: nothing.
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
        if not self.policy.needs_queries:
            logits = None if lent is None else lent.logits[:, :, -1:]
            self._observe_and_evict(Step(self, keys, scale=scale, logits=logits))
        elif lent is None:
            self._observe_and_evict(Step(self, keys, queries, scale))
        else:
            self._observe_and_evict(Step(self, keys, queries, scale, lent.logits[:, :, :-1], lent.weights))

    # Appending.

    @property
    def held_slots(self) -> Slots:
        """The slots, free ones included. Raises MethodError while nothing was fed."""
        if self.slots is None:
            raise MethodError("the cache is empty: nothing was fed yet")
        return self.slots

    @property
    def held(self) -> Slots:
        """The slots that hold rows, in the sequence that holds most."""
        return self.held_slots.first(max(self.rows))

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
        self.written = where
        self._has_hole = [False] * len(self.rows)

    def _new_positions(self, keys: mx.array) -> mx.array:
        batch, heads, new, _ = keys.shape
        places = mx.array([[list(range(seen, seen + new))] for seen in self.tokens_seen], mx.int32)
        return mx.broadcast_to(places, (batch, heads, new))

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

    def _observe_and_evict(self, step: Step) -> None:
        if all(budget is None for budget in self.budgets):
            return
        if step.new_keys.shape[2] > 1:
            cut_chunk(self, step)
            self.count_aux(self._state_bytes)
        elif not (self.policy.grows and self.prompt_done):  # else nothing will ever be evicted again
            if self.together is not None:
                self.together.add(step)
            else:
                self.choose(step)

    def choose(self, step: Step) -> None:
        """Has the policy see what came in with one token, and lets go of what is over the budget."""
        rows = rows_of([step])
        state = policy_state.fitted(self.policy, self.policy_state, rows.positions.shape[-1])
        self.policy_state = self.policy.observe(rows, state)
        self._evict(rows, self.excess())
        self.count_aux(self._state_bytes)

    def finish_prompt(self) -> None:
        """Cuts the prompt to the budget where the policy waits for its end, or let it grow over it token by token."""
        self.prompt_done = True
        excess = self._over(0)
        if self.slots is not None and any(excess):
            self._compact()
            self._evict(rows_of([Step(self, self.held.keys[:, :, :0], scale=self._scale)]), excess)
        if self.policy.grows:
            self.policy_state = {}

    def excess(self) -> list[int]:
        """Returns how many rows each sequence loses after this token."""
        if self.policy.grows or (self.policy.holds_prompt and not self.prompt_done):
            return [0] * len(self.rows)
        return self._over(self.policy.slack)

    def _over(self, slack: int) -> list[int]:
        counts = zip(self.rows, self.budgets, self.starts, self.tokens_seen, strict=True)
        return [
            rows - budget if budget is not None and rows > budget + slack and seen > start else 0
            for rows, budget, start, seen in counts
        ]

    def _evict(self, rows: Rows, excess: list[int]) -> None:
        """Frees `excess` rows of each sequence: one at a time by a hole, several by moving what stays together."""
        if max(excess) == 1:
            self.policy_state = evict_one([self], rows, self.policy_state, [count > 0 for count in excess])
        elif any(excess):
            cut_rows(self, self.policy.keep_scores(rows, self.policy_state), excess)

    def leave_hole(self, hole: mx.array, over: list[bool]) -> None:
        """Gives up the row at slot `hole` int32 [B, H, 1] of each sequence that is `over`; the next one goes there."""
        self._hole, self._has_hole = hole, over
        self.rows = [count - gone for count, gone in zip(self.rows, over, strict=True)]

    def moved(self, slots: Slots, rows: list[int]) -> None:
        """Takes other slots, in which each sequence holds `rows` rows without a hole."""
        self.slots, self.rows = slots, rows
        self._has_hole = [False] * len(rows)

    def _compact(self) -> None:
        """Brings the rows into temporal order in the first slots, so that a chunk can follow them."""
        if self.slots is None or not any(self._has_hole):
            return
        self.slots.positions = self.kept_positions()
        order = self.slots.temporal_order()[..., : self.rows[0]]
        self.policy_state = policy_state.gathered(self.policy, self.policy_state, order)
        self.moved(self.slots.gathered(order), self.rows)

    # The policy's state: the cache's own, or with those of the layers that choose together.

    @property
    def policy_state(self) -> State:
        """What the policy remembers of the rows here."""
        if self.together is not None:
            self.together.part()
        return self._own_state

    @policy_state.setter
    def policy_state(self, state: State) -> None:
        if self.together is not None:
            self.together.part()
        self._own_state = state

    def lend_state(self) -> State:
        """Returns the policy's state and forgets it: it goes on among those of other layers."""
        state, self._own_state = self._own_state, {}
        return state

    def take_back_state(self, state: State) -> None:
        """Takes the policy's state from among those of other layers."""
        self._own_state = state

    @property
    def _state_bytes(self) -> int:
        shared = self.together.layer_bytes if self.together is not None else 0
        return shared or sum(int(array.nbytes) for array in self._own_state.values())

    def count_aux(self, state_bytes: int) -> None:
        """Counts what is held beside keys and values at this moment into the peak; `state_bytes`: the policy's."""
        self.peak_aux_bytes = max(self.peak_aux_bytes, (self._place_bytes + state_bytes) // len(self.rows))

    @property
    def _place_bytes(self) -> int:
        arrays = [None if self.slots is None else self.slots.positions, self._hole]
        return sum(int(array.nbytes) for array in arrays if array is not None)

    def _settle(self) -> None:
        """Has what the last token costs gone, where this layer still waits for the others."""
        if self.together is not None:
            self.together.settle()

    # Counting.

    def kept_positions(self) -> mx.array:
        """Returns int32 [B, H, C]: the true position of the row in each slot, -1 where none is held."""
        self._settle()
        positions = self.held_slots.positions
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
        return self._place_bytes + self._state_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the key and value buffers, free slots included."""
        return self.slots.nbytes if self.slots else 0

    @property
    def state(self) -> list[mx.array]:
        """All arrays held, for mx.eval; states of layers that choose together are one."""
        arrays = [*self._own_state.values(), *(self.together.arrays if self.together is not None else [])]
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
        for cache in caches:
            cache._settle()
        first = caches[0]
        joined = cls(first.policy, None, evict_block=first.evict_block)
        for name in PER_SEQUENCE:
            setattr(joined, name, [item for cache in caches for item in getattr(cache, name)])
        joined.slots = Slots.stacked([cache.held_slots for cache in caches])
        joined.prompt_done = all(cache.prompt_done for cache in caches)
        joined.tapped = all(cache.tapped for cache in caches)
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
        return mx.zeros((*self.held_slots.positions.shape[:2], 1), mx.int32)

    def select(self, sequences: Sequence[int]) -> None:
        """Keeps only these sequences, in this order."""
        self._settle()
        index = mx.array(list(sequences))
        for name in PER_SEQUENCE:
            setattr(self, name, [getattr(self, name)[i] for i in sequences])
        self.slots = self.held_slots.selected(index)
        if self._hole is not None:
            self._hole = mx.take(self._hole, index, axis=0)
        self.policy_state = policy_state.selected(self.policy_state, index)
