"""What a judge does. A judge is named in every record it had a part in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Verdict:
    """A judge's answer to a yes/no question; `yes` is None when it could not be read, with the reason."""

    yes: bool | None
    reason: str = ""


class Judge(Protocol):
    """Answers whether a passage contains what a description says."""

    @property
    def id(self) -> str:
        """Name and version, part of every record: `rules@1`, `mlx:...`, `openai:...`."""
        ...

    def contains(self, passage: str, description: str) -> Verdict:
        """Returns whether `passage` includes what `description` describes."""
        ...
