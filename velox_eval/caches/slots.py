"""Slots: the key and value buffers of one layer and the true position of what lies in each slot."""

from __future__ import annotations

from collections.abc import Sequence

from velox_eval.mlx import mx

FREE = -1  # position of a slot that holds no row
LAST = 2**31 - 1  # sorts after every position


class Slots:
    """Keys [B, H, C, D], values [B, H, C, Dv] and positions [B, H, C] (int32, FREE where no row is held)."""

    def __init__(self, keys: mx.array, values: mx.array, positions: mx.array) -> None:
        self.keys = keys
        self.values = values
        self.positions = positions

    @classmethod
    def free(cls, count: int, keys: mx.array, values: mx.array) -> Slots:
        """Returns `count` free slots for rows like these keys and values [B, H, S, D]."""
        batch, heads = keys.shape[:2]
        return cls(
            mx.zeros((batch, heads, count, keys.shape[3]), keys.dtype),
            mx.zeros((batch, heads, count, values.shape[3]), values.dtype),
            mx.full((batch, heads, count), FREE, mx.int32),
        )

    @property
    def count(self) -> int:
        """Number of slots C."""
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of the key and value buffers."""
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of one sequence: key and value, all heads."""
        return self.nbytes // (self.keys.shape[0] * self.count)

    def grow(self, count: int) -> None:
        """Adds free slots up to `count`."""
        more = Slots.free(count - self.count, self.keys, self.values)
        self.keys = mx.concatenate([self.keys, more.keys], axis=2)
        self.values = mx.concatenate([self.values, more.values], axis=2)
        self.positions = mx.concatenate([self.positions, more.positions], axis=2)

    def write(self, where: slice | mx.array, keys: mx.array, values: mx.array, positions: mx.array) -> None:
        """Writes rows at a range of slots, or one row per head at slots int32 [B, H, 1]."""
        if isinstance(where, slice):
            self.keys[:, :, where] = keys
            self.values[:, :, where] = values
            self.positions[:, :, where] = positions
        else:  # happens in place when nothing else refers to the buffers
            self.keys = mx.put_along_axis(self.keys, where[..., None], keys, axis=2)
            self.values = mx.put_along_axis(self.values, where[..., None], values, axis=2)
            self.positions = mx.put_along_axis(self.positions, where, positions, axis=2)

    def put_values(self, where: mx.array, values: mx.array) -> None:
        """Overwrites the values alone, at slots int32 [B, H, n]; who was handed them before keeps the old ones."""
        self.values = mx.put_along_axis(self.values, where[..., None], values, axis=2)

    def temporal_order(self) -> mx.array:
        """Returns int32 [B, H, C]: the slots from the oldest row to the newest, free ones last."""
        return mx.argsort(mx.where(self.positions == FREE, LAST, self.positions), axis=-1).astype(mx.int32)

    def first(self, count: int) -> Slots:
        """Returns the first `count` slots, without a copy."""
        if count == self.count:
            return self
        return Slots(self.keys[:, :, :count], self.values[:, :, :count], self.positions[:, :, :count])

    def copied(self, start: int, end: int) -> Slots:
        """Returns a copy of a range of slots, so that the buffers can still be written in place."""
        parts = [mx.contiguous(array[:, :, start:end]) for array in (self.keys, self.values, self.positions)]
        mx.eval(parts)
        return Slots(*parts)

    def gathered(self, index: mx.array) -> Slots:
        """Returns new slots holding the rows at `index` int32 [B, H, n], in that order."""
        return Slots(
            mx.take_along_axis(self.keys, index[..., None], axis=2),
            mx.take_along_axis(self.values, index[..., None], axis=2),
            mx.take_along_axis(self.positions, index, axis=2),
        )

    def selected(self, sequences: mx.array) -> Slots:
        """Returns the slots of these sequences only, in this order."""
        return Slots(*(mx.take(array, sequences, axis=0) for array in (self.keys, self.values, self.positions)))

    @classmethod
    def stacked(cls, parts: Sequence[Slots]) -> Slots:
        """Returns the sequences of all parts, free slots added where a part has fewer."""
        count = max(part.count for part in parts)
        for part in parts:
            if part.count < count:
                part.grow(count)
        return cls(
            mx.concatenate([part.keys for part in parts], axis=0),
            mx.concatenate([part.values for part in parts], axis=0),
            mx.concatenate([part.positions for part in parts], axis=0),
        )


def rows_mask(rows: list[int]) -> mx.array | None:
    """Returns boolean [B, 1, 1, max(rows)], true where a slot holds a row; None if all do."""
    if len(set(rows)) == 1:
        return None
    return (mx.arange(max(rows)) < mx.array(rows, mx.int32)[:, None])[:, None, None, :]


def lowest_slot(scores: mx.array, positions: mx.array) -> mx.array:
    """Returns int32 [B, H, 1]: the slot with the lowest of `scores` [B, H, C], of equal ones the oldest."""
    lowest = scores == scores.min(axis=-1, keepdims=True)
    return mx.argmin(mx.where(lowest, positions, LAST), axis=-1, keepdims=True).astype(mx.int32)


def highest_slots(scores: mx.array, count: int) -> mx.array:
    """Returns int32 [B, H, count]: the slots to keep, ascending; `scores` in temporal order.

    The sort is stable, so of equal scores the oldest goes first.
    """
    order = mx.argsort(scores, axis=-1)[..., scores.shape[-1] - count :]
    return mx.sort(order, axis=-1).astype(mx.int32)


def lowest_slots(scores: mx.array, count: int) -> mx.array:
    """Returns int32 [B, H, count]: the slots that go, lowest first; the complement of `highest_slots`."""
    return mx.argsort(scores, axis=-1)[..., :count].astype(mx.int32)
