"""The error of a score: standard error and 95% interval of a mean or of a ratio of sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from velox_eval.records.score import Score, pooled

Z95 = 1.959963984540054  # the normal distribution's 97.5% point


@dataclass(frozen=True)
class Interval:
    """An estimate with its standard error and 95% interval; None where the samples cannot give one."""

    value: float | None
    standard_error: float | None
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half the interval's width."""
        return None if self.standard_error is None else Z95 * self.standard_error


def ratio_interval(scores: Sequence[Score], strata: Sequence[str] | None = None) -> Interval:
    """Returns the ratio of sums of `scores` with the error that sampling the samples gives it.

    Linearised: with r = sum(num) / sum(den) over n samples, se = sqrt(n / (n - 1) * sum((num - r den)^2)) / sum(den).
    For scores with den 1 that is the standard error of the mean, with the n - 1 variance. Samples with nothing
    to score (den 0) take no part; under two samples there is an estimate and no interval. The interval is the
    normal one: wide enough from some 30 samples on, too narrow below.

    `strata`, one name a score, are parts that would be there in any sample (the data sets of a benchmark): the sum
    is then over the variances within them, each with its own n / (n - 1), and there is no interval where one has a
    single sample.
    """
    names = [""] * len(scores) if strata is None else strata
    items = [(score, name) for score, name in zip(scores, names, strict=True) if score.den]
    value = pooled(score for score, _ in items)
    if value is None:
        return Interval(value, None, None, None)
    groups: dict[str, list[float]] = {}
    for score, name in items:
        groups.setdefault(name, []).append(score.num - value * score.den)
    if min(map(len, groups.values())) < 2:
        return Interval(value, None, None, None)
    variance = 0.0
    for parts in groups.values():
        mean = math.fsum(parts) / len(parts)
        variance += len(parts) / (len(parts) - 1) * math.fsum((part - mean) ** 2 for part in parts)
    total = math.fsum(score.den for score, _ in items)
    return _around(value, math.sqrt(variance) / total)


def proportion_interval(share: float, n: int) -> Interval:
    """Returns the interval of a share of n yes/no results: se = sqrt(p (1 - p) / n). None for n below 2."""
    if n < 2:
        return Interval(share if n else None, None, None, None)
    return _around(share, math.sqrt(share * (1 - share) / n))


def difference_error(first: Interval, second: Interval) -> float | None:
    """Returns the standard error of the difference of two independent estimates; None if either has none."""
    if first.standard_error is None or second.standard_error is None:
        return None
    return math.hypot(first.standard_error, second.standard_error)


def distinguishable(first: Interval, second: Interval) -> bool | None:
    """Returns whether two independent estimates differ at the 5% level; None when that cannot be told."""
    error = difference_error(first, second)
    if error is None or first.value is None or second.value is None:
        return None
    return abs(first.value - second.value) > Z95 * error


def _around(value: float, error: float) -> Interval:
    return Interval(value, error, value - Z95 * error, value + Z95 * error)
