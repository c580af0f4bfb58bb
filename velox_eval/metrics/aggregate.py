"""One number of many, where some may be missing."""

from __future__ import annotations

from collections.abc import Iterable


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def largest(values: Iterable[int | None]) -> int | None:
    """Returns the largest of the values that are not None; None where none is."""
    return max((value for value in values if value is not None), default=None)
