"""What a run tells whoever watches it. The base class ignores everything; the CLI draws a progress bar."""

from __future__ import annotations

from velox_eval.engine.requests import Progress
from velox_eval.records.schema import SampleRecord


class Observer:
    """Override what you want to see."""

    def note(self, message: str) -> None:
        """A sentence the user should read."""

    def started(self, samples: int, done: int) -> None:
        """The engine starts: `samples` in the run, `done` of them already on record."""

    def step(self, progress: Progress) -> None:
        """The engine made a step."""

    def recorded(self, record: SampleRecord) -> None:
        """A sample is on disk."""

    def ended(self) -> None:
        """The engine is through, interrupted or failed."""
