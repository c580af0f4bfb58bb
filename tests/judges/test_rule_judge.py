"""The rule judge against labelled pairs of our own; the held-out part was written after the rules and not tuned on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from velox_eval.judges import RuleJudge

PAIRS = Path(__file__).with_name("labelled_entries.jsonl")


@dataclass(frozen=True)
class Pair:
    passage: str
    description: str
    label: bool
    held_out: bool


def _pairs() -> list[Pair]:
    entries = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    return [
        Pair(entry["passage"], description, label, entry["held_out"])
        for entry in entries
        for label, key in ((True, "yes"), (False, "no"))
        for description in entry[key]
    ]


def _quality(pairs: list[Pair]) -> tuple[float, float]:
    judge = RuleJudge()
    said = [(judge.contains(pair.passage, pair.description).yes, pair.label) for pair in pairs]
    right = sum(yes is True and label for yes, label in said)
    precision = right / sum(yes is True for yes, _ in said)
    recall = right / sum(label for _, label in said)
    return precision, recall


def test_there_are_enough_pairs_and_half_are_checks_swapped_in_from_other_entries() -> None:
    pairs = _pairs()
    asked_elsewhere = {pair.description for pair in pairs if pair.label}
    swapped = [pair for pair in pairs if not pair.label and pair.description in asked_elsewhere]
    assert len(pairs) >= 200
    assert len(swapped) >= 0.5 * len(pairs)
    assert sum(pair.held_out for pair in pairs) >= 0.3 * len(pairs)
    assert len({(pair.passage, pair.description) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(("part", "least"), [("all", 0.9), ("tuned", 0.9), ("held out", 0.85)])
def test_precision_and_recall(part: str, least: float, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [pair for pair in _pairs() if part == "all" or pair.held_out == (part == "held out")]
    precision, recall = _quality(pairs)
    with capsys.disabled():
        print(f"\nrule judge, {part}: {len(pairs)} pairs, precision {precision:.3f}, recall {recall:.3f}")
    assert precision >= least
    assert recall >= least


@pytest.mark.parametrize(
    ("passage", "description", "yes"),
    [
        ("Floor 3: A library with armchairs.", "library", True),
        ("Floor 3: There is no library here.", "library", False),
        ("Floor 3: A cafe next to the library.", "library", False),
        ("Floor 3: This level is home to the library.", "library", True),
        ("Floor 3: This level serves the library across the street.", "library", False),
        ("Floor 3: The day care centre.", "daycare center", True),
        ("Floor 3: Three libraries share this level.", "library", True),
        ("Week 3: My father's 60th birthday, with the whole family.", "my father birthday", True),
        ("Week 3: My father baked a cake for my mother's birthday.", "my father birthday", False),
        ("Week 3: My father baked a cake for my mother's birthday.", "my mother birthday", True),
        ("Week 3: My husband celebrated his birthday on Monday.", "my wife birthday", False),
        ("Week 3: My own birthday, and I slept late.", "husband (yourself) birthday", True),
        ("Week 3: Our youngest turned six.", "my child_3 birthday", True),
        ("Week 3: Our youngest turned six.", "my child_1 birthday", False),
        ("Week 3: child_2's birthday was on Tuesday.", "my child_2 birthday", True),
        ("Week 3: child_2's birthday was on Tuesday.", "my child_1 birthday", False),
        ("Week 3: My wife's birthday and my father's birthday.", "my wife birthday, my father birthday", True),
        ("Week 3: My wife's birthday and my father's visit.", "my wife birthday, my father birthday", False),
        ("Menu Week 3: Burger Mondays: soup only.", "Burger Mondays featuring Gourmet Burgers", False),
        ("Menu Week 3: Burger Monday, gourmet burgers!", "Burger Mondays featuring Gourmet Burgers", True),
        ("Week 3: Next week we have the wine-tasting evening.", "Attend wine tasting evenings", False),
        ("Week 3: A wine-tasting evening with cheese.", "Attend wine tasting evenings", True),
        ("", "library", False),
        ("Week 9:", "Week", False),
    ],
)
def test_single_rules(passage: str, description: str, yes: bool) -> None:
    assert RuleJudge().contains(passage, description).yes is yes


@pytest.mark.parametrize("description", ["", "  ", "***", "—"])
def test_a_description_without_words_cannot_be_judged(description: str) -> None:
    verdict = RuleJudge().contains("Floor 3: A library.", description)
    assert verdict.yes is None
    assert "no words" in verdict.reason


@pytest.mark.parametrize(
    "passage", ["\x00", "é" * 5000, "a" * 20000, "birthday " * 3000, "his birthday", "'s birthday"]
)
@pytest.mark.parametrize("description", ["library", "my father birthday", "(yourself) birthday", "of the", "图书馆"])
def test_any_text_gets_a_verdict(passage: str, description: str) -> None:
    assert RuleJudge().contains(passage, description).yes is False


def test_words_in_other_scripts_are_found() -> None:
    assert RuleJudge().contains("Floor 2: 图书馆 and a café.", "图书馆").yes is True


def test_the_judge_names_its_version() -> None:
    assert RuleJudge().id == "rules@2"
