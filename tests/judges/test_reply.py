"""Replies of judges that answer in words (C4): the first word decides, and nothing is read into the rest."""

from __future__ import annotations

import pytest

from velox_eval.errors import ConfigError
from velox_eval.judges import get_judge, parse_yes_no


@pytest.mark.parametrize(
    ("reply", "yes"),
    [
        ("yes", True),
        ("Yes.", True),
        ("**Yes**, it says so.", True),
        ("\n> YES!", True),
        ("__yes__", True),
        ("yes, though no date is given", True),
        ("no", False),
        ("No, as of yesterday it does not", False),
        ("`no` - yes would be wrong", False),
        ("NO\n\nyes", False),
    ],
)
def test_the_first_word_decides(reply: str, yes: bool) -> None:
    assert parse_yes_no(reply).yes is yes


@pytest.mark.parametrize(
    "reply", ["", "  \n", "***", "maybe", "The answer is yes", "yesterday", "none", "nope", "not really", "1", "ja"]
)
def test_anything_else_is_unscored_with_a_reason(reply: str) -> None:
    verdict = parse_yes_no(reply)
    assert verdict.yes is None
    assert verdict.reason


def test_an_unknown_judge_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown judge 'rule'; did you mean 'rules'"):
        get_judge("rule")
