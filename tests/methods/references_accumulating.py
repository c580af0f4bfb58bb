"""The accumulating rules written again in NumPy: H2O, Keyformer, ChunkKV, CaM. One KV head, one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from .references import Array, Head, Reference, attention


class Accumulating(Reference):
    """Keeps a number a row, by position: what the row gathered."""

    def __init__(self, head: Head, params: Any, budget: int) -> None:
        super().__init__(head, params, budget)
        self.mass: dict[int, np.float32] = {}

    def observe(self, start: int, end: int) -> None:
        for token in range(start, end):
            self.mass[token] = np.float32(0)
            self.pay(token)

    def pay(self, token: int) -> None:
        """The new key pays the rows before it; the very first row starts at one."""
        before = self.positions[self.positions < token]
        if not len(before):
            self.mass[token] = np.float32(1)
            return
        decay = np.float32(self.params.get("decay", 1.0))
        weights = attention(self.head.keys[token : token + 1], self.head.keys[before])[0]
        for position, weight in zip(before, weights, strict=True):
            self.mass[position] = self.mass[position] * decay + weight

    def gathered(self) -> Array:
        return np.array([self.mass[position] for position in self.positions], np.float32)


class H2O(Accumulating):
    def worth(self) -> Array:
        return self.protect(self.gathered(), self.params["n_sink"], self.params["grace"])


class H2OPaper(Accumulating):
    def pay(self, token: int) -> None:
        """Every query head of the group pays the rows up to the token."""
        seen = self.positions[self.positions <= token]
        for queries in self.head.queries:
            weights = attention(queries[token : token + 1], self.head.keys[seen])[0]
            for position, weight in zip(seen, weights, strict=True):
                self.mass[position] += weight

    def worth(self) -> Array:
        return self.protect(self.gathered(), 0, int(self.params.get("recent_ratio", 0.5) * self.budget))
