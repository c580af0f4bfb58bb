"""The accumulating rules written again in NumPy: H2O, Keyformer, ChunkKV, CaM. One KV head, one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from velox_eval.mlx import mx

from .references import Array, Head, Reference, attention, softmax


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


STRIDE = 1_000_003


class Keyformer(Accumulating):
    """Layer 0 of a sample seeded 0: the stream of head h is seed + h."""

    def tau(self, step: int) -> float:
        first, last, steps = (self.params.get(key, other) for key, other in TAU.items())
        return float(first if not steps else first + min(step, steps) * (last - first) / steps)

    def worth(self) -> Array:
        stream = self.params.get("seed", 0) + self.head.index
        noise = [
            mx.random.uniform(1e-9, 1.0, key=mx.random.key(stream * STRIDE + position)).item()
            for position in self.positions.tolist()
        ]
        drawn = -np.log(-np.log(np.array(noise, np.float32)))
        worth = self.gathered() + np.float32(self.tau(int(self.positions[-1]))) * drawn
        return self.protect(worth, self.params["n_sink"], self.params["recent"])


TAU = {"tau_init": 1.0, "tau_end": 1.0, "anneal_steps": 0}


def mixed(bits: int) -> int:
    """An integer hash of 32 bits."""
    bits = ((bits ^ (bits >> 16)) * 0x21F0AAAD) % 2**32
    bits = ((bits ^ (bits >> 15)) * 0x735A2D97) % 2**32
    return bits ^ (bits >> 15)


def hashed(stream: int, *places: int) -> float:
    """A uniform number for a stream and places."""
    bits = mixed((stream * 0x9E3779B9 + (stream >> 32)) % 2**32)
    for place in places:
        bits = mixed((bits + place * 0x9E3779B9) % 2**32)
    return ((bits >> 9) + 0.5) / 2**23


class KeyformerPaper(Keyformer):
    decoded = 0

    def feed(self, start: int, end: int, decoding: bool) -> None:
        self.decoded += decoding
        super().feed(start, end, decoding)

    def pay(self, token: int) -> None:
        seen = self.positions[self.positions <= token]
        group = len(self.head.queries)
        first, last, steps = self.params.get("tau_init", 1.0), self.params.get("tau_end", 2.0), 100
        tau = first + min(self.decoded, steps) * (last - first) / steps
        for g, queries in enumerate(self.head.queries):
            logits = queries[token] @ self.head.keys[seen].T / np.sqrt(np.float32(queries.shape[-1]))
            stream = self.params.get("seed", 0) + self.head.index * group + g
            uniform = np.array([hashed(stream, token, position) for position in seen.tolist()], np.float32)
            weights = softmax((logits - np.log(-np.log(uniform))) / np.float32(tau))
            for position, weight in zip(seen, weights, strict=True):
                self.mass[position] += weight

    def worth(self) -> Array:
        return self.protect(self.gathered(), 0, int(self.params.get("recent_ratio", 0.3) * self.budget))


class ChunkKV(Accumulating):
    """`leaving` are positions that must go, in that order; they count for nothing any more."""

    def __init__(self, head: Head, params: Any, budget: int) -> None:
        super().__init__(head, params, budget)
        self.leaving: list[int] = []

    @property
    def staying(self) -> Array:
        return self.positions[~np.isin(self.positions, self.leaving)]

    def pay(self, token: int) -> None:
        before = self.staying[self.staying < token]
        if self.params.get("score") == "key_norm":
            self.mass[token] = np.linalg.norm(self.head.keys[token].astype(np.float32))
        elif token == 0:
            self.mass[token] = np.float32(1)
        else:
            weights = attention(self.head.keys[token : token + 1], self.head.keys[before])[0]
            for position, weight in zip(before, weights, strict=True):
                self.mass[position] += weight

    def observe(self, start: int, end: int) -> None:
        super().observe(start, end)
        self.leaving = [position for position in self.leaving if position in self.positions]
        while len(self.leaving) < len(self.positions) - self.budget:
            self.leaving += self.lowest_chunk()

    def lowest_chunk(self) -> list[int]:
        body, size = self.staying[self.staying >= self.params["n_sink"]].tolist(), self.params["chunk_size"]
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        return min(chunks, key=lambda chunk: np.mean([self.mass[position] for position in chunk]))

    def worth(self) -> Array:
        order = {position: place - len(self.leaving) for place, position in enumerate(self.leaving)}
        worth = np.array([order.get(position, self.mass[position]) for position in self.positions.tolist()])
        return self.protect(worth, self.params["n_sink"])
