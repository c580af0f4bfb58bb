"""Judges: who answers whether a text contains what was asked for, and how well it is written."""

from __future__ import annotations

from velox_eval.errors import ConfigError, unknown_name
from velox_eval.judges.base import DIMENSIONS, Judge, Ratings, Verdict
from velox_eval.judges.reply import parse_ratings, parse_yes_no
from velox_eval.judges.rules import RuleJudge

__all__ = [
    "DIMENSIONS",
    "JUDGES",
    "Judge",
    "Ratings",
    "RuleJudge",
    "Verdict",
    "get_judge",
    "parse_ratings",
    "parse_yes_no",
]

JUDGES = {"rules": RuleJudge}


def get_judge(name: str) -> Judge:
    """Returns the judge of that name. Raises ConfigError for an unknown one, with the nearest known."""
    if name not in JUDGES:
        raise ConfigError(unknown_name("judge", name, JUDGES))
    return JUDGES[name]()
