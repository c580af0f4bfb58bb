"""Answers of models that think aloud first."""

from __future__ import annotations

from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"


class Thought(NamedTuple):
    """An answer without its think trace. `finished` is None when there was no trace, False when it never ended."""

    answer: str
    finished: bool | None

    @property
    def details(self) -> dict[str, str]:
        """What a record says of the trace; nothing where there was none."""
        if self.finished is None:
            return {}
        return {"thinking": "finished" if self.finished else "cut off before an answer"}


def without_thinking(text: str) -> Thought:
    """Returns what follows the last end of a think trace; an empty answer when a trace began and did not end.

    Chat templates may open the trace themselves, so an end without a beginning is a trace too.
    """
    _, mark, answer = text.rpartition(CLOSE)
    if mark:
        return Thought(answer.lstrip(), True)
    return Thought("", False) if text.lstrip().startswith(OPEN) else Thought(text, None)
