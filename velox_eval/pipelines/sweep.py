"""Runs a suite's matrix in this process: one run after the other, a model loaded once and kept between its runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from velox_eval.errors import ModelError, VeloxEvalError
from velox_eval.pipelines.matrix import PlannedRun, Plans, SweepPlan
from velox_eval.records.schema import RunHeader
from velox_eval.records.store import RunStore
from velox_eval.runs.observer import Observer
from velox_eval.runs.recorder import RunResult
from velox_eval.runs.runner import run

if TYPE_CHECKING:
    from velox_eval.engine.models import LoadedModel

# What ends one run and not the sweep; mlx raises the last three.
FAILURES = (VeloxEvalError, ValueError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class SweepRun:
    """What came of one run. `error` says why it failed or could not start; None when all its samples were answered."""

    planned: PlannedRun
    header: RunHeader | None = None  # None: it never started
    path: Path | None = None
    state: Literal["new", "resumed", "finished"] | None = None
    error: str | None = None

    @property
    def cancelled(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.header is not None and self.header.status == "cancelled"


@dataclass(frozen=True)
class Spread:
    """Where a cluster's time went. `order_seconds` count from sending an order to having its answer, all added up."""

    workers: int  # that answered anything
    wall_seconds: float  # of the whole sweep
    engine_seconds: float  # reading and writing, all workers
    worker_seconds: float  # the same with loading models
    order_seconds: float
    retried: int  # orders sent again

    @property
    def scheduling_share(self) -> float | None:
        """What scheduler, network and waiting took of the time orders were under way; None without any."""
        return 1 - self.worker_seconds / self.order_seconds if self.order_seconds else None


@dataclass(frozen=True)
class SweepResult:
    """Every run that was tried, in order; `interrupted` when Ctrl-C ended the sweep."""

    runs: tuple[SweepRun, ...]
    interrupted: bool = False
    spread: Spread | None = None  # of a sweep on a cluster

    @property
    def failed(self) -> list[SweepRun]:
        """Runs that did not end well, Ctrl-C left aside."""
        return [run for run in self.runs if run.error is not None and not run.cancelled]

    @property
    def folders(self) -> list[Path]:
        """Folders of the runs whose samples were all attempted."""
        return [run.path for run in self.runs if run.path and run.header and run.header.finished_at is not None]


class SweepObserver(Observer):
    """What a sweep tells whoever watches it, beside what each run says. The base class ignores everything."""

    def sweep_begins(self, runs: int, samples: int) -> None:
        """Many runs go on at once on a cluster: this many, with this many samples in all."""

    def sweep_ended(self) -> None:
        """The cluster's work is through, interrupted or failed."""

    def run_begins(self, run: PlannedRun, number: int, total: int) -> None:
        """Run `number` of `total` starts."""

    def run_ended(self, run: SweepRun) -> None:
        """A run is through, shown, failed or interrupted."""


class KeptModel:
    """Loads a model when its name changes and keeps it till then; a name that failed fails at once again."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._loaded: LoadedModel | None = None
        self._failed: ModelError | None = None

    def load(self, name: str) -> LoadedModel:
        """Returns the model. Raises ModelError."""
        from velox_eval.engine.models import load_model
        from velox_eval.mlx import mx

        if name != self._name:
            self._name, self._loaded, self._failed = name, None, None  # the old one goes before the new one comes
            gc.collect()
            mx.clear_cache()
            try:
                self._loaded = load_model(name)
            except ModelError as error:
                self._failed = error
            except BaseException:
                self._name = None
                raise
        if self._loaded is None:
            raise ModelError(str(self._failed))
        return self._loaded


def sweep(
    plan: SweepPlan, observer: SweepObserver | None = None, *, load: Callable[[str], LoadedModel] | None = None
) -> SweepResult:
    """Runs what is planned, in order; what is finished is shown, what was interrupted goes on.

    `load` returns the model of a run (default: loaded when its name changes). A run that fails says why in its entry
    and the rest goes on. Ctrl-C ends the sweep: the run under way is left as `velox-eval run` leaves it, and the same
    sweep resumes. Raises StoreError where no run could be recorded.
    """
    observer, plans, load = observer or SweepObserver(), Plans(), load or KeptModel().load
    check_results(plan)
    done: list[SweepRun] = []
    try:
        for outcome in _outcomes(plan, observer, plans, load):
            done.append(outcome)
            observer.run_ended(outcome)
            if outcome.cancelled:
                return SweepResult(tuple(done), interrupted=True)
    except KeyboardInterrupt:  # outside a run: loading a model, between two runs
        return SweepResult(tuple(done), interrupted=True)
    return SweepResult(tuple(done))


def check_results(plan: SweepPlan) -> None:
    """Raises StoreError where runs that are to be done could not be recorded, which no run of the plan gets over."""
    for results in dict.fromkeys(each.options.results for each in plan.runs if each.state != "finished"):
        RunStore(results).check()


def _outcomes(
    plan: SweepPlan, observer: SweepObserver, plans: Plans, load: Callable[[str], LoadedModel]
) -> Iterator[SweepRun]:
    for number, planned in enumerate(plan.runs, 1):
        observer.run_begins(planned, number, len(plan.runs))
        try:
            result = run(planned.options, observer, plan=plans.make(planned.options), load=load)
        except FAILURES as error:
            yield failed(planned, error)
        else:
            yield finished(planned, result)


def finished(planned: PlannedRun, result: RunResult) -> SweepRun:
    """Returns the entry of a run that ended, with or without failed samples."""
    return SweepRun(planned, result.header, result.path, result.state, result.header.error)


def failed(planned: PlannedRun, error: BaseException) -> SweepRun:
    """Returns the entry of a run that could not start or go on."""
    text = " ".join(str(error).split()) or type(error).__name__
    return SweepRun(planned, error=text if isinstance(error, VeloxEvalError) else f"{type(error).__name__}: {text}")
