from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox_eval.metrics.repetition import (
    rates_at_equal_length,
    repeated_spans,
    repetition_by_decile,
    repetition_rate,
    words,
)


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


@pytest.mark.parametrize(
    ("text", "n", "repeated"),
    [
        ("one two three four", 2, []),
        ("a b c. A b c!", 3, ["A b c"]),
        ("a b x a b y a, b", 2, ["a b", "a, b"]),  # two stretches, apart
        ("go go go go", 2, ["go go go"]),  # overlapping n-grams are one stretch; the first stands
        ("İstanbul çok güzel, istanbul çok güzel; x çok güzel", 2, ["çok güzel", "çok güzel"]),
        ("你好吗 你好吗", 3, ["你好吗"]),
        ("\U0001f600 a b \U0001f600 a b", 2, ["a b"]),
    ],
)
def test_repeated_stretches_of_the_text(text: str, n: int, repeated: list[str]) -> None:
    assert [text[start:end] for start, end in repeated_spans(text, n)] == repeated


@given(st.text(alphabet="ab İΣ\U0001f600,x "), st.integers(1, 4))
def test_stretches_are_ordered_apart_and_hold_whole_words(text: str, n: int) -> None:
    spans = repeated_spans(text, n)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(left.end < right.start for left, right in itertools.pairwise(spans))
    assert bool(spans) == bool(repetition_rate(text, n))


def test_tenths_say_where_it_starts_to_loop() -> None:
    text = " ".join([*(f"w{i}" for i in range(54)), *["loop"] * 50])  # 101 four-grams
    tenths = repetition_by_decile(text)
    rates = [again / total for again, total in tenths]
    assert rates[:5] == [0.0] * 5
    assert 0 < rates[5] < 1
    assert rates[6:] == [1.0] * 4
    assert repetition_by_decile("too short") == []


@given(st.text(alphabet="abc "), st.integers(1, 5))
def test_tenths_add_up_to_the_rate(text: str, n: int) -> None:
    sums = repetition_by_decile(text, n)
    rate = repetition_rate(text, n)
    if rate is None:
        assert sums == []
    else:
        assert sum(again for again, _ in sums) / sum(total for _, total in sums) == pytest.approx(rate)


def test_at_equal_length_only_what_both_have_counts():
    """By hand: the long text's loop starts after the short one has ended."""
    short, long = "a b c d e", "a b c d e a b c d e"
    assert rates_at_equal_length(short, long) == (0.0, 0.0, 5)
    assert rates_at_equal_length(long, "p q r s p q r s p q") == (2 / 7, 3 / 7, 10)
    assert rates_at_equal_length("a b c", long) is None
