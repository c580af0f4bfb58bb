"""The test matrix: one row a method (and setting) runs every property in this folder. Add a method, add a row.

`reference` is the rule written again for one head, slowly and for clarity, in NumPy: given the rows held (their
keys and positions, oldest first, new rows last) it returns each row's worth; the lowest goes first, of equal ones
the oldest. `veloxquant` names the installed package's cache class for the adapted rule, with its prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
INFINITE = np.float32(np.inf)


@dataclass(frozen=True)
class Held:
    """Rows held by one head: keys [n, D] and true positions [n], oldest first; the last `new` just came in."""

    keys: Array
    positions: Array
    new: int


@dataclass(frozen=True)
class Case:
    """One row of the matrix."""

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    budget: int = 12
    smallest: int = 1  # smallest legal budget with these parameters
    reference: Callable[[Held, Mapping[str, Any]], Array] | None = None
    veloxquant: str | None = None

    @property
    def id(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.method}({settings})"

    @property
    def sinks(self) -> int:
        return int(self.params.get("n_sink", 0))


def softmax(logits: Array) -> Array:
    """Softmax over the last axis in float32."""
    logits = logits.astype(np.float32)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention(queries: Array, keys: Array) -> Array:
    """Scaled softmax attention [len(queries), len(keys)]."""
    return softmax(queries.astype(np.float32) @ keys.astype(np.float32).T / np.sqrt(np.float32(keys.shape[-1])))


def protect(worth: Array, held: Held, sinks: int, recent: int = 0) -> Array:
    """`worth` with sinks and the newest rows made infinite."""
    worth = worth.astype(np.float32).copy()
    worth[held.positions < sinks] = INFINITE
    if recent:
        worth[held.positions > held.positions[-1] - recent] = INFINITE
    return worth


def by_recency(held: Held, _params: Mapping[str, Any]) -> Array:
    return held.positions.astype(np.float32)


def by_latest_key(held: Held, params: Mapping[str, Any]) -> Array:
    return protect(attention(held.keys[-1:], held.keys)[0], held, params["n_sink"])


def by_recent_window(held: Held, params: Mapping[str, Any]) -> Array:
    worth = attention(held.keys[-params["window"] :], held.keys).mean(axis=0)
    return protect(worth, held, params["n_sink"], params["window"])


def by_reconstruction(held: Held, params: Mapping[str, Any]) -> Array:
    if params["probe"] == "latest":
        return by_latest_key(held, params)
    return protect(attention(held.keys, held.keys).max(axis=0), held, params["n_sink"])


CASES = (
    Case("full", budget=10**6),
    Case("sliding_window", reference=by_recency),
    Case("tova", {"n_sink": 0}, smallest=1, reference=by_latest_key, veloxquant="tova"),
    Case("tova", {"n_sink": 3}, smallest=4, reference=by_latest_key, veloxquant="tova"),
    Case("morphkv", {"n_sink": 2, "window": 1}, smallest=4, reference=by_recent_window, veloxquant="morphkv"),
    Case("morphkv", {"n_sink": 2, "window": 5}, smallest=8, reference=by_recent_window, veloxquant="morphkv"),
    Case("morphkv", {"n_sink": 0, "window": 4}, smallest=5, reference=by_recent_window, veloxquant="morphkv"),
    Case("kvzip", {"n_sink": 2, "probe": "context"}, smallest=3, reference=by_reconstruction, veloxquant="kvzip"),
    Case("kvzip", {"n_sink": 2, "probe": "latest"}, smallest=3, reference=by_reconstruction, veloxquant="kvzip"),
)
EVICTING = tuple(case for case in CASES if case.method != "full")


def reference_positions(case: Case, keys: Array, budget: int, chunks: list[int], block: int | None) -> Array:
    """Positions [H, budget] that the rule keeps of keys [H, T, D] fed in these chunks; ascending."""
    assert case.reference is not None
    kept = []
    for head in keys:
        positions = np.zeros(0, dtype=np.int64)
        fed = 0
        for chunk in chunks:
            step = min(block or chunk, chunk)
            for start in range(0, chunk, step):
                size = min(step, chunk - start)
                positions = np.concatenate([positions, np.arange(fed, fed + size)])
                fed += size
                over = len(positions) - budget
                if over > 0:
                    worth = case.reference(Held(head[positions], positions, size), case.params)
                    positions = np.delete(positions, np.argsort(worth, kind="stable")[:over])
        kept.append(positions)
    return np.stack(kept)
