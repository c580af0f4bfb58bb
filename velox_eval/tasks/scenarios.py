"""Makes the bundled LongGenBench scenarios from a seed: the official schema, our own words, short prompts.

The same seed and number of entries give the same rows on every machine and Python version: every draw is a
SHA-256 of what it is for, not a library's random generator.
"""

from __future__ import annotations

from typing import Any

from velox_eval.tasks.draws import Draws
from velox_eval.tasks.scenario_banks import FAMILIES, Family

GENERATOR = "velox-eval scenarios 1"
_FIRST_CHECKED = 3  # entries 1 and 2 are the prompt's examples; copying them must not score


def scenarios(seed: int, entries: int, count: int) -> list[dict[str, Any]]:
    """Returns `count` rows of `entries` entries each, the four families taking turns (at least 8 entries)."""
    return [_scenario(FAMILIES[index % len(FAMILIES)], seed, entries, index) for index in range(count)]


def _scenario(family: Family, seed: int, entries: int, index: int) -> dict[str, Any]:
    draws = Draws(GENERATOR, seed, entries, index, family.type)
    setting = family.settings[(index // len(FAMILIES)) % len(family.settings)]
    last, room = entries, entries - _FIRST_CHECKED + 1
    singles = min(3 + entries // 26, len(family.once))
    once = dict(
        zip(
            sorted(draws.pick(range(_FIRST_CHECKED, last + 1), singles)),
            draws.pick(family.once, singles),
            strict=True,
        )
    )
    length = max(2, min(entries // 5, 12))
    start = _FIRST_CHECKED + draws.below(room - length + 1)
    ranged = dict.fromkeys(range(start, start + length), draws.pick(family.range, 1)[0])
    step = max(3, entries // 6) + draws.below(2)
    offset = _FIRST_CHECKED + draws.below(step)
    periodic = dict.fromkeys(range(offset, last + 1, step), draws.pick(family.periodic, 1)[0])
    prefix = f"#*# {family.type} 1:"
    word = family.type.split()[-1]
    lines = [
        f"{setting.task}: {entries} entries of about 25 words, one for each {family.unit}. "
        f"The list says what some entries must be about:",
        f"{word} 1: {_first_sentence(setting.first)}",
        f"{word} 2: {_first_sentence(setting.second)}",
        *(f"{word} {entry}: {text}" for entry, text in once.items()),
        f"{word} {start} to {word} {start + length - 1}: {ranged[start]}",
        f"Every {step} {family.unit}s from {word} {offset} on: {periodic[offset]}",
        f"No {family.unit} is left out, and after {word} {entries} comes '*** finished'. "
        f"Every entry starts with '#*#':",
        f"{prefix} {setting.first}",
        f"#*# {family.type} 2: {setting.second}",
        "*** started ***",
        prefix,
    ]
    return {
        "prompt": "\n".join(lines),
        "checks_once": _by_text(once),
        "checks_range": _by_text(ranged),
        "checks_periodic": _by_text(periodic),
        "type": family.type,
        "prefix": prefix,
        "number": entries,
    }


def _by_text(table: dict[int, str]) -> dict[str, str]:
    return {str(entry): text for entry, text in table.items()}


def _first_sentence(text: str) -> str:
    return text.split(".", 1)[0]
