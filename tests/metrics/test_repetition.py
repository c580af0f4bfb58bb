from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox_eval.metrics.repetition import repetition_rate, words


@pytest.mark.parametrize(
    ("text", "n", "rate"),
    [
        ("one two three four", 4, 0.0),
        ("one two three", 4, None),
        ("", 4, None),
        ("a b c d a b c d", 4, 1 - 4 / 5),
        ("A b, c. D! a B c d", 4, 1 - 4 / 5),
        ("go " * 10, 4, 1 - 1 / 7),
        ("go " * 10, 10, 0.0),
        ("go " * 9, 10, None),
        ("go " * 40, 20, 1 - 1 / 21),
        ("你好你好你好", 2, 1 - 2 / 5),
    ],
)
def test_rate_is_one_minus_unique_over_all(text: str, n: int, rate: float | None) -> None:
    assert repetition_rate(text, n) == (None if rate is None else pytest.approx(rate))


def test_four_words_is_the_default() -> None:
    assert repetition_rate("a b c d a b c d") == repetition_rate("a b c d a b c d", n=4)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Don't stop - it’s 2 o'clock!", ["don't", "stop", "it's", "2", "o'clock"]),
        ("#*# Week 1 (Jan 1st):", ["week", "1", "jan", "1st"]),
        ("你好world再见", ["你", "好", "world", "再", "见"]),
        ("naïve ÉCOLE", ["naïve", "école"]),
        ("'quoted' well-known", ["quoted", "well", "known"]),
        ("かな カナ 한국", ["か", "な", "カ", "ナ", "한", "국"]),
    ],
)
def test_the_one_tokeniser(text: str, tokens: list[str]) -> None:
    assert words(text) == tokens


def test_n_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="n=0"):
        repetition_rate("a b", 0)


@given(st.text(), st.integers(1, 6))
def test_the_rate_is_a_fraction_below_one(text: str, n: int) -> None:
    rate = repetition_rate(text, n)
    assert rate is None or 0 <= rate < 1
    assert (rate is None) == (len(words(text)) < n)
