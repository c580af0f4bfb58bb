"""Draws for bundled material: the same on every machine and Python version, as each is a hash of what it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Numbers drawn one after another, each a hash of the stream's name and its count."""

    def __init__(self, *name: object) -> None:
        self._name = "/".join(str(part) for part in name)
        self._count = 0

    def below(self, bound: int) -> int:
        """Returns a number in 0..bound-1."""
        self._count += 1
        digest = hashlib.sha256(f"{self._name}/{self._count}".encode()).digest()
        return int.from_bytes(digest, "big") % bound

    def pick(self, items: Sequence[T], count: int) -> list[T]:
        """Returns `count` different items in drawn order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]
