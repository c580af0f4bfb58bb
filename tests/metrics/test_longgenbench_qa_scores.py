"""LongGenBench of Liu et al.: answers found by number, compared by value; the authors' rule beside ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox_eval.metrics.longgenbench_qa import (
    answers_by_number,
    final_letter,
    final_number,
    is_right,
    qa_scores,
    question_results,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "Answer_9:\n3 + 2 = 5.\nThe answer is 5.\n\nAnswer_10:\nThe answer is 7.",
            {9: ("3 + 2", "5."), 10: ("The", "7.")},
        ),
        ("**Answer_9:** 5\n**Answer 10:** 7", {9: ("5", "5"), 10: ("7", "7")}),
        ("Answer_9: 5. Answer_10: 7.", {9: ("5.", "5."), 10: ("7.", "7.")}),
        ("1. Answer_9: 5\n2. Answer_10: 7\n3. Answer_11:", {9: ("5", "5"), 10: ("7", "7")}),
        ("Answer_9: 5\nQuestion_10: what is 3 + 4?\nAnswer_10: 7", {9: ("5", "5"), 10: ("7", "7")}),
        ("Answer_9: first\nAnswer_9: second", {9: ("first", "first")}),
        ("Answer_9:\n\nAnswer_9: second", {9: ("second", "second")}),
        ("Answer_9:\nline\n\nmore\n\nAnswer_11: x", {9: ("line", "more"), 11: ("x", "x")}),
        ("Answer_12: b\nAnswer_9: a", {9: ("a", "a"), 12: ("b", "b")}),
        ("## Answer_9\n5", {9: ("5", "5")}),
        ("Answer_9", {}),
        ("The answer 9. It is so.", {}),
        ("1. 5\n2. 7", {}),
        ("", {}),
        (f"Answer_{'9' * 5000}: 5", {}),
    ],
)
def test_answers_go_by_the_number_they_name(text: str, found: dict[int, tuple[str, str]]) -> None:
    answers = answers_by_number(text)
    assert set(answers) == set(found)
    for number, (start, end) in found.items():
        assert answers[number].startswith(start)
        assert answers[number].endswith(end)


@pytest.mark.parametrize(
    ("answer", "solution", "ours", "official"),
    [
        ("3 + 2 = 5. The answer is 5.", "5", True, True),
        ("The answer is $1,080.", "1080", True, True),
        ("The answer is 18.00 dollars.", "18", True, False),
        ("The answer is .5", "0.5", True, False),
        ("The answer is 1080.", "1,080", True, False),
        ("The answer is -5.", "5", True, True),
        ("The answer is 5.\nThat took 3 steps.", "5", True, False),
        ("The answer is 3, 4", "34", False, False),
        ("The answer is 3,4", "34", False, True),
        ("The answer is five.", "5", False, False),
        ("The answer is unclear, so 5 or 6", "6", True, True),
        ("6", "6", True, True),
        ("", "6", False, False),
        ("9" * 5000, "9" * 5000, False, True),
    ],
)
def test_numbers_are_compared_by_value(answer: str, solution: str, ours: bool, official: bool) -> None:
    assert is_right(answer, solution, "number") is ours
    assert is_right(answer, solution, "number", official=True) is official


@pytest.mark.parametrize(
    ("answer", "ours", "official"),
    [
        ("The answer is (B).", "B", "B"),
        ("The answer is B", "B", "B"),
        ("(A) is wrong. The answer is (B).\nA last word.", "B", "A"),
        ("Because of the Cranial Division", None, "D"),
        ("It is A or (C)", "C", "C"),
        ("none", None, None),
    ],
)
def test_letters_stand_by_themselves(answer: str, ours: str | None, official: str | None) -> None:
    assert final_letter(answer) == ours
    assert final_letter(answer, official=True) == official
    assert is_right(answer, "B", "letter") is (ours == "B")


def test_a_skipped_answer_shifts_nothing_and_stays_in_the_denominator() -> None:
    text = "Answer_9: The answer is 1.\nAnswer_11: The answer is 3.\nAnswer_12: The answer is 9.\nAnswer_1: 2"
    results = question_results(text, {9: "1", 10: "2", 11: "3", 12: "4"}, "number")
    assert [(r.number, r.answered, r.right) for r in results] == [
        (9, True, True),
        (10, False, False),
        (11, True, True),
        (12, True, False),
    ]
    scores = {name: (score.num, score.den) for name, score in qa_scores(results).items()}
    assert scores == {"accuracy": (2, 4), "accuracy_answered": (2, 3), "answered": (3, 4)}


def test_no_answer_at_all_has_no_accuracy_over_the_answered() -> None:
    scores = qa_scores(question_results("I do not know.", {5: "1", 6: "2"}, "number"))
    assert scores["accuracy"].value == 0
    assert scores["accuracy_answered"].value is None


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.data())
def test_every_order_of_the_answers_scores_the_same(solutions: list[int], data: st.DataObject) -> None:
    asked = {number: str(solution) for number, solution in enumerate(solutions, 9)}
    written = [f"Answer_{number}:\n1 + 1 = 2.\nThe answer is {solution}." for number, solution in asked.items()]
    text = "\n\n".join(data.draw(st.permutations(written)))
    assert qa_scores(question_results(text, asked, "number"))["accuracy"].value == 1


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert all(answer for answer in answers_by_number(text).values())
    number = final_number(text)
    assert number is None or any(character.isdecimal() for character in number)
    assert final_letter(text) in (None, "A", "B", "C", "D")
    is_right(text, "1", "number")
