"""What one process adds to a run's folder: records as outcomes come, and the header, however the work ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from velox_eval.engine.requests import EngineReport, Outcome, Request
from velox_eval.errors import StoreError
from velox_eval.records.schema import Cost, RunHeader, SampleRecord, Session
from velox_eval.records.store import RunFolder
from velox_eval.runs.observer import Observer
from velox_eval.runs.plan import Plan
from velox_eval.runs.sample import one_line, sample_record, scored_fields
from velox_eval.runs.stopwatch import Stopwatch
from velox_eval.runs.summary import summarise


@dataclass(frozen=True)
class RunResult:
    """A run as it stands: its records, its folder, and what was found there when it was opened."""

    header: RunHeader
    samples: tuple[SampleRecord, ...]  # sorted by index
    path: Path
    state: Literal["new", "resumed", "finished"]


def result_of(folder: RunFolder) -> RunResult:
    """Returns the run in `folder` as it stands."""
    samples = tuple(sorted(folder.samples, key=lambda record: record.index))
    return RunResult(folder.header, samples, folder.path, folder.state)


class Recorder:
    """One process's work on one run, whoever computes the outcomes.

    `begin` says what is left to do, `score_left` scores answers that are there, `record` takes each outcome, and one of
    `finish`, `interrupted` and `failed` writes the header. `report` says what the engine did so far. Seconds in the
    engine are measured into `watch` as "engine".
    """

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        report: Callable[[], EngineReport],
        observer: Observer,
        *,
        command: Sequence[str] = (),
        max_error_share: float = 0.0,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.observer = observer
        self.watch = Stopwatch()
        self.recorded = 0
        self._report = report
        self._command = list(command)
        self._max_error_share = max_error_share
        self._index = {sample.sample_id: index for index, sample in enumerate(plan.data.samples)}

    def begin(self) -> list[Request]:
        """Opens a session in the header and returns the requests without an answer, in the task's order.

        Raises StoreError for a folder with samples of another task.
        """
        folder, known = self.folder, self._index.keys()
        if folder.repaired:
            self.observer.note(folder.repaired)
        strangers = (folder.done | {record.sample_id for record in folder.unscored}) - known
        if strangers:
            raise StoreError(f"{folder.path} has samples that are not in the task: {', '.join(sorted(strangers)[:3])}")
        session = Session(started_at=datetime.now(UTC), command=self._command)
        folder.update(
            folder.header.model_copy(
                update={
                    "status": "started",
                    "error": None,
                    "finished_at": None,
                    "config": self.plan.config,  # batch size and file names may differ from the session before
                    "sessions": (*folder.header.sessions, session),
                }
            )
        )
        self.observer.started(len(known), len(folder.done))
        answered = folder.done | {record.sample_id for record in folder.unscored}
        return [request for request in self.plan.requests if request.sample_id not in answered]

    def score_left(self) -> None:
        """Scores the answers whose scoring failed the last time, and puts their records on disk."""
        plan = self.plan
        for left in self.folder.unscored:
            if left.answer is None or left.sample_id in self.folder.done:
                continue
            sample = plan.data.samples[self._index[left.sample_id]]
            with self.watch.measure("scoring"):
                fields = scored_fields(plan.task, sample, left.answer, plan.judge)
            self._store(SampleRecord.model_validate(left.model_dump() | fields))

    def record(self, outcome: Outcome) -> None:
        """Scores one outcome and puts its record on disk."""
        plan, index = self.plan, self._index[outcome.sample_id]
        sample, request = plan.data.samples[index], plan.requests[index]
        with self.watch.measure("scoring"):
            record = sample_record(plan.task, sample, index, request, outcome, plan.judge)
        self._store(record)

    def _store(self, record: SampleRecord) -> None:
        with self.watch.measure("store"):
            self.folder.append(record)
        self.recorded += 1
        self.observer.recorded(record)

    def finish(self) -> None:
        """Writes the header of a run whose samples were all attempted; raises StoreError when some were not."""
        missing = self._index.keys() - self.folder.done
        if missing:
            raise StoreError(f"the engine gave no answer to {', '.join(sorted(missing)[:3])}")
        failed = [record for record in self.folder.samples if record.status == "error"]
        count, allowed = len(self.plan.requests), self._max_error_share
        if len(failed) / count <= allowed:
            self._end("success")
            return
        why = f"{len(failed)} of {count} samples failed (allowed share: {allowed:g})"
        if answered := sum(record.answer is not None for record in failed):
            why += f", {answered} only in scoring: velox-eval score {self.folder.path} scores their answers"
        self._end("error", why)

    def interrupted(self) -> None:
        """Writes the header of a run that Ctrl-C ended; what is on disk counts as done."""
        self.folder.reread()
        self._end("cancelled")

    def failed(self, error: str) -> None:
        """Writes the header of a run that cannot go on."""
        self._end("error", one_line(error))

    def _end(self, status: Literal["success", "cancelled", "error"], error: str | None = None) -> None:
        header, report = self.folder.header, self._report()
        now = datetime.now(UTC)
        sessions = (*header.sessions[:-1], self._session(header.sessions[-1], now, report))
        complete = len(self.folder.done) == len(self.plan.requests)
        method = header.method.model_copy(
            update={"eviction_layers": report.eviction_layers, "other_layers": dict(report.other_layers)}
        )
        header = header.model_copy(update={"status": status, "error": error, "sessions": sessions, "method": method})
        header = header.model_copy(
            update={
                "summary": summarise(self.plan.task, header, self.folder.samples),
                "finished_at": now if complete else None,
            }
        )
        self.folder.update(header)

    def _session(self, session: Session, now: datetime, report: EngineReport) -> Session:
        wall, engine = self.watch.wall, self.watch.seconds.get("engine", 0.0)
        cost = Cost(
            decode_tokens=report.decode_tokens,
            decode_seconds=report.decode_seconds,
            prefill_tokens=report.prefill_tokens,
            prefill_seconds=report.prefill_seconds,
            wall_seconds=wall,
            engine_seconds=engine,
            scoring_seconds=self.watch.seconds.get("scoring", 0.0),
            store_seconds=self.watch.seconds.get("store", 0.0),
            harness_seconds=wall - engine,
        )
        return session.model_copy(
            update={
                "ended_at": now,
                "samples": self.recorded,
                "batch_sizes": report.batch_sizes,
                "mlx_peak_bytes": report.mlx_peak_bytes,
                "cost": cost,
            }
        )
