from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox_eval.metrics.uncertainty import difference_error, distinguishable, proportion_interval, ratio_interval
from velox_eval.records.score import Score, pooled


def test_a_share_of_three_hundred_is_not_known_better_than_this() -> None:
    fifth = proportion_interval(0.20, 300)
    assert fifth.standard_error == pytest.approx(0.0231, abs=5e-5)
    assert fifth.half_width == pytest.approx(0.0453, abs=5e-5)
    more = proportion_interval(0.22, 300)
    assert difference_error(fifth, more) == pytest.approx(0.0332, abs=5e-5)
    assert distinguishable(fifth, more) is False
    assert distinguishable(fifth, proportion_interval(0.30, 300)) is True


def test_a_mean_of_single_results_has_the_error_of_the_share() -> None:
    scores = [Score(num=1)] * 60 + [Score(num=0)] * 240
    interval = ratio_interval(scores)
    assert interval.value == pytest.approx(0.20)
    assert interval.standard_error == pytest.approx(0.0231, abs=5e-5)
    assert interval.half_width == pytest.approx(0.0453, abs=5e-5)


def test_a_mean_has_the_textbook_error() -> None:
    values = [3.0, 4.5, 1.0, 9.0, 2.5]
    interval = ratio_interval([Score(num=value) for value in values])
    error = statistics.stdev(values) / len(values) ** 0.5
    assert interval.standard_error == pytest.approx(error)
    assert interval.low == pytest.approx(statistics.mean(values) - 1.959964 * error, abs=1e-5)
    assert interval.high == pytest.approx(statistics.mean(values) + 1.959964 * error, abs=1e-5)


def test_a_ratio_of_sums_has_the_error_that_drawing_samples_again_shows() -> None:
    draw = random.Random(4)
    population = [(draw.randint(0, den), den) for den in (draw.randint(1, 30) for _ in range(5000))]
    truth = sum(num for num, _ in population) / sum(den for _, den in population)
    estimates, covered = [], 0
    for _ in range(400):
        interval = ratio_interval([Score(num=num, den=den) for num, den in draw.choices(population, k=60)])
        assert interval.value is not None
        assert interval.low is not None
        assert interval.high is not None
        estimates.append((interval.value, interval.standard_error))
        covered += interval.low <= truth <= interval.high
    spread = statistics.stdev(value for value, _ in estimates)
    assert statistics.mean(error or 0 for _, error in estimates) == pytest.approx(spread, rel=0.1)
    assert 0.9 <= covered / 400 <= 0.99


def test_a_mean_over_fixed_parts_has_the_error_within_them() -> None:
    """Two data sets of 3 and 5 rows that weigh the same; how far apart they are is no error."""
    parts = {"a": [0.1, 0.2, 0.6], "b": [0.9, 0.7, 1.0, 0.95, 0.8]}
    scores = [Score(num=value / len(values), den=1 / len(values)) for values in parts.values() for value in values]
    strata = [name for name, values in parts.items() for _ in values]
    interval = ratio_interval(scores, strata)
    assert interval.value == pytest.approx(statistics.mean(map(statistics.mean, parts.values())))
    error = sum(statistics.variance(values) / len(values) for values in parts.values()) ** 0.5 / 2
    assert interval.standard_error == pytest.approx(error)
    assert (ratio_interval(scores).standard_error or 0) > 1.5 * error
    single = ratio_interval([*scores, Score(num=1)], [*strata, "c"])
    assert (single.standard_error, single.low) == (None, None)
    assert ratio_interval(scores, ["a"] * 8).standard_error == pytest.approx(ratio_interval(scores).standard_error)


@pytest.mark.parametrize("scores", [[], [Score(num=1, den=2)], [Score(num=0, den=0)] * 5])
def test_too_few_samples_give_no_interval(scores: list[Score]) -> None:
    interval = ratio_interval(scores)
    assert interval.value == pooled(scores)
    assert interval.standard_error is None
    assert interval.low is None
    assert interval.high is None
    assert distinguishable(interval, proportion_interval(0.5, 100)) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=20))
def test_scores_with_nothing_to_count_change_nothing(pairs: list[tuple[int, int]]) -> None:
    scores = [Score(num=min(num, den), den=den) for num, den in pairs]
    assert ratio_interval([*scores, Score(num=0, den=0)]) == ratio_interval(scores)
