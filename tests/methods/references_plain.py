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
