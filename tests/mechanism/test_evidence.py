"""Paired tests: they find what is there, nothing in nulls, and say when they could not have."""

from __future__ import annotations

import numpy as np
import pytest

from velox_eval.mechanism.evidence import ALPHA, weigh
from velox_eval.mechanism.order import orders
from velox_eval.mechanism.study import Study


def test_a_clear_difference_holds_and_its_reverse_does_not() -> None:
    rng = np.random.default_rng(0)
    low = rng.normal(size=24)
    high = low + 1.0 + 0.1 * rng.normal(size=24)
    tested = weigh({"up": (high, low), "down": (low, high)})
    assert tested["up"].holds is True
    assert tested["down"].holds is False
    assert tested["down"].adjusted < ALPHA  # as clear, the other way round
    up = tested["up"]
    assert up.difference == pytest.approx((high - low).mean())
    assert (up.low or 9.0) < up.difference < (up.high or 0.0)


def test_the_same_on_both_sides_is_no_difference() -> None:
    same = np.linspace(0, 1, 24)
    tested = weigh({"same": (same, same)})["same"]
    assert (tested.p, tested.holds, tested.difference) == (1.0, False, 0.0)


def test_few_pairs_decide_nothing_however_clear() -> None:
    ones, zeros = np.ones(5), np.zeros(5)
    assert weigh({"five": (ones, zeros)})["five"].holds is None
    many = {str(number): (np.ones(9), np.zeros(9)) for number in range(30)}
    assert weigh(many)["0"].holds is None  # 2 / 2^9 x 30 is above 0.05
    assert weigh({"nine": (np.ones(9), np.zeros(9))})["nine"].holds is True


def test_nulls_are_called_different_no_more_often_than_the_level_says() -> None:
    """Of 300 families of five nulls, about 5% may have any member called different in either direction."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(300):
        sides = {i: (rng.normal(size=10), rng.normal(size=10)) for i in range(5)}
        wrong += any(one.adjusted < ALPHA for one in weigh(sides).values())
    assert wrong / 300 <= 0.085  # 0.05 and three standard errors


def test_pairs_without_a_number_are_left_out() -> None:
    first, second = np.ones(12), np.zeros(12)
    first[0] = second[1] = np.nan
    tested = weigh({"part": (first, second), "none": (np.full(12, np.nan), second)})
    assert tested["part"].difference == 1.0
    assert (tested["none"].difference, tested["none"].p, tested["none"].holds) == (None, 1.0, None)


def test_an_order_steps_down_only_where_the_seeds_can_tell() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 20)) * 0.01
    study = Study([], 20, ((256, 32),))
    for arm, mean, jitter in zip(("low", "high", "as high"), (0.1, 0.9, 0.9), noise, strict=True):
        study.values[arm] = {"shift": {(256, 32): dict.fromkeys(("retention", "unprotected"), mean + jitter)}}
        study.values[arm]["stable"] = {(256, 32): {"retention": np.ones(20)}}
    study.base = {"shift": {}, "stable": {}}
    found = {(order.regime, order.measure): order for order in orders(study, ["low", "high", "as high", "not run"])}
    shift = found["shift", "retention"]
    assert (set(shift.arms[:2]), shift.arms[2]) == ({"high", "as high"}, "low")
    assert shift.steps == (False, True)
    assert found["stable", "retention"].steps == (False, False)
    assert "= " in shift.words
    assert "> low 0.10" in shift.words
