"""Wall time of a run, split by who spends it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Adds up seconds under names; time measured inside another measurement counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()
        self._nested = 0.0

    @property
    def wall(self) -> float:
        """Seconds since this was made."""
        return time.perf_counter() - self._started

    def add(self, name: str, seconds: float) -> None:
        """Counts seconds that were spent before this was made; `wall` has them too."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._started -= seconds

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Counts the block's seconds under `name`."""
        outer, self._nested = self._nested, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._nested
            self._nested = outer + spent
