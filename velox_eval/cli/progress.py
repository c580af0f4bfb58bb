"""Progress on stderr: samples, tokens a second, cache bytes."""

from __future__ import annotations

import sys
import time
from typing import Any

from velox_eval.cli.console import err, plain
from velox_eval.engine.requests import Progress
from velox_eval.records.schema import SampleRecord
from velox_eval.records.sizes import human_bytes
from velox_eval.runs.observer import Observer

_TERMINAL_SECONDS = 0.25
_LOG_SECONDS = 10.0


class TerminalObserver(Observer):
    """Draws a tqdm bar; into a log file it writes a line now and then."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.title = ""  # before the bar: which run of several this is
        self._bar: Any = None
        self._errors = 0
        self._drawn = 0.0
        self._pause = _TERMINAL_SECONDS if sys.stderr.isatty() else _LOG_SECONDS

    def note(self, message: str) -> None:
        """Prints the sentence on stderr, above the bar where there is one."""
        if self._bar is None:
            err().print(plain(message), soft_wrap=True)
        else:
            self._bar.write(plain(message), file=sys.stderr)

    def started(self, samples: int, done: int) -> None:
        """Opens the bar where the run stands."""
        if self.quiet:
            return
        from tqdm import tqdm

        if done:
            self.note(f"Resuming: {done} of {samples} samples are on record.")
        self._bar = tqdm(
            total=samples,
            initial=done,
            desc=plain(self.title) or None,
            unit="sample",
            dynamic_ncols=True,
            mininterval=self._pause,
        )

    def step(self, progress: Progress) -> None:
        """Shows speed and bytes of what is being written."""
        if self._bar is None or time.monotonic() - self._drawn < self._pause:
            return
        self._drawn = time.monotonic()
        speed = "" if progress.tokens_per_second is None else f"{progress.tokens_per_second:.1f} tok/s, "
        failed = f", {self._errors} failed" if self._errors else ""
        self._bar.set_postfix_str(
            f"{progress.decoded_tokens} tok, {speed}cache {human_bytes(progress.cache_bytes)}{failed}"
        )

    def recorded(self, record: SampleRecord) -> None:
        """Advances the bar; says at once why a sample failed."""
        if record.status == "error":
            self._errors += 1
            self.note(f"sample {record.sample_id} failed: {record.error}")
        self.advance(1)

    def advance(self, samples: int) -> None:
        """Counts samples that are on record."""
        if self._bar is not None:
            self._bar.update(samples)

    def retitle(self, title: str) -> None:
        """Changes what stands before the bar."""
        self.title = title
        if self._bar is not None:
            self._bar.set_description(plain(title), refresh=False)

    def ended(self) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
