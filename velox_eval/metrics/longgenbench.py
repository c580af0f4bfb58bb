"""LongGenBench (Wu et al.): splitting an answer into entries, and the scores over its checks. Pure functions.

Formulas: `text` is the first entry's header followed by the generation; blocks are what lies between separators;
the number after the entry word in a block is its entry, and the first block of an entry counts. With
`found` = entries of 1..number that have a block:

    completion      100 * found / number, mean over answers
    acc_<category>  yes / judged checks of that category (judged: its entry was found)
    stic_1          yes / judged, all categories
    stic_2          yes / asked: a check whose entry is missing counts as no
    wavg            completion * stic_2 (percent)

A check whose verdict could not be read is in no numerator and no denominator, and is counted apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velox_eval.records.score import Score, pooled

SEPARATOR = "#*#"
CATEGORIES = ("once", "range", "periodic")
TENTHS = 10
_LONGEST_ID = 9  # digits; a looping model can write numbers of thousands of digits


@dataclass(frozen=True)
class CheckResult:
    """One check of one answer. `yes` is None when the entry is missing, or when the verdict could not be read."""

    category: str
    entry: int
    found: bool
    yes: bool | None

    @property
    def unreadable(self) -> bool:
        """Whether the entry was there and the judge's reply was of no use."""
        return self.found and self.yes is None

    def as_list(self) -> list[Any]:
        """Returns [category, entry, found, yes], as kept in records."""
        return [self.category, self.entry, self.found, self.yes]


def split_blocks(text: str) -> list[str]:
    """Returns the pieces between separators; the first is what stands before any (empty with a prefix)."""
    return text.split(SEPARATOR)


def entries(blocks: Iterable[str], entry_word: str) -> dict[int, str]:
    """Returns entry number -> block: the first number after `entry_word` in a block, the first block of a number."""
    pattern = re.compile(rf"{re.escape(entry_word)} (\d+)")
    found: dict[int, str] = {}
    for block in blocks:
        match = pattern.search(block)
        if match and len(match[1]) <= _LONGEST_ID:
            found.setdefault(int(match[1]), block)
    return found


def completion(found: Iterable[int], number: int) -> Score:
    """Returns the percentage of entries 1..number that were written, as one answer's share of a mean."""
    return Score(num=100 * len({entry for entry in found if 1 <= entry <= number}) / number)


def check_scores(results: Sequence[CheckResult]) -> dict[str, Score]:
    """Returns acc_once, acc_range, acc_periodic, stic_1 and stic_2; a score with nothing to count has `den` 0."""
    readable = [result for result in results if not result.unreadable]
    judged = [result for result in readable if result.found]
    scores = {f"acc_{name}": _share([r for r in judged if r.category == name]) for name in CATEGORIES}
    return {**scores, "stic_1": _share(judged), "stic_2": _share(readable)}


def _share(results: Sequence[CheckResult]) -> Score:
    return Score(num=sum(result.yes is True for result in results), den=len(results))


def derived_scores(pooled_scores: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns average_accuracy (mean of the three categories; None if one is) and wavg (percent)."""
    parts = [pooled_scores.get(f"acc_{name}") for name in CATEGORIES]
    known = [part for part in parts if part is not None]
    done, right = pooled_scores.get("completion"), pooled_scores.get("stic_2")
    return {
        "average_accuracy": sum(known) / len(parts) if len(known) == len(parts) else None,
        "wavg": None if done is None or right is None else done * right,
    }


def accuracy_by_entry(answers: Iterable[tuple[int, Sequence[Sequence[Any]]]]) -> dict[str, list[float | None]]:
    """Returns pooled accuracy in tenths of the answer, by entry number, None where nothing was asked.

    `answers` are (number, checks) with checks as [category, entry, found, yes]. `accuracy_by_entry` is over all
    checks asked there (stic_2), `accuracy_found_by_entry` over those whose entry was written (stic_1).
    """
    asked: list[list[Score]] = [[] for _ in range(TENTHS)]
    judged: list[list[Score]] = [[] for _ in range(TENTHS)]
    for number, checks in answers:
        for _category, entry, found, yes in checks:
            if found and yes is None:
                continue
            tenth = min((entry - 1) * TENTHS // number, TENTHS - 1)  # official data asks for week 53 of 52
            score = Score(num=yes is True)
            asked[tenth].append(score)
            if found:
                judged[tenth].append(score)
    return {
        "accuracy_by_entry": [pooled(part) for part in asked],
        "accuracy_found_by_entry": [pooled(part) for part in judged],
    }
