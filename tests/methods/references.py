"""The rules written again in NumPy: one KV head, one step at a time, for clarity. Nothing here is fast.

A `Reference` is fed what the cache is fed and says which positions it keeps. Rules that rank by what is held now are
`ranked(worth)`; rules with a memory of their own subclass `Reference`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Head:
    """One KV head's whole stream: keys [T, D], values [T, D], its query heads' queries [GROUP, T, D]."""

    keys: Array
    values: Array
    queries: Array
    index: int = 0  # which KV head of the layer
    layer: tuple[Array, Array] | None = None  # keys [H, T, D] and queries [H, GROUP, T, D] of all its heads


class Reference(ABC):
    """A rule at work on one head. `positions` are the rows held, oldest first."""

    start = 0  # tokens before which nothing is cut

    def __init__(self, head: Head, params: Mapping[str, Any], budget: int) -> None:
        self.head = head
        self.params = params
        self.budget = budget
        self.positions = np.zeros(0, dtype=np.int64)
        self.seen = 0

    def feed(self, start: int, end: int, decoding: bool) -> None:
        """Tokens start to end come in together and attend; then rows over the budget go."""
        self.positions = np.concatenate([self.positions, np.arange(start, end)])
        self.observe(start, end)
        self.seen = end
        if self.cuts(decoding) and end > self.start:
            self.cut(len(self.positions) - self.budget)

    def observe(self, start: int, end: int) -> None:  # noqa: B027 - most rules remember nothing
        """Remembers what the rule remembers of the tokens start to end; they are in `positions` already."""

    def cuts(self, decoding: bool) -> bool:
        """Whether rows over the budget go after this step."""
        return True

    def finish_prompt(self) -> None:
        """The whole prompt is in."""
        if self.seen > self.start:
            self.cut(len(self.positions) - self.budget)

    def cut(self, excess: int) -> None:
        """Drops the `excess` rows of lowest worth, of equal ones the oldest."""
        if excess > 0:
            self.positions = np.delete(self.positions, np.argsort(self.worth(), kind="stable")[:excess])

    @abstractmethod
    def worth(self) -> Array:
        """Each held row's worth [n] float32, infinite where it must stay."""

    def protect(self, worth: Array, sinks: int, recent: int = 0) -> Array:
        """`worth` with sinks and the newest rows made infinite."""
        worth = worth.astype(np.float32).copy()
        worth[self.positions < sinks] = np.inf
        if recent:
            worth[self.positions > self.positions[-1] - recent] = np.inf
        return worth


def softmax(logits: Array) -> Array:
    """Softmax over the last axis in float32."""
    logits = logits.astype(np.float32)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention(queries: Array, keys: Array) -> Array:
    """Scaled softmax attention [len(queries), len(keys)]."""
    return softmax(queries.astype(np.float32) @ keys.astype(np.float32).T / np.sqrt(np.float32(keys.shape[-1])))


def ranked(worth: Callable[[Reference], Array]) -> Callable[[Head, Mapping[str, Any], int], Reference]:
    """A rule without a memory: a function of the rows held now."""

    class Ranked(Reference):
        def worth(self) -> Array:
            return worth(self)

    return Ranked


def by_recency(held: Reference) -> Array:
    return held.positions.astype(np.float32)


def by_latest_key(held: Reference) -> Array:
    keys = held.head.keys[held.positions]
    return held.protect(attention(keys[-1:], keys)[0], held.params["n_sink"])


def by_latest_queries(held: Reference) -> Array:
    """The last query of every head of the layer, averaged: all heads hold the same rows."""
    assert held.head.layer is not None
    last = held.positions[-1]
    weights = [
        attention(query[last : last + 1], keys[held.positions])[0]
        for keys, queries in zip(*held.head.layer, strict=True)
        for query in queries
    ]
    return np.mean(weights, axis=0)


def by_recent_window(held: Reference) -> Array:
    keys, window = held.head.keys[held.positions], held.params["window"]
    return held.protect(attention(keys[-window:], keys).mean(axis=0), held.params["n_sink"], window)


def by_reconstruction(held: Reference) -> Array:
    if held.params["probe"] == "latest":
        return by_latest_key(held)
    keys = held.head.keys[held.positions]
    return held.protect(attention(keys, keys).max(axis=0), held.params["n_sink"])
