"""Blocks, denominators and tenths by hand-made answers, through the metric's public functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox_eval.metrics.longgenbench import (
    CheckResult,
    accuracy_by_entry,
    check_scores,
    completion,
    derived_scores,
    entries,
    split_blocks,
)


def test_the_first_block_of_an_entry_counts() -> None:
    blocks = split_blocks("#*# Floor 1: lobby #*# Floor 2: spa #*# Floor 1: again")
    assert blocks == ["", " Floor 1: lobby ", " Floor 2: spa ", " Floor 1: again"]
    assert entries(blocks, "Floor") == {1: " Floor 1: lobby ", 2: " Floor 2: spa "}


def test_the_first_number_of_a_block_counts() -> None:
    assert list(entries([" Floor 3 above Floor 2"], "Floor")) == [3]


@pytest.mark.parametrize("word", ["Menu Week", "C++ Level", "Floor (inner)", "[x]", "a.c"])
def test_the_entry_word_is_taken_literally(word: str) -> None:
    assert list(entries([f" {word} 7: x", " abc 8: y"], word)) == [7]


def test_numbers_that_no_answer_asks_for_are_left_alone() -> None:
    assert entries([" Floor " + "1" * 5000, " Floor x", " floor 2", "Floor  3"], "Floor") == {}
    assert list(entries([" Floor 007"], "Floor")) == [7]


def test_completion_counts_asked_entries_once() -> None:
    assert completion({1, 2}, 4).value == 50.0
    assert completion({1, 2, 0, 9}, 4).value == 50.0
    assert completion([], 4).value == 0.0


def test_four_asked_two_written_both_right() -> None:
    results = [
        CheckResult("once", 1, True, True),
        CheckResult("range", 2, True, True),
        CheckResult("once", 3, False, None),
        CheckResult("periodic", 4, False, None),
    ]
    scores = check_scores(results)
    assert scores["stic_1"].value == 1.0
    assert scores["stic_2"].value == 0.5
    assert (scores["stic_2"].num, scores["stic_2"].den) == (2, 4)
    assert scores["acc_once"].value == 1.0
    assert scores["acc_periodic"].value is None


def test_an_unreadable_verdict_is_in_no_denominator() -> None:
    results = [
        CheckResult("once", 1, True, None),
        CheckResult("once", 2, True, False),
        CheckResult("once", 3, True, True),
        CheckResult("once", 4, False, None),
    ]
    scores = check_scores(results)
    assert (scores["stic_1"].num, scores["stic_1"].den) == (1, 2)
    assert (scores["stic_2"].num, scores["stic_2"].den) == (1, 3)


def test_derived_scores() -> None:
    pooled = {"completion": 80.0, "stic_2": 0.25, "acc_once": 0.6, "acc_range": 0.3, "acc_periodic": 0.0}
    derived = derived_scores(pooled)
    assert derived["average_accuracy"] == pytest.approx(0.3)
    assert derived["wavg"] == pytest.approx(20.0)
    assert derived_scores({**pooled, "acc_range": None})["average_accuracy"] is None
    assert derived_scores({}) == {"average_accuracy": None, "wavg": None}


def test_accuracy_by_entry_pools_answers_of_different_lengths() -> None:
    short = (10, [["once", 1, True, True], ["once", 10, False, None], ["range", 5, True, None]])
    long = (100, [["once", 10, True, False], ["periodic", 100, True, True], ["range", 101, False, None]])
    curves = accuracy_by_entry([short, long])
    assert curves["accuracy_by_entry"] == [0.5, *[None] * 8, pytest.approx(1 / 3)]
    assert curves["accuracy_found_by_entry"] == [0.5, *[None] * 8, 1.0]


check = st.builds(
    CheckResult,
    st.sampled_from(["once", "range", "periodic"]),
    st.integers(1, 20),
    st.booleans(),
    st.sampled_from([True, False, None]),
).map(lambda r: r if r.found else CheckResult(r.category, r.entry, False, None))


@given(st.lists(check, max_size=30))
def test_counts_add_up(results: list[CheckResult]) -> None:
    scores = check_scores(results)
    parts = [scores[f"acc_{name}"] for name in ("once", "range", "periodic")]
    assert sum(part.num for part in parts) == scores["stic_1"].num == scores["stic_2"].num
    assert sum(part.den for part in parts) == scores["stic_1"].den <= scores["stic_2"].den <= len(results)
