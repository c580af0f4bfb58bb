"""The statistics of comparisons: against brute force and scipy, their level, their power, their intervals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats as scipy_stats

from velox_eval.compare import stats
from velox_eval.records.score import Score, pooled


def make_pairs(first, second, strata=None):
    sides = [tuple(Score(num=float(a), den=float(b)) for a, b in side) for side in (first, second)]
    return stats.Pairs(*sides, strata=tuple(strata or ["all"] * len(first)))


def means(first, second, strata=None):
    return make_pairs([(x, 1) for x in first], [(x, 1) for x in second], strata)


def test_the_difference_is_of_ratios_of_sums():
    pairs = make_pairs([(3, 12), (1, 2)], [(6, 12), (1, 2)])
    assert pairs.difference == pytest.approx(4 / 14 - 7 / 14)
    assert means([], []).difference is None
    assert make_pairs([(0, 0)], [(1, 2)]).difference is None


def test_the_exact_p_lists_every_assignment():
    """Six pairs of counts, the denominators differing between the sides: 64 assignments, one by one."""
    rng = np.random.default_rng(1)
    first = [(rng.integers(0, 9), rng.integers(9, 13)) for _ in range(6)]
    second = [(rng.integers(0, 6), rng.integers(9, 13)) for _ in range(6)]
    observed = make_pairs(first, second).difference
    drawn = []
    for swap in itertools.product((False, True), repeat=6):
        sides = [(b, a) if s else (a, b) for a, b, s in zip(first, second, swap, strict=True)]
        drawn.append(make_pairs([a for a, _ in sides], [b for _, b in sides]).difference)
    expected = np.mean(np.abs(drawn) >= abs(observed) - 1e-12)
    assert stats.swap_p(make_pairs(first, second)) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "error"), [(8, 1e-9), (25, 0.01)])
def test_p_is_scipys_where_scipy_has_the_test(n, error):
    rng = np.random.default_rng(2)
    first, second = rng.normal(0.9, 1, n), rng.normal(0, 1, n)
    theirs = scipy_stats.permutation_test(
        (first, second),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=4999,
        rng=rng,
    )
    assert 0.001 < theirs.pvalue < 0.5
    assert stats.swap_p(means(first, second), resamples=4999) == pytest.approx(theirs.pvalue, abs=error)


def test_equal_pairs_change_nothing():
    first, second = [1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]
    few = stats.swap_p(means(first, second))
    assert few == 2 / 2**5
    assert stats.swap_p(means(first + [1] * 400, second + [1] * 400)) == few
    assert stats.swap_p(means([1, 0], [1, 0])) == 1.0


def test_a_margin_is_tested_on_one_side():
    rng = np.random.default_rng(3)
    second = rng.normal(10, 1, 60)
    first = second + rng.normal(-0.05, 0.1, 60)
    pairs = means(first, second)
    assert stats.swap_p(pairs, margin=0.2) < 0.001  # a loss of 0.2 is excluded
    assert stats.swap_p(pairs, margin=0.02) > 0.5  # one of 0.02 is not
    assert stats.swap_p(means([0, 0, 0], [0, 0, 0]), margin=0.1) == 1 / 8  # three equal pairs prove little


def test_runs_without_a_common_sample_are_dealt_out_anew():
    """0.20 against 0.22 of 300 each: far from a difference; 0.20 against 0.40 is one."""
    share = {p: [Score(num=float(i < round(300 * p))) for i in range(300)] for p in (0.2, 0.22, 0.4)}
    assert stats.unpaired_p(share[0.2], share[0.22]) > 0.5
    assert stats.unpaired_p(share[0.2], share[0.4]) < 0.001
    error = stats.standard_error(stats.two_sides(share[0.2], share[0.22]))
    assert error == pytest.approx(0.0332, abs=2e-4)
    theirs = scipy_stats.fisher_exact([[60, 240], [66, 234]]).pvalue
    assert stats.unpaired_p(share[0.2], share[0.22]) == pytest.approx(theirs, abs=0.03)


def test_holm():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize(("family", "needed"), [(1, 6), (2, 7), (3, 7), (5, 8), (16, 10)])
def test_pairs_needed_for_any_verdict(family, needed):
    assert stats.needed_pairs(family, 0.05) == needed
    assert family * stats.smallest_p(needed) <= 0.05 < family * stats.smallest_p(needed - 1)
    all_won = means([1] * needed, [0] * needed)
    assert stats.swap_p(all_won) == stats.smallest_p(needed)


def test_single_samples_of_a_type_are_put_together():
    assert stats.strata_groups("abcd") == ((0, 1, 2, 3),)
    assert stats.strata_groups("aabbb") == ((0, 1), (2, 3, 4))
    assert stats.strata_groups("aaabbc") == ((0, 1, 2), (3, 4, 5))
    assert stats.difference_range(means([1, 2, 3, 5], [0, 0, 0, 0], "abcd")).low > 0


def test_the_interval_is_scipys_for_many_samples():
    rng = np.random.default_rng(4)
    den = rng.integers(5, 15, 300)
    first, second = rng.binomial(den, 0.6), rng.binomial(den, 0.5)
    pairs = make_pairs(list(zip(first, den, strict=True)), list(zip(second, den, strict=True)))
    ours = stats.difference_range(pairs)
    theirs = scipy_stats.bootstrap(
        (first, second, den),
        lambda a, b, d, axis: np.sum(a, axis=axis) / np.sum(d, axis=axis) - np.sum(b, axis=axis) / np.sum(d, axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4999,
        rng=rng,
    ).confidence_interval
    width = theirs.high - theirs.low
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.06 * width)


def test_types_are_kept_in_proportion():
    """Two types whose levels differ a lot: resampling within types must not count that as noise."""
    rng = np.random.default_rng(5)
    levels = np.repeat([0.0, 100.0], 40)
    first = levels + rng.normal(0, 1, 80)
    scores = [Score(num=float(x)) for x in first]
    wide = stats.score_range(scores, ["all"] * 80)
    narrow = stats.score_range(scores, ["a"] * 40 + ["b"] * 40)
    assert narrow.high - narrow.low < 0.05 * (wide.high - wide.low)


@pytest.mark.parametrize(("n", "strata"), [(5, "aaaaa"), (8, "aaaabbbb"), (30, "a" * 30)])
def test_intervals_cover_what_they_should(n, strata):
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(400):
        pairs = means(rng.normal(1, 1, n), rng.normal(0, 1, n), strata)
        between = stats.difference_range(pairs, resamples=1999)
        covered += between.low <= 1 <= between.high
    assert covered / 400 >= 0.92


@pytest.mark.parametrize("hits", [1, 3, 5])
def test_a_shares_interval_stays_within_0_and_1(hits):
    scores = [Score(num=float(i < hits)) for i in range(6)]
    between = stats.score_range(scores, ["all"] * 6)
    assert 0 <= between.low < hits / 6 < between.high <= 1


def test_no_spread_gives_no_interval():
    same = [Score(num=1.0, den=3.0)] * 5
    assert stats.score_range(same, "aaaaa") == stats.Range(None, None)
    assert stats.score_range(same[:1], "a") == stats.Range(None, None)
    assert stats.difference_range(means([1, 1, 1], [0, 0, 0])) == stats.Range(None, None)


def test_the_standard_error_is_that_of_paired_differences():
    rng = np.random.default_rng(7)
    first, second = rng.normal(0, 1, 50), rng.normal(0, 1, 50)
    expected = np.std(first - second, ddof=1) / np.sqrt(50)
    assert stats.standard_error(means(first, second)) == pytest.approx(expected)


def counted_samples(rng, n, methods):
    """Scores k of m checks in three types of different difficulty; all methods equally good, samples in common."""
    strata = [f"type {index % 3}" for index in range(n)]
    den = rng.integers(6, 14, n)
    skill = np.array([0.3, 0.5, 0.8])[np.arange(n) % 3] + rng.normal(0, 0.1, n)
    chance = np.clip(skill, 0.02, 0.98)
    sides = [[(k, d) for k, d in zip(rng.binomial(den, chance), den, strict=True)] for _ in range(methods + 1)]
    return strata, sides


@pytest.mark.parametrize(("n", "methods"), [(6, 1), (9, 5), (12, 16), (40, 3)])
def test_false_alarms_stay_at_the_level(n, methods):
    """1,000 comparisons in which nothing differs: how often any method of the family is called different."""
    rng = np.random.default_rng(8)
    alarms = 0
    for _ in range(1000):
        strata, (base, *sides) = counted_samples(rng, n, methods)
        found = [stats.swap_p(make_pairs(side, base, strata), resamples=999) for side in sides]
        alarms += min(stats.holm(found)) <= 0.05
    assert alarms <= 64  # 50 expected at most; 64 is two standard errors above


@pytest.mark.parametrize("n", [12, 40])
def test_a_detectable_shift_is_detected(n):
    """A shift as large as `detectable` says for pairs of this spread is found in about 80% of comparisons."""
    rng = np.random.default_rng(9)
    sizes = [
        stats.detectable(means(rng.normal(0, 1, n), rng.normal(0, 1, n)), alpha=0.05, power=0.8) for _ in range(200)
    ]
    shift = float(np.mean(sizes))
    hits = 0
    for _ in range(400):
        base = rng.normal(0, 1, n)
        pairs = means(rng.normal(shift, 1, n), base)
        hits += stats.swap_p(pairs, resamples=999) <= 0.05
    assert 0.74 <= hits / 400 <= 0.88


def test_scores_pool_as_in_records():
    scores = [Score(num=1, den=4), Score(num=0, den=0), Score(num=3, den=4)]
    between = stats.score_range(scores, "aaa")
    assert between.low < pooled(scores) < between.high
