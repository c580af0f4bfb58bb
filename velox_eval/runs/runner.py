"""Runs a plan: requests to the engine, answers to the task's scoring, records to the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, Literal, cast

from velox_eval.engine.requests import EngineReport, Outcome, Progress, Sampling
from velox_eval.errors import StoreError, VeloxEvalError
from velox_eval.records.config import Identity, config_hash
from velox_eval.records.schema import (
    Cost,
    DataInfo,
    MethodInfo,
    ModelInfo,
    RunHeader,
    SampleRecord,
    Session,
)
from velox_eval.records.store import RunFolder, RunStore
from velox_eval.runs.environment import package_versions, platform_name, source_revision
from velox_eval.runs.observer import Observer
from velox_eval.runs.plan import Plan, RunOptions, make_plan
from velox_eval.runs.sample import one_line, sample_record
from velox_eval.runs.stopwatch import Stopwatch
from velox_eval.runs.summary import summarise

if TYPE_CHECKING:
    from velox_eval.engine.engine import Engine
    from velox_eval.engine.fidelity import Fidelity
    from velox_eval.engine.models import LoadedModel


Work = Callable[..., Iterator[Any]]  # requests, on_step -> outcomes


@dataclass(frozen=True)
class RunResult:
    """A run as it stands: its records, its folder, and what was found there when it was opened."""

    header: RunHeader
    samples: tuple[SampleRecord, ...]  # sorted by index
    path: Path
    state: Literal["new", "resumed", "finished"]


def run(options: RunOptions, observer: Observer | None = None) -> RunResult:
    """Runs what `options` ask for, or resumes it, or returns it as stored if it is finished; Ctrl-C ends it early.

    Raises VeloxEvalError for what cannot start (nothing is written then) and for a model, method or disk that
    fails half-way (what is done stays). A single sample that fails is in the records as an error.
    """
    observer = observer or Observer()
    plan = make_plan(options)
    if plan.method.budget is None and options.budget is not None:
        why = "has no budget" if plan.method.spec.evicts else "keeps every row"
        observer.note(f"{plan.method.label} {why}: budget={options.budget} has no effect")
    for note in plan.data.notes:
        observer.note(note)
    from velox_eval.engine.models import load_model

    loaded = load_model(options.model)
    engine, work = _engine(plan, loaded, options)
    draft = _draft(plan, loaded)
    store = RunStore(options.results)
    folder = store.open(
        draft.config_hash, lambda run_id: draft.model_copy(update={"run_id": run_id}), again=options.again
    )
    with folder:
        if folder.state != "finished":
            _Runner(plan, engine, work, folder, options, observer).run()
        samples = tuple(sorted(folder.samples, key=lambda record: record.index))
        return RunResult(folder.header, samples, folder.path, folder.state)


def _engine(plan: Plan, loaded: LoadedModel, options: RunOptions) -> tuple[Engine | Fidelity, Work]:
    """What answers the plan's requests, and its method that does.

    Raises ConfigError / MethodError for settings that cannot work on the model.
    """
    from velox_eval.engine.engine import Engine
    from velox_eval.engine.fidelity import Fidelity

    settings: dict[str, Any] = {
        name: getattr(options, name) for name in ("prefill_step", "evict_block", "batch_size", "memory_limit")
    }
    if plan.compares:
        fidelity = Fidelity(loaded, plan.method, **settings)
        return fidelity, fidelity.compare
    sampling = Sampling(options.temperature, options.top_p, options.seed)
    engine = Engine(loaded, plan.method, sampling=sampling, **settings)
    return engine, engine.generate


def _draft(plan: Plan, loaded: LoadedModel) -> RunHeader:
    """The header of a new run, before it has an id."""
    identity = Identity(
        task_version=plan.task.info.version,
        data_sha256=plan.data.sha256,
        requests_sha256=plan.requests_sha256,
        model_sha256=loaded.content_sha256,
        device=loaded.device,
        route=loaded.route,
        judge=plan.judge.id,
        versions=package_versions(plan.config.method),
    )
    return RunHeader(
        run_id="",
        status="started",
        config=plan.config,
        config_hash=config_hash(plan.config, identity),
        identity=identity,
        created_at=datetime.now(UTC),
        platform=platform_name(),
        python=python_version(),
        revision=source_revision(),
        data=DataInfo(
            source=plan.data.source,
            origin=plan.data.origin,
            sha256=plan.data.sha256,
            samples=len(plan.data.samples),
            total=plan.data.total,
            incomplete=plan.data.incomplete,
            notes=plan.data.notes,
        ),
        model=ModelInfo(
            name=loaded.name,
            content_sha256=loaded.content_sha256,
            device=loaded.device,
            route=loaded.route,
            dtype=loaded.dtype,
            context_length=loaded.context_length,
            n_layers=loaded.n_layers,
        ),
        method=_method_info(plan),
    )


def _method_info(plan: Plan) -> MethodInfo:
    method = plan.method
    return MethodInfo(
        name=method.spec.name,
        variant=method.variant_name,
        params=dict(method.params),
        differs=method.variant.differs,
        capacity=method.variant.capacity,
        evicts=method.spec.evicts,
        query_aware=method.variant.query_aware,
    )


class _Runner:
    """One process's work on one run."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine | Fidelity,
        work: Work,
        folder: RunFolder,
        options: RunOptions,
        observer: Observer,
    ) -> None:
        self.plan = plan
        self.engine = engine
        self.work = work
        self.folder = folder
        self.options = options
        self.observer = observer
        self.watch = Stopwatch()
        self.recorded = 0

    def run(self) -> None:
        """Does what is left to do and writes the header, however it ends."""
        self._begin()
        try:
            self._work()
        except KeyboardInterrupt:
            self.folder.reread()
            self._end("cancelled")
        except VeloxEvalError as error:
            self._end("error", one_line(str(error)))
            raise
        else:
            self._end(*self._verdict())
        finally:
            self.observer.ended()

    def _begin(self) -> None:
        folder, known = self.folder, {request.sample_id for request in self.plan.requests}
        if folder.repaired:
            self.observer.note(folder.repaired)
        strangers = folder.done - known
        if strangers:
            raise StoreError(f"{folder.path} has samples that are not in the task: {', '.join(sorted(strangers)[:3])}")
        session = Session(started_at=datetime.now(UTC), command=list(self.options.command))
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

    def _work(self) -> None:
        plan, folder = self.plan, self.folder
        index_of = {sample.sample_id: index for index, sample in enumerate(plan.data.samples)}
        todo = [request for request in plan.requests if request.sample_id not in folder.done]
        with contextlib.closing(self._outcomes(todo)) as outcomes:
            for outcome in outcomes:
                index = index_of[outcome.sample_id]
                sample, request = plan.data.samples[index], plan.requests[index]
                with self.watch.measure("scoring"):
                    record = sample_record(plan.task, sample, index, request, outcome, plan.judge)
                with self.watch.measure("store"):
                    folder.append(record)
                self.recorded += 1
                self.observer.recorded(record)
        missing = index_of.keys() - folder.done
        if missing:
            raise StoreError(f"the engine gave no answer to {', '.join(sorted(missing)[:3])}")

    def _outcomes(self, todo: Sequence[Any]) -> Generator[Outcome, None, None]:
        outcomes = cast("Generator[Outcome, None, None]", self.work(todo, on_step=self._step))
        with contextlib.closing(outcomes):  # however this ends, the engine restores the model at once
            while True:
                with self.watch.measure("engine"):
                    outcome = next(outcomes, None)
                if outcome is None:
                    return
                yield outcome

    def _step(self, progress: Progress) -> None:
        with self.watch.measure("progress"):
            self.observer.step(progress)

    def _verdict(self) -> tuple[Literal["success", "error"], str | None]:
        failed = sum(record.status == "error" for record in self.folder.samples)
        share, allowed = failed / len(self.plan.requests), self.options.max_error_share
        if share <= allowed:
            return "success", None
        return "error", f"{failed} of {len(self.plan.requests)} samples failed (allowed share: {allowed:g})"

    def _end(self, status: Literal["success", "cancelled", "error"], error: str | None = None) -> None:
        header, report = self.folder.header, self.engine.report()
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
