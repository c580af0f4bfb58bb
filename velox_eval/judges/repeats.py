"""A judge asked several times: the majority or the mean decides, and how often it contradicts itself is counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import variance
from typing import Any

from velox_eval.judges.base import DIMENSIONS, Judge, Ratings, Verdict


class Panel(Judge):
    """`judge` asked `repeats` times. `notes` tells how far its replies were from each other.

    Of readable replies the majority decides a yes/no question (none: unreadable, as is a tie), and the mean each
    dimension of a rating.
    """

    def __init__(self, judge: Judge, repeats: int) -> None:
        self.judge = judge
        self.repeats = repeats
        self._verdicts: list[Sequence[Verdict]] = []  # by question
        self._ratings: list[Sequence[Ratings]] = []

    @property
    def id(self) -> str:
        """The judge's id and how often it is asked: what few replies decide is not what many do."""
        return f"{self.judge.id} x{self.repeats}"

    @property
    def rates(self) -> bool:
        """Whether the judge does."""
        return self.judge.rates

    @property
    def parallel(self) -> int:
        """As many answers as the judge takes."""
        return self.judge.parallel

    def prepare(self) -> None:
        """Prepares the judge."""
        self.judge.prepare()

    def for_answer(self) -> Panel:
        """Returns the same panel with nothing noted yet."""
        return Panel(self.judge, self.repeats)

    def contains(self, passage: str, description: str) -> Verdict:
        """Returns what most replies say."""
        return self.contains_all([(passage, description)])[0]

    def contains_all(self, questions: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Returns what most replies say to every question, in order."""
        replies = list(zip(*(turn.contains_all(questions) for turn in self._turns()), strict=True))
        self._verdicts += replies
        return [_majority(verdicts) for verdicts in replies]

    def rate(self, instruction: str, response: str) -> Ratings:
        """Returns the mean of the readable replies."""
        replies = [turn.rate(instruction, response) for turn in self._turns()]
        self._ratings.append(replies)
        readable = [reply.values for reply in replies if reply.values is not None]
        if not readable:
            return replies[0]
        return Ratings({name: sum(points[name] for points in readable) / len(readable) for name in DIMENSIONS})

    def _turns(self) -> list[Judge]:
        return [self.judge.repeat(turn) for turn in range(self.repeats)]

    def notes(self) -> dict[str, Any]:
        """Returns the counts for a record, JSON-able.

        `pairs` of readable replies to one question (of a rating: to one dimension) of which `differing` are not the
        same; `unreadable` replies; `squares` and `spreads`: the sum over ratings and dimensions of the variance
        between replies, in points squared, and how many were summed; `ratings`: the points as they were given.
        """
        groups: list[list[Any]] = [[v.yes for v in verdicts if v.yes is not None] for verdicts in self._verdicts]
        given = [[r.values for r in replies if r.values is not None] for replies in self._ratings]
        points: list[list[Any]] = [[values[name] for values in readable] for readable in given for name in DIMENSIONS]
        pairs = [a != b for group in groups + points for a, b in combinations(group, 2)]
        squares = [variance(group) for group in points if len(group) > 1]
        return {
            "repeats": self.repeats,
            "questions": len(self._verdicts) + len(self._ratings),
            "pairs": len(pairs),
            "differing": sum(pairs),
            "unreadable": sum(v.yes is None for verdicts in self._verdicts for v in verdicts)
            + sum(r.values is None for replies in self._ratings for r in replies),
            "squares": math.fsum(squares),
            "spreads": len(squares),
            "ratings": [[_plain(reply) for reply in replies] for replies in self._ratings],
        }


def _majority(verdicts: Sequence[Verdict]) -> Verdict:
    yes, no = (sum(verdict.yes is answer for verdict in verdicts) for answer in (True, False))
    if yes == no:
        return Verdict(None, f"{yes} of {len(verdicts)} replies say yes, {no} no" if yes else verdicts[0].reason)
    return Verdict(yes > no)


def _plain(reply: Ratings) -> Mapping[str, float] | str:
    return reply.reason if reply.values is None else dict(reply.values)
