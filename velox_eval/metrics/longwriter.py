"""LongBench-Write and LongWrite-Ruler (Bai et al.): the length score, its word count, and the judge's points. Pure.

    words  Chinese characters (U+4E00 to U+9FFF) + runs of Latin letters between word boundaries; digits, letters with
           accents and words that hold any ("café") count nothing. The authors' count, for their scores only: our other
           scores use the tokeniser of metrics.repetition.
    S_l    x words required, y written: 100 * max(0, 1 - (y / x - 1) / 3) for y > x,
           else 100 * max(0, 1 - (x / y - 1) / 2)
    S_q    mean over six dimensions of 25 * (points - 1), points 1 to 5

The authors' S_l divides by zero on an empty answer; ours is 0 there, as in MorphKV's copy. Their S_q drops answers
whose rating could not be read; ours counts them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from velox_eval.judges.base import DIMENSIONS, LOWEST
from velox_eval.metrics.repetition import repetition_rate
from velox_eval.records.score import Score

LONG_WORDS = 5000  # from here on MorphKV's authors measure repetition

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_LATIN = re.compile(r"\b[a-zA-Z]+\b")
_STEP = 25  # from points 1..5 to 0..100


def official_words(text: str) -> int:
    """Returns the authors' word count: Chinese characters and Latin words."""
    return len(_CHINESE.findall(text)) + len(_LATIN.findall(text))


def length_score(required: int, written: int) -> float:
    """Returns S_l, 0 to 100: 100 at the required length, falling faster for answers too short than too long.

    Raises ValueError for fewer than one word required or a negative number written.
    """
    if required < 1 or written < 0:
        raise ValueError(f"required={required} must be at least 1 and written={written} at least 0")
    if written == 0:
        return 0.0
    if written > required:
        return 100 * max(0.0, 1 - (written / required - 1) / 3)
    return 100 * max(0.0, 1 - (required / written - 1) / 2)


def quality_scores(points: Mapping[str, float]) -> dict[str, Score]:
    """Returns s_q and s_q_<dimension>, 0 to 100, from a judge's points on each of DIMENSIONS."""
    scores = {quality_name(name): Score(num=_STEP * (points[name] - LOWEST)) for name in DIMENSIONS}
    return {"s_q": Score(num=sum(score.num for score in scores.values()) / len(DIMENSIONS)), **scores}


def quality_name(dimension: str) -> str:
    """Returns the score's name for a dimension: `s_q_breadth_and_depth`."""
    return f"s_q_{dimension.lower().replace(' ', '_')}"


def long_repetition(text: str, written: int) -> float | None:
    """Returns the repetition rate by MorphKV's authors' rules for LongWriter, None where they leave an answer out.

    1 - unique / total 10-grams, punctuation counted, of answers with at least LONG_WORDS official words.
    """
    return repetition_rate(text, 10, marks=True) if written >= LONG_WORDS else None
