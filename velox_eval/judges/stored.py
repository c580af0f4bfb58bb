"""Points that somebody else's judge gave and a file holds: read again by the rules for replies, never asked anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from velox_eval.judges.base import Judge, Ratings, Verdict
from velox_eval.judges.reply import parse_ratings


class StoredRatings(Judge):
    """Rates one answer with the points stored beside it; yes/no questions go to `judge`.

    `stored` is the judge's reply as text, or the JSON object it held. `rated_by` names who gave the points.
    """

    def __init__(self, judge: Judge, stored: Any, rated_by: str) -> None:
        self._judge = judge
        self._stored = stored if isinstance(stored, str) else json.dumps(stored)
        self._rated_by = rated_by

    @property
    def id(self) -> str:
        """The other judge's id and who gave the points."""
        return f"{self._judge.id}+stored:{self._rated_by}"

    @property
    def rates(self) -> bool:
        """True."""
        return True

    def contains(self, passage: str, description: str) -> Verdict:
        """Returns the other judge's verdict."""
        return self._judge.contains(passage, description)

    def contains_all(self, questions: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Returns the other judge's verdicts."""
        return self._judge.contains_all(questions)

    def rate(self, instruction: str, response: str) -> Ratings:
        """Returns the stored points."""
        return parse_ratings(self._stored)
