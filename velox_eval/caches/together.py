"""Together: the layers of a model choose what goes in one round, once the last of them has attended.

A choice is made of a few dozen operations on small arrays, and each costs more to start than to do, on a CPU as on a
GPU. Thirty layers that repeat them pay thirty times. Nothing that is chosen matters before the next token, so layers
of the same policy, budgets and shapes wait for each other, and their states lie one after another in one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from velox_eval.caches import policy_state
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.choosing import Step, evict_one, joined, parted, rows_of
from velox_eval.methods.policy import State
from velox_eval.mlx import mx

TOGETHER_BYTES = 16_000_000  # states of one round: more would leave a processor's cache between two operations


def choose_together(caches: Sequence[Any]) -> None:
    """Has those layers choose in one go from the next token on whose policy, budgets and shapes allow it.

    `caches` are all layers of a model, or of a batch of sequences that decode together, their prompts in.
    """
    groups: dict[Any, list[EvictionCache]] = {}
    for cache in caches:
        if isinstance(cache, EvictionCache) and cache.policy.chooses_together and cache.slots is not None:
            shapes = (cache.slots.keys.shape[1::2], cache.slots.values.shape[3])
            settings = tuple(sorted(cache.policy.params.items()))
            key = type(cache.policy), settings, shapes, tuple(cache.budgets), tuple(cache.starts)
            groups.setdefault(key, []).append(cache)
    for members in groups.values():
        size = max(1, TOGETHER_BYTES // max(1, _bytes_when_full(members[0])))
        for start in range(0, len(members), size):
            if len(members[start : start + size]) > 1:
                Together(members[start : start + size])


def _bytes_when_full(cache: EvictionCache) -> int:
    """The bytes beside keys and values once the budget is reached, from what they are now."""
    budget = max((budget for budget in cache.budgets if budget is not None), default=0)
    growth = max(1.0, budget / max(cache.rows))
    return int(cache.aux_bytes * growth ** (2 if cache.policy.pair_state else 1))


def stacked(batches: Sequence[list[Any]]) -> list[Any]:
    """Returns one list of caches, one a layer, for the sequences of all `batches`; those given are used up.

    It goes layer by layer, so that no more than one layer is held twice.
    """
    joint: list[Any] = []
    for layer in range(len(batches[0])):
        joint.append(EvictionCache.stack([batch[layer] for batch in batches]))
        for batch in batches:
            batch[layer] = None
        mx.eval(joint[layer].state)
    choose_together(joint)
    return joint


class Together:
    """Layers that choose in one go; each one's `together` from now on.

    Whoever asks a layer for its state, or gives it another, ends that for the moment: `part`. The next token brings
    the states together again.
    """

    def __init__(self, members: Sequence[EvictionCache]) -> None:
        # Weak: members hold this, and a cycle would keep their buffers until somebody collects garbage.
        self._members = [ref(cache) for cache in members]
        self._index = {id(cache): index for index, cache in enumerate(members)}
        self._waiting: dict[int, Step] = {}  # by the member's index
        self._state: State | None = None  # of all members; None while each has its own
        for cache in members:
            cache.together = self

    @property
    def arrays(self) -> list[mx.array]:
        """All members' states, where they lie together; else nothing."""
        return list((self._state or {}).values())

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's part of `arrays`."""
        return sum(int(array.nbytes) for array in self.arrays) // len(self._members)

    def begin(self, cache: EvictionCache) -> None:
        """Called before a layer's next token: one that still waits is out of step, and all choose alone from now on."""
        if self._index[id(cache)] in self._waiting:
            self.part()
            for member in self._members:
                if (layer := member()) is not None:
                    layer.together = None

    def settle(self) -> None:
        """Has layers that wait choose by themselves, so that what they hold can be looked at."""
        if self._waiting:
            self.part()

    def add(self, step: Step) -> None:
        """Takes one layer's step; the last layer's has all of them choose."""
        self._waiting[self._index[id(step.cache)]] = step
        if len(self._waiting) == len(self._members):
            members = [self._waiting[index].cache for index in range(len(self._waiting))]
            if _alike(members):
                self._choose(members)
            else:
                self.part()

    def part(self) -> None:
        """Gives each layer its own state, and has those that wait choose by themselves."""
        if self._state is not None:
            state, self._state = self._state, None
            parts = {name: parted(array, len(self._members)) for name, array in state.items()}
            for index, member in enumerate(self._members):
                cache = member()
                if cache is not None:
                    cache.take_back_state({name: arrays[index] for name, arrays in parts.items()})
        waiting, self._waiting = self._waiting, {}
        for step in waiting.values():
            step.cache.choose(step)

    def _choose(self, caches: Sequence[EvictionCache]) -> None:
        rows, policy = rows_of([self._waiting[index] for index in range(len(caches))]), caches[0].policy
        self._waiting, state = {}, self._state
        if state is None:
            own = [cache.lend_state() for cache in caches]
            state = {name: joined([each[name] for each in own]) for name in own[0]}
        self._state = None  # nothing else may hold what the policy writes to
        state = policy.observe(rows, policy_state.fitted(policy, state, rows.positions.shape[-1]))
        over = [count > 0 for count in caches[0].excess()]
        self._state = evict_one(caches, rows, state, over) if any(over) else state
        for cache in caches:
            cache.count_aux(self.layer_bytes)


def _alike(caches: Sequence[EvictionCache]) -> bool:
    """Whether the layers hold as many rows and lose one at most, so that one layer's counts are all theirs."""
    first, *others = caches
    if max(first.excess()) > 1:
        return False
    counts = first.budgets, first.starts, first.rows, first.tokens_seen, type(first.written)
    return all(
        counts == (cache.budgets, cache.starts, cache.rows, cache.tokens_seen, type(cache.written)) for cache in others
    )
