"""Repetition by part, with punctuation, by length; and against what MorphKV's authors stored for their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from velox_eval.metrics.longwriter import long_repetition, official_words
from velox_eval.metrics.repetition import repetition_rate, words


def test_the_second_half_is_that_of_the_words() -> None:
    text = "a b c d e f g h" + " go" * 8  # the middle lies before the first "go"
    assert repetition_rate(text, 4) == pytest.approx(1 - 9 / 13)
    assert repetition_rate(text, 4, part="second_half") == pytest.approx(1 - 1 / 5)
    assert repetition_rate("x " + text, 4, part="second_half") == pytest.approx(1 - 2 / 6)  # 17 words: the last 9


def test_too_short_a_second_half_has_no_rate() -> None:
    assert repetition_rate("a b c d a b c", 4, part="second_half") == 0
    assert repetition_rate("a b c d a b", 4, part="second_half") is None
    assert repetition_rate("", 4, part="second_half") is None


def test_marks_are_words_when_asked_for() -> None:
    assert words("Stop, don't - go!", marks=True) == ["stop", ",", "don't", "-", "go", "!"]
    assert words("你好。再见", marks=True) == ["你", "好", "。", "再", "见"]
    assert repetition_rate("a, b. a, b.", 4) == 0
    assert repetition_rate("a, b. a, b.", 4, marks=True) == pytest.approx(1 - 4 / 5)


def test_an_answer_with_fewer_words_is_left_out() -> None:
    assert repetition_rate("go, " * 9, 4, marks=True, least_words=10) is None
    assert repetition_rate("go, " * 10, 4, marks=True, least_words=10) == pytest.approx(1 - 2 / 17)


@pytest.mark.parametrize(
    ("stored", "answers", "mean"),
    [("FullAttn", "hopf_False", 0.886), ("H2O", "h2o_masked", 0.588), ("MKV", "sum_fused_win_fix", 0.676)],
)
def test_within_the_authors_stored_rates(shared_dir: Path, stored: str, answers: str, mean: float) -> None:
    """Answer by answer: theirs is NLTK's tokeniser, ours a simpler one. Their file lacks H2O's ninth long answer."""
    folder = shared_dir / "data" / "longwriter_morphkv_outputs"
    (path,) = (folder / "llama3.1-8b-instruct").glob(f"*{answers}*_judge.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [official_words(row["response"]) for row in rows] == [row["response_length"] for row in rows]
    ours = {row["response_length"]: long_repetition(row["response"], row["response_length"]) for row in rows}
    ours = {length: rate for length, rate in ours.items() if rate is not None}
    theirs = json.loads((folder / "ngram" / f"Llama_{stored}_ngram_data.json").read_text(encoding="utf-8"))
    rates = {item["response_length"]: item["repetition_rate"] for item in theirs if "response_length" in item}
    assert len(ours) == len(rates) + (stored == "H2O")
    for length, rate in rates.items():
        assert ours[length] == pytest.approx(rate, abs=0.02), length
    assert sum(ours[length] or 0 for length in rates) / len(rates) == pytest.approx(mean, abs=0.002)
