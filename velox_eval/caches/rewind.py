"""Taking a cache back to an earlier point of its prompt, and forth again: for passes that leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from velox_eval.caches import policy_state
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.slots import FREE
from velox_eval.errors import MethodError


@contextmanager
def rewound(cache: EvictionCache, count: int) -> Iterator[None]:
    """Has the cache take what is fed meanwhile as if its sequences had ended after `count` tokens.

    Afterwards it holds what it held. The policy observes what is fed, and the peaks count it together with the rows
    set aside. Raises MethodError unless the prompt is still held whole.
    """
    slots, (held, *_) = cache.held_slots, cache.rows
    if cache.rows != cache.tokens_seen or set(cache.rows) != {held} or not 0 < count <= held:
        raise MethodError(f"only a prompt still held whole can be taken back to its first {count} tokens")
    aside = slots.copied(count, held)
    peak_rows, peak_slots, attended = cache.peak_rows, cache.peak_slots, cache._attended_rows
    cache.peak_rows, cache.peak_slots = [0] * len(cache.rows), 0
    cache.rows, cache.tokens_seen = [count] * len(cache.rows), [count] * len(cache.rows)
    try:
        yield
    finally:
        cache._unseen_keys, cache._attended_rows = None, attended
        transit = [now + held - count for now in cache.peak_rows]
        cache.peak_rows = [max(pair) for pair in zip(peak_rows, transit, strict=True)]
        cache.peak_slots = max(peak_slots, cache.peak_slots + held - count)
        cache.rows, cache.tokens_seen = [held] * len(cache.rows), [held] * len(cache.rows)
        slots.positions[:, :, held:] = FREE
        if count < held:
            slots.write(slice(count, held), aside.keys, aside.values, aside.positions)
        cache.policy_state = policy_state.fitted(cache.policy, cache.policy_state, held)
