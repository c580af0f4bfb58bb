"""What a judge does. A judge is named in every record it had a part in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velox_eval.errors import JudgeError

DIMENSIONS = ("Relevance", "Accuracy", "Coherence", "Clarity", "Breadth and Depth", "Reading Experience")
LOWEST, HIGHEST = 1, 5


@dataclass(frozen=True)
class Verdict:
    """A judge's answer to a yes/no question; `yes` is None when it could not be read, with the reason."""

    yes: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Ratings:
    """A judge's points, 1 to 5 for each of DIMENSIONS; `values` is None when they could not be read, with the reason.

    One reply gives whole numbers; where a judge was asked several times they are means.
    """

    values: Mapping[str, float] | None
    reason: str = ""


class Judge(ABC):
    """Answers whether a passage contains what a description says and, if it `rates`, how well a text is written."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Name and version, part of every record: `rules@2`, `openai:gpt-4o@api.openai.com#1`."""

    @property
    def rates(self) -> bool:
        """Whether `rate` works."""
        return False

    @property
    def parallel(self) -> int:
        """Answers that may be scored at a time; 1 for a judge that works on this machine."""
        return 1

    def repeat(self, turn: int) -> Judge:
        """Returns the judge as it answers when asked for the `turn`-th time (from 0): itself where nothing varies."""
        return self

    def prepare(self) -> None:
        """Makes sure that the judge can be asked. Raises JudgeError saying why it cannot."""
        return None

    def for_answer(self) -> Judge:
        """Returns the judge for one answer: what its `notes` tell is about that answer alone."""
        return self

    def notes(self) -> dict[str, Any]:
        """Returns what a record should say of the judging, JSON-able; nothing where a judge replies once."""
        return {}

    @abstractmethod
    def contains(self, passage: str, description: str) -> Verdict:
        """Returns whether `passage` includes what `description` describes. Raises JudgeError when no reply comes."""

    def contains_all(self, questions: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Returns `contains` of every (passage, description), in order; a judge may answer several at a time."""
        return [self.contains(passage, description) for passage, description in questions]

    def rate(self, instruction: str, response: str) -> Ratings:
        """Returns how well `response` answers `instruction`. Raises JudgeError when no reply comes."""
        raise JudgeError(f"judge {self.id} does not rate texts; give one that does: mlx:MODEL or openai:MODEL@URL")
