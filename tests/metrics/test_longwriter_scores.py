"""LongWriter's length score, word count and quality points, by hand and as its authors' files have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox_eval.judges import DIMENSIONS
from velox_eval.metrics.longwriter import length_score, long_repetition, official_words, quality_scores


@pytest.mark.parametrize(
    ("required", "written", "score"),
    [
        (1000, 0, 0.0),
        (1000, 1000, 100.0),
        (1000, 2000, 200 / 3),
        (1000, 500, 50.0),
        (1000, 333, 0.0),
        (1000, 334, 100 * (1 - (1000 / 334 - 1) / 2)),
        (1000, 4000, 0.0),
        (1000, 3999, 100 * (1 - 2.999 / 3)),
        (1000, 90000, 0.0),
        (1, 1, 100.0),
    ],
)
def test_length_score(required: int, written: int, score: float) -> None:
    assert length_score(required, written) == pytest.approx(score, abs=1e-9)


@given(st.integers(1, 50_000), st.integers(0, 200_000))
def test_a_length_score_is_a_percentage_and_whole_only_at_the_length(required: int, written: int) -> None:
    score = length_score(required, written)
    assert 0 <= score <= 100
    assert (score == 100) == (required == written)


@pytest.mark.parametrize(("required", "written"), [(0, 5), (-1, 5), (10, -1)])
def test_impossible_lengths_are_refused(required: int, written: int) -> None:
    with pytest.raises(ValueError, match=f"required={required} must be at least 1 and written={written}"):
        length_score(required, written)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a well-known fact that 42 cats saw 3 dogs.", 10),
        ("你好 world 2024", 3),
        ("café naïve", 0),
        ("", 0),
        ("...", 0),
        ("字字 a字b", 3),
        ("snake_case x1", 0),
        ("かな 한국", 0),
    ],
)
def test_official_word_count(text: str, words: int) -> None:
    assert official_words(text) == words


def test_quality_is_the_mean_of_six_dimensions_from_0_to_100() -> None:
    points = dict(zip(DIMENSIONS, (5, 4, 3, 2, 1, 3), strict=True))
    scores = {name: score.value for name, score in quality_scores(points).items()}
    assert scores == {
        "s_q": 50,
        "s_q_relevance": 100,
        "s_q_accuracy": 75,
        "s_q_coherence": 50,
        "s_q_clarity": 25,
        "s_q_breadth_and_depth": 0,
        "s_q_reading_experience": 50,
    }


def test_long_repetition_is_of_long_answers_with_their_punctuation() -> None:
    text = "one, two, three. " * 2000  # 6 tokens a turn; six 10-grams in all
    assert long_repetition(text, 6000) == pytest.approx(1 - 6 / (12000 - 9))
    assert long_repetition(text, 5000) is not None
    assert long_repetition(text, 4999) is None
