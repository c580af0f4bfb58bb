"""The rules that ask no attention, written again in NumPy: by lot, by place, by norm, by projection."""

from __future__ import annotations

import hashlib

import numpy as np

from .references import Array, Reference

WORD = 2**32


def by_lot(held: Reference) -> Array:
    """The hash of seed, sample 0, layer 0, head and position, in Python's own integers."""
    text = f"{held.params.get('seed', 0)} 0 0"
    salt = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")
    salt = mixed((salt + (held.head.index + 1) * 0x9E3779B9) % WORD)
    drawn = [mixed((int(position) * 0x9E3779B9 + salt) % WORD) >> 8 for position in held.positions]
    return held.protect(np.array(drawn) / 2**24, held.params.get("n_sink", 0))


def mixed(bits: int) -> int:
    bits = (bits ^ bits >> 16) * 0x21F0AAAD % WORD
    bits = (bits ^ bits >> 15) * 0x735A2D97 % WORD
    return bits ^ bits >> 15


def by_recency_after_sinks(held: Reference) -> Array:
    return held.protect(held.positions, held.params["n_sink"])


def by_low_norm(held: Reference) -> Array:
    norms = np.sqrt((held.head.keys[held.positions].astype(np.float32) ** 2).sum(axis=-1))
    norms = norms if held.params.get("keep") == "high" else -norms
    return held.protect(norms, held.params.get("n_sink", 0), held.params.get("recent", 0))


class QFilters(Reference):
    """Nothing goes before `calib_tokens` keys are there; then their first principal axis ranks."""

    direction: Array | None = None

    def observe(self, start: int, end: int) -> None:
        if self.direction is None and len(self.positions) >= self.params["calib_tokens"]:
            keys = self.head.keys[self.positions].astype(np.float64)
            axis = np.linalg.svd(keys - keys.mean(axis=0))[2][0]
            self.direction = axis * np.sign(axis[np.abs(axis).argmax()])

    def cuts(self, decoding: bool) -> bool:
        return self.direction is not None

    def finish_prompt(self) -> None:
        if self.direction is not None:
            super().finish_prompt()

    def worth(self) -> Array:
        along = self.head.keys[self.positions] @ self.direction * self.params["sign"]
        return self.protect(along, self.params["n_sink"], self.params["recent"])


class QFiltersPaper(Reference):
    """The direction is given: see streams.tilted."""

    def worth(self) -> Array:
        direction = np.cos(self.head.index * 2.0 + np.arange(self.head.keys.shape[1]) * 3.0)
        return self.protect(self.head.keys[self.positions] @ direction, 0, self.params["window"])
