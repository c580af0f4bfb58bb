"""What a cluster's sweep keeps in its head: workers, orders on their way, and runs being recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from velox_eval.engine.requests import EngineReport, Outcome, Progress, Request
from velox_eval.pipelines.cluster_worker import MethodChoice
from velox_eval.pipelines.matrix import PlannedRun
from velox_eval.pipelines.sweep import Spread, SweepRun, failed, finished
from velox_eval.records.schema import ModelInfo, SampleRecord
from velox_eval.records.store import RunFolder
from velox_eval.runs.observer import Observer
from velox_eval.runs.plan import Plan
from velox_eval.runs.recorder import Recorder, result_of
from velox_eval.runs.runner import announce, open_run

DEFAULT_BATCH = 8
_MOST_BATCHES = 4  # an order has at most so many


@dataclass
class Worker:
    """One worker process; a process that is started in its place has another `ident`."""

    address: str
    ident: str
    name: str
    state: Literal["checking", "ready", "refused"] = "checking"
    heard: float = field(default_factory=time.monotonic)  # when it was met, or last asked after


@dataclass
class Order:
    """Requests of one run that go to a worker together; `None` as requests: only load the model and try the method."""

    run: ActiveRun
    requests: tuple[Request, ...] | None
    tries: int = 0  # workers that died over it without finishing a sample


@dataclass
class Flight:
    """An order at a worker."""

    order: Order
    worker: Worker
    future: Any
    began: float = field(default_factory=time.perf_counter)
    report: EngineReport | None = None  # the last one that came
    progress: Progress | None = None
    recorded: int = 0
    heard: float = field(default_factory=time.monotonic)  # when anything came of it, or it was last asked after


class _OfRun(Observer):
    """What one run's recorder tells, among those of others."""

    def __init__(self, label: str, observer: Observer) -> None:
        self._label = label
        self._observer = observer

    def note(self, message: str) -> None:
        self._observer.note(f"{self._label}: {message}")

    def started(self, samples: int, done: int) -> None:
        self._observer.started(samples, done)

    def recorded(self, record: SampleRecord) -> None:
        self._observer.recorded(record)


class ActiveRun:
    """A run under way: prepared on a worker first, then recorded as outcomes come."""

    def __init__(self, planned: PlannedRun, plan: Plan, observer: Observer) -> None:
        self.planned = planned
        self.plan = plan
        self.observer = _OfRun(planned.label, observer)
        self.reports: list[EngineReport] = []
        self.left: set[str] = set()  # samples without an outcome
        self.flying = 0
        self._folder: RunFolder | None = None
        self._recorder: Recorder | None = None
        self._busy = 0.0  # seconds in which any order was at a worker
        self._since = 0.0

    @property
    def method(self) -> MethodChoice:
        """The method as orders carry it."""
        method = self.plan.method
        return MethodChoice(self.plan.config.method, dict(method.params), method.budget, method.keep)

    @property
    def through(self) -> bool:
        """Whether every sample has an outcome and no order is on its way."""
        return self._recorder is not None and not self.left and not self.flying

    def open(self, model: ModelInfo, layers: EngineReport) -> list[Request] | None:
        """Opens the run's folder and returns what is left to do; None for a run that is finished.

        Raises VeloxEvalError when the folder cannot be used, or the judge cannot be asked.
        """
        options = self.planned.options
        announce(self.plan, options, self.observer)
        folder = self._folder = open_run(self.plan, model, options)
        if folder.state == "finished":
            self.observer.started(len(folder.done), len(folder.done))
            return None
        self.reports.append(layers)
        self._recorder = Recorder(
            self.plan,
            folder,
            lambda: merged(self.reports),
            self.observer,
            command=options.command,
            max_error_share=options.max_error_share,
        )
        todo = self._recorder.begin()
        self._recorder.score_left()
        self.left = {request.sample_id for request in todo}
        return todo

    def record(self, outcome: Outcome) -> bool:
        """Records the outcome and returns True, or False when the sample has one. Raises StoreError."""
        if self._recorder is None or outcome.sample_id not in self.left:
            return False
        self._recorder.record(outcome)
        self.left.discard(outcome.sample_id)
        return True

    def took_off(self) -> None:
        """An order went to a worker."""
        if not self.flying:
            self._since = time.perf_counter()
        self.flying += 1

    def landed(self) -> None:
        """An order came back, or will not."""
        self.flying -= 1
        if not self.flying:
            self._busy += time.perf_counter() - self._since

    def finish(self) -> SweepRun:
        """Writes the header of a run that is through and returns its entry; a finished one is shown."""
        if self._recorder is not None:
            self._measure(self._recorder)
            self._recorder.finish()
        return self._entry()

    def interrupt(self) -> SweepRun | None:
        """Leaves the run to be resumed and returns its entry; None when it had not begun."""
        if self._recorder is None:
            self._close()
            return None
        self._measure(self._recorder)
        self._recorder.interrupted()
        return self._entry()

    def give_up(self, error: BaseException) -> SweepRun:
        """Ends a run that cannot go on and returns its entry; what it recorded stays."""
        entry = failed(self.planned, error)
        if self._recorder is not None:
            self._measure(self._recorder)
            self._recorder.failed(entry.error or "")
            return self._entry()
        self._close()
        return entry

    def _measure(self, recorder: Recorder) -> None:
        """Seconds in which a worker had an order of the run stand for seconds in the engine."""
        recorder.watch.seconds["engine"] = min(self._busy, recorder.watch.wall)

    def _entry(self) -> SweepRun:
        assert self._folder is not None
        entry = finished(self.planned, result_of(self._folder))
        self._close()
        return entry

    def _close(self) -> None:
        if self._folder is not None:
            self._folder.close()


def merged(reports: Sequence[EngineReport]) -> EngineReport:
    """Returns the sum of engine reports: tokens and seconds added up, sizes united, the largest peak."""
    if not reports:
        return EngineReport()
    sums = ("decode_tokens", "decode_seconds", "prefill_tokens", "prefill_seconds")
    return EngineReport(
        **{name: sum(getattr(report, name) for report in reports) for name in sums},
        batch_sizes=tuple(sorted({size for report in reports for size in report.batch_sizes})),
        mlx_peak_bytes=max(report.mlx_peak_bytes for report in reports),
        eviction_layers=reports[-1].eviction_layers,
        other_layers=reports[-1].other_layers,
    )


def split(requests: Sequence[Request], batch: int | None, workers: int) -> list[tuple[Request, ...]]:
    """Returns the requests in ranges: whole batches, so that who decodes together does not depend on the workers.

    A range has as many batches as give every worker one, at least one and at most four.
    """
    size = batch or DEFAULT_BATCH
    batches = max(1, min(_MOST_BATCHES, round(len(requests) / (size * max(1, workers)))))
    step = size * batches
    return [tuple(requests[start : start + step]) for start in range(0, len(requests), step)]


@dataclass
class Totals:
    """Where a cluster's time goes, added up as it goes."""

    began: float = field(default_factory=time.perf_counter)
    engine: float = 0.0
    worker: float = 0.0
    orders: float = 0.0
    retried: int = 0
    names: set[str] = field(default_factory=set)

    def spread(self) -> Spread:
        """Returns it as the sweep's result says it."""
        return Spread(
            workers=len(self.names),
            wall_seconds=time.perf_counter() - self.began,
            engine_seconds=self.engine,
            worker_seconds=self.worker,
            order_seconds=self.orders,
            retried=self.retried,
        )
