"""The statistics of a comparison: samples in pairs, ratios of sums, stratified by type. numpy and scipy only.

A score is a ratio of sums, sum(num) / sum(den) over samples; the statistic is the difference of two such ratios.
Samples are what is resampled or swapped, never the checks within one. Everything is seeded, so that the same runs
give the same numbers. scipy's bootstrap knows no strata and its paired permutations are drawn one Python call a
pair, so resamples are drawn here; the tests hold both against scipy where scipy can do the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from velox_eval.records.score import Score

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RESAMPLES = 9_999
SEED = 0
_CELLS = 2_000_000  # numbers a chunk of resamples may hold
_TIE = 1e-11  # differences closer than this share of the largest number are equal: sums are rounded


@dataclass(frozen=True)
class Pairs:
    """Scores of two sides on the same samples: row i of each is one sample of type `strata[i]`."""

    first: tuple[Score, ...]
    second: tuple[Score, ...]
    strata: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.strata)

    @property
    def columns(self) -> Array:
        """The scores, [n, 4]: num and den of the first, num and den of the second."""
        import numpy as np

        rows = [(a.num, a.den, b.num, b.den) for a, b in zip(self.first, self.second, strict=True)]
        return np.array(rows, dtype=np.float64).reshape(-1, 4)

    @property
    def difference(self) -> float | None:
        """Ratio of sums of the first less that of the second; None where either has nothing to score."""
        if not len(self):
            return None
        num, den, base_num, base_den = (math.fsum(column) for column in self.columns.T)
        return num / den - base_num / base_den if den and base_den else None


@dataclass(frozen=True)
class Range:
    """An interval; None for both ends where resampling shows no spread."""

    low: float | None = None
    high: float | None = None


def swap_p(pairs: Pairs, *, margin: float | None = None, resamples: int = RESAMPLES) -> float | None:
    """Returns the p of the permutation test that swaps the two sides within pairs; None where there is no difference.

    Two-sided without `margin`: how often a random assignment of the sides gives a difference at least as large.
    With one it is one-sided, of "the first is lower by `margin` or more": the first is raised by it, and what counts
    is how often a random assignment is at least as high. All assignments are listed when they are no more than
    `resamples`; else that many are drawn, the real one counted among them. Swapping within pairs keeps types
    balanced, so no stratum needs a word.
    """
    import numpy as np

    observed = pairs.difference
    if observed is None:
        return None
    columns = pairs.columns
    if margin is not None:
        columns[:, 0] += margin * columns[:, 1]
        observed += margin
    # A pair with the same scores on both sides is the same swapped or not.
    differing = np.any(columns[:, :2] != columns[:, 2:], axis=1)
    fixed, free = columns[~differing].sum(axis=0), columns[differing]
    total = columns[:, :2].sum(axis=0) + columns[:, 2:].sum(axis=0)
    swapped = fixed[:2] + free[:, 2:].sum(axis=0)
    reached = (abs(observed) if margin is None else observed) - _TIE * float(np.abs(columns).max())
    hits = count = 0
    for kept in _assignments(len(free), resamples):
        first = swapped + kept @ (free[:, :2] - free[:, 2:])
        drawn = _ratio(first) - _ratio(total - first)
        hits += int(np.sum((np.abs(drawn) if margin is None else drawn) >= reached))
        count += len(drawn)
    exact = count == 2 ** len(free)
    return hits / count if exact else (hits + 1) / (count + 1)


def _assignments(n: int, resamples: int) -> Any:
    """Boolean matrices [rows, n], True where a pair stays as it is: all 2^n, or `resamples` random ones in chunks."""
    import numpy as np

    if n < 60 and 2**n <= resamples:
        yield (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1
        return
    rng = np.random.default_rng(SEED)
    rows = max(1, _CELLS // n)
    for start in range(0, resamples, rows):
        yield rng.integers(0, 2, size=(min(rows, resamples - start), n), dtype=np.int8) == 1


def unpaired_p(first: Sequence[Score], second: Sequence[Score], resamples: int = RESAMPLES) -> float | None:
    """Returns the two-sided p of the permutation test that deals all samples out to two sides of the same sizes.

    For runs without a sample in common. None where either side has nothing to score.
    """
    import numpy as np

    table = np.array([(s.num, s.den) for s in (*first, *second)], dtype=np.float64).reshape(-1, 2)
    n, total = len(first), table.sum(axis=0)
    here = table[:n].sum(axis=0)
    if not here[1] or not total[1] - here[1]:
        return None
    observed = abs(_ratio(here[None])[0] - _ratio((total - here)[None])[0])
    rng = np.random.default_rng(SEED)
    hits, rows = 0, max(1, _CELLS // len(table))
    for start in range(0, resamples, rows):
        order = np.tile(np.arange(len(table)) < n, (min(rows, resamples - start), 1))
        dealt = rng.permuted(order, axis=1) @ table
        hits += int(
            np.sum(np.abs(_ratio(dealt) - _ratio(total - dealt)) >= observed - _TIE * float(np.abs(table).max()))
        )
    return (hits + 1) / (resamples + 1)


def _ratio(sums: Array) -> Array:
    """num / den of [rows, 2]; 0 where a resample has nothing to score on that side."""
    import numpy as np

    return np.divide(sums[:, 0], sums[:, 1], out=np.zeros(len(sums)), where=sums[:, 1] != 0)


def smallest_p(n: int) -> float:
    """Returns the smallest two-sided p that `n` pairs can give, whatever their scores: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - min(n, 1000)))


def smallest_unpaired_p(first: int, second: int) -> float:
    """Returns the smallest two-sided p of dealing out `first` + `second` samples: 2 / the ways to deal them."""
    return min(1.0, 2 / math.comb(first + second, first))


def needed_pairs(family: int, alpha: float) -> int:
    """Returns the pairs from which on Holm over `family` arms can call any of them different at level `alpha`."""
    return math.ceil(math.log2(2 * family / alpha) - 1e-12)


def holm(values: Sequence[float]) -> list[float]:
    """Returns the p values adjusted by Holm's step-down rule, in the order given: they hold together at one level."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return adjusted


def strata_groups(strata: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the rows of each stratum, those with a single row put together: alone they would show no spread.

    A last single one joins the smallest other stratum.
    """
    rows: dict[str, list[int]] = {}
    for index, name in enumerate(strata):
        rows.setdefault(name, []).append(index)
    groups = [group for group in rows.values() if len(group) > 1]
    single = [index for group in rows.values() if len(group) == 1 for index in group]
    if len(single) == 1 and groups:
        min(groups, key=len).extend(single)
    elif single:
        groups.append(single)
    return tuple(tuple(group) for group in groups)


@lru_cache(maxsize=2)
def _weights(groups: tuple[tuple[int, ...], ...], resamples: int) -> Any:
    """How often each row is drawn, [resamples, n]: of every group of k rows k - 1 are drawn, each counting k / (k - 1).

    With k draws a bootstrap of small groups is too narrow by (k - 1) / k in variance (Rao and Wu, JASA 1988).
    """
    import numpy as np

    rng = np.random.default_rng(SEED)
    drawn = np.zeros((resamples, sum(map(len, groups))), dtype=np.float32)
    for group in groups:
        k = len(group)
        for start in range(0, resamples, max(1, _CELLS // k)):
            rows = min(max(1, _CELLS // k), resamples - start)
            picks = rng.integers(0, k, size=(rows, k - 1)) + k * np.arange(rows)[:, None]
            counts = np.bincount(picks.ravel(), minlength=rows * k).reshape(rows, k)
            drawn[start : start + rows, list(group)] = counts * (k / (k - 1))
    return drawn


def _resampled_sums(columns: Array, strata: Sequence[str], resamples: int) -> Array | None:
    """Sums of every column over each bootstrap sample, [resamples, columns]; None under two rows."""
    import numpy as np

    if len(columns) < 2:
        return None
    weights = _weights(strata_groups(strata), resamples)
    rows = max(1, _CELLS // len(columns))
    chunks = [weights[i : i + rows].astype(np.float64) @ columns for i in range(0, resamples, rows)]
    return np.concatenate(chunks)


def _percentiles(values: Array, freedom: int, level: float) -> Range:
    """The interval between percentiles of `values`, moved out as Student's t is wider than the normal.

    (Hesterberg, The American Statistician 2015: the percentile interval of a small sample is too narrow.)
    """
    import numpy as np
    from scipy.special import ndtr, stdtrit

    if not len(values) or np.ptp(values) <= 1e-12 * max(1.0, float(np.max(np.abs(values)))):
        return Range()
    tail = float(ndtr(stdtrit(max(1, freedom), (1 - level) / 2)))
    low, high = np.quantile(values, [tail, 1 - tail])
    return Range(float(low), float(high))


def _freedom(strata: Sequence[str]) -> int:
    return len(strata) - len(strata_groups(strata))


def difference_range(pairs: Pairs, level: float = 0.95, resamples: int = RESAMPLES) -> Range:
    """Returns the bootstrap interval of `pairs.difference`: pairs are resampled within each stratum."""
    sums = _resampled_sums(pairs.columns, pairs.strata, resamples)
    if sums is None:
        return Range()
    scored = (sums[:, 1] != 0) & (sums[:, 3] != 0)
    values = _ratio(sums[scored][:, :2]) - _ratio(sums[scored][:, 2:])
    return _percentiles(values, _freedom(pairs.strata), level)


def score_range(
    scores: Sequence[Score], strata: Sequence[str], level: float = 0.95, resamples: int = RESAMPLES
) -> Range:
    """Returns the bootstrap interval of the ratio of sums; it stays where such a ratio can be.

    None for both ends where resampling shows no spread: under two samples, or when all score the same.
    """
    import numpy as np

    columns = np.array([(score.num, score.den) for score in scores], dtype=np.float64).reshape(-1, 2)
    sums = _resampled_sums(columns, strata, resamples)
    if sums is None:
        return Range()
    return _percentiles(_ratio(sums[sums[:, 1] != 0]), _freedom(strata), level)


def two_sides(first: Sequence[Score], second: Sequence[Score]) -> Pairs:
    """Returns samples that share nothing as `Pairs` with nothing on the other side, each side a stratum.

    Their difference, its interval and its standard error are those of two independent estimates.
    """
    empty = Score(num=0, den=0)
    return Pairs(
        first=(*first, *[empty] * len(second)),
        second=(*[empty] * len(first), *second),
        strata=("first",) * len(first) + ("second",) * len(second),
    )


def standard_error(pairs: Pairs) -> float | None:
    """Returns the linearised standard error of `pairs.difference` within strata; None under two pairs.

    With e = (num - r den) / sum(den) of the first less the same of the second, a stratum of k pairs adds
    k / (k - 1) times the sum of squares of e around its mean.
    """
    import numpy as np

    if len(pairs) < 2 or pairs.difference is None:
        return None
    num, den, base_num, base_den = pairs.columns.T
    ours = (num - num.sum() / den.sum() * den) / den.sum()
    theirs = (base_num - base_num.sum() / base_den.sum() * base_den) / base_den.sum()
    error = ours - theirs
    groups = [error[list(group)] for group in strata_groups(pairs.strata)]
    variance = sum(len(g) / (len(g) - 1) * float(np.sum((g - g.mean()) ** 2)) for g in groups)
    return math.sqrt(variance)


def detectable(pairs: Pairs, alpha: float, power: float) -> float | None:
    """Returns the smallest true difference that such pairs show at two-sided level `alpha` with `power`.

    From the spread of these pairs: (t(1 - alpha / 2) + t(power)) x standard error. None without any spread.
    """
    from scipy.special import stdtrit

    error = standard_error(pairs)
    if not error:
        return None
    freedom = max(1, _freedom(pairs.strata))
    return float(stdtrit(freedom, 1 - alpha / 2) + stdtrit(freedom, power)) * error
