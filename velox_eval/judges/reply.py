"""Reads the replies of judges that answer in words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from velox_eval.judges.base import DIMENSIONS, HIGHEST, LOWEST, Ratings, Verdict

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
    return Verdict(None, f"the reply starts with neither yes nor no: {_shown(reply)}")


def parse_ratings(reply: str) -> Ratings:
    """Returns the points of the one JSON object in the reply, bare, in a ```json fence or among words.

    All of DIMENSIONS must be there as whole numbers from 1 to 5, other names may be. Anything else is unreadable,
    with the reason; no point is ever filled in, rounded or cut to the range.
    """
    try:
        found = _objects(reply)
    except _RepeatedNameError as error:
        return Ratings(None, f"the reply gives {str(error)!r} twice")
    if len(found) != 1:
        return Ratings(
            None, f"the reply has {len(found) or 'no'} JSON objects where one was asked for: {_shown(reply)}"
        )
    points = found[0]
    missing = [name for name in DIMENSIONS if name not in points]
    if missing:
        return Ratings(None, f"the reply lacks {', '.join(missing)}")
    for name in DIMENSIONS:
        value = points[name]
        if type(value) is not int or not LOWEST <= value <= HIGHEST:
            return Ratings(None, f"{name} is {json.dumps(value)[:_SHOWN]}, no whole number from {LOWEST} to {HIGHEST}")
    return Ratings({name: points[name] for name in DIMENSIONS})


class _RepeatedNameError(Exception):
    """An object has one name more than once."""


def _objects(text: str) -> list[Mapping[str, Any]]:
    """The JSON objects in `text` that lie in no other one, in order."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique)
    found, at = [], text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # no JSON here, or nested beyond reading
            end = at + 1
        else:
            found.append(value)
        at = text.find("{", end)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _RepeatedNameError(name)
        found[name] = value
    return found


def _shown(text: str) -> str:
    return repr(" ".join(text.split())[:_SHOWN])
