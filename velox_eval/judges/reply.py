"""Reads the yes/no replies of judges that answer in words."""

from __future__ import annotations

import re

from velox_eval.judges.base import Verdict

_FIRST_WORD = re.compile(r"[^\W_]+")
_SHOWN = 60


def parse_yes_no(reply: str) -> Verdict:
    """Returns yes or no by the reply's first word, whatever marks stand around it ("**Yes**, ...").

    Anything else is unreadable, with the reason: a later "yes" may well stand in a sentence that says no.
    """
    match = _FIRST_WORD.search(reply)
    if match is None:
        return Verdict(None, "the reply has no words")
    word = match[0].lower()
    if word in ("yes", "no"):
        return Verdict(word == "yes")
    return Verdict(None, f"the reply starts with neither yes nor no: {' '.join(reply.split())[:_SHOWN]!r}")
