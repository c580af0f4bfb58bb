"""The accumulating rules written again in NumPy: H2O, Keyformer, ChunkKV, CaM. One KV head, one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from velox_eval.mlx import mx

from .references import Array, Head, Reference, attention, softmax
from .references_plain import mixed


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


class Merging(Accumulating):
    """Also keeps each row's value, by position."""

    def __init__(self, head: Head, params: Any, budget: int) -> None:
        super().__init__(head, params, budget)
        self.values = {position: value.astype(np.float32) for position, value in enumerate(head.values)}

    def held(self) -> Array:
        """The values of the rows held [n, Dv], oldest first."""
        return np.stack([self.values[position] for position in self.positions.tolist()])

    def draw(self, number: int) -> float:
        key = mx.random.key((self.params.get("seed", 0) + self.head.index) * STRIDE + number)
        return float(mx.random.uniform(key=key).item())

    def cut(self, excess: int) -> None:
        if excess > 0:
            gone = self.positions[np.argsort(self.worth(), kind="stable")[:excess]].tolist()
            self.merge(gone, [position for position in self.positions.tolist() if position not in gone])
        super().cut(excess)

    def merge(self, gone: list[int], stay: list[int]) -> None:
        raise NotImplementedError


class CaM(Merging):
    def worth(self) -> Array:
        return self.protect(self.gathered(), self.params["n_sink"])

    def merge(self, gone: list[int], stay: list[int]) -> None:
        """One after the other, lowest first; the gate looks at what was gathered before any of them."""
        mode, before = self.params.get("merge", "sim_weighted"), dict(self.mass)
        keys = self.head.keys.astype(np.float32)
        open_to = [position for position in stay if position >= self.params["n_sink"]]
        for number, position in enumerate(gone):
            cosines = [
                keys[position] @ keys[other] / (np.linalg.norm(keys[position]) * np.linalg.norm(keys[other]) + 1e-8)
                for other in open_to
            ]
            other = open_to[int(np.argmax(cosines))]
            nth = int(self.positions[-1]) - self.budget - (len(gone) - 1) + number
            if mode == "drop" or (
                self.params.get("merge_gate", True) and self.draw(nth) >= before[position] / before[other]
            ):
                continue
            weight = np.float32(0.5 if mode == "mean" else np.clip(max(cosines), 0, 1))
            self.values[other] = (1 - weight) * self.values[other] + weight * self.values[position]
            self.mass[other] += before[position]


class CaMPaper(Merging):
    decoding = False

    def feed(self, start: int, end: int, decoding: bool) -> None:
        self.decoding = decoding
        super().feed(start, end, decoding)

    def worth(self) -> Array:
        return self.protect(self.positions, int(self.params.get("start_ratio", 0.5) * self.budget))

    def merge(self, gone: list[int], stay: list[int]) -> None:
        if not self.decoding:
            return
        (position,) = gone
        last, rows = int(self.positions[-1]), self.positions.tolist()
        paid = np.mean([attention(q[last : last + 1], self.head.keys[rows])[0] for q in self.head.queries], axis=0)
        after = [place for place, row in enumerate(rows) if row > position]
        count = self.params.get("merge_rows", 32)
        lot = hashed(self.params.get("seed", 0) + self.head.index, position)
        if lot < paid[rows.index(position)] / np.mean(paid[after]):
            for place in after[:count]:
                self.values[rows[place]] = self.values[rows[place]] + self.values[position] / np.float32(count)
