"""ROUGE-L against the package that LongBench scores with, and where ours goes on and the package gives up."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox_eval.metrics.rouge import rouge_l

rouge = pytest.importorskip("rouge", reason="extra dev")

PAIRS = [
    ("the cat sat on the mat", "the cat lay on the mat"),
    ("the cat sat on the mat.", "The cat sat on the mat"),
    ("a b c d. e f g. a b", "c d a b. g f e. b a"),
    ("one two. . three", "three. one two"),
    (" . ", "one"),
    ("x", "y"),
    ("a a a a", "a"),
    ("b a b a", "a b a b"),
    ("1.5 kg of flour and 2.5 l of milk", "2.5 kg of flour, 1.5 l of milk"),
    ("你 好 世界。 再见", "世界 你 好。 再见"),
]


def package(prediction: str, reference: str) -> float:
    """As LongBench calls it: 0 where it raises for an empty text."""
    try:
        return float(rouge.Rouge().get_scores([prediction], [reference], avg=True)["rouge-l"]["f"])
    except ValueError:
        return 0.0


@pytest.mark.parametrize(("prediction", "reference"), PAIRS)
def test_pairs(prediction: str, reference: str) -> None:
    assert rouge_l(prediction, reference) == pytest.approx(package(prediction, reference), abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(*[st.lists(st.sampled_from(["a", "b", "c", "d", "a.", ".", "..", "\n"]), max_size=12)] * 2)
def test_any_pair(prediction: list[str], reference: list[str]) -> None:
    first, second = " ".join(prediction), " ".join(reference)
    assert rouge_l(first, second) == pytest.approx(package(first, second), abs=1e-12)


def test_by_hand() -> None:
    """Longest common subsequence "the on the mat" and, with "cat", 4 different words of 5 on each side."""
    expected = 2 * 0.8 * 0.8 / (1.6 + 1e-8)
    assert rouge_l("the cat sat on the mat", "the cat lay on the mat") == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("text", ["", ".", "...", "\n"])
def test_an_empty_text_scores_nothing(text: str) -> None:
    assert rouge_l(text, "one two") == 0
    assert rouge_l("one two", text) == 0


def test_long_sentences_have_a_value_where_the_package_runs_out_of_stack() -> None:
    common = [f"w{i}" for i in range(350)]
    prediction, reference = (" ".join(common + [f"{name}{i}" for i in range(350)]) for name in "xy")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own; other tests may have raised it
    try:
        with pytest.raises(RecursionError):
            rouge.Rouge().get_scores([prediction], [reference], avg=True)
    finally:
        sys.setrecursionlimit(before)
    # 350 words in common, of 700 different ones on either side
    assert rouge_l(prediction, reference) == pytest.approx(2 * 0.25 / (1 + 1e-8), abs=1e-12)
