"""Timing several things on one machine in turns: each repeat times every arm once, in an order that rotates.

What drifts (clock, neighbours, temperature) then falls on all arms alike, and a ratio compares what was timed within
seconds of each other. Warming up is the caller's: an arm is timed as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of `n` repeats."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Ratio:
    """The ratio of two medians; smallest and largest ratio within a repeat."""

    value: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Returns the spread of the repeats. Raises ValueError for none."""
    if not values:
        raise ValueError("no repeat was timed")
    return Spread(median(values), min(values), max(values), len(values))


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Returns how many times as long `over` took as `under`, both by repeat."""
    within = [a / b for a, b in zip(over, under, strict=False)]  # an arm at its limit has fewer repeats
    return Ratio(median(over) / median(under), min(within), max(within))


def interleaved(
    arms: Mapping[str, Callable[[], float]], repeats: int, *, limits: Mapping[str, float] | None = None
) -> dict[str, list[float]]:
    """Returns what each arm measured, by repeat; an arm is called once a repeat, and first in every len(arms)-th.

    `limits`: an arm is left out of later repeats once what it returned adds up to its limit.
    """
    names, limits = list(arms), limits or {}
    found: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        start = repeat % len(names)
        for name in names[start:] + names[:start]:
            if not found[name] or sum(found[name]) < limits.get(name, float("inf")):
                found[name].append(arms[name]())
    return found
