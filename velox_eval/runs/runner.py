"""Runs a plan: requests to the engine, answers to the task's scoring, records to the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from velox_eval.engine.requests import LogLikelihood, Outcome, Progress, Request, Sampling, TeacherForce
from velox_eval.errors import VeloxEvalError
from velox_eval.methods import MethodConfig
from velox_eval.records.config import Identity
from velox_eval.records.schema import MethodInfo, ModelInfo
from velox_eval.records.store import RunFolder, RunStore
from velox_eval.runs.environment import ANSWERING, code_sha256, package_versions
from velox_eval.runs.headers import data_info, draft_header, open_folder
from velox_eval.runs.observer import Observer
from velox_eval.runs.plan import Plan, RunOptions, make_plan
from velox_eval.runs.recorder import Recorder, RunResult, result_of

if TYPE_CHECKING:
    from velox_eval.engine.engine import Engine
    from velox_eval.engine.fidelity import Fidelity
    from velox_eval.engine.likelihood import Likelihood
    from velox_eval.engine.models import LoadedModel


Work = Callable[..., Iterator[Any]]  # requests, on_step -> outcomes


def run(
    options: RunOptions,
    observer: Observer | None = None,
    *,
    plan: Plan | None = None,
    load: Callable[[str], LoadedModel] | None = None,
) -> RunResult:
    """Runs what `options` ask for, or resumes it, or returns it as stored if it is finished; Ctrl-C ends it early.

    `plan` is the options' plan where the caller has it, `load` returns the model (one that is kept between runs).
    Raises VeloxEvalError for what cannot start (nothing is written then) and for a model, method or disk that
    fails half-way (what is done stays). A single sample that fails is in the records as an error.
    """
    from velox_eval.engine.models import load_model

    observer = observer or Observer()
    plan = plan or make_plan(options)
    RunStore(options.results).check()
    announce(plan, options, observer)
    loaded = (load or load_model)(options.model)
    engine, work = build_engine(plan.method, plan.requests[0], loaded, options)
    with open_run(plan, model_info(loaded), options) as folder:
        if folder.state != "finished":
            recorder = Recorder(
                plan,
                folder,
                engine.report,
                observer,
                command=options.command,
                max_error_share=options.max_error_share,
            )
            _drive(recorder, work)
        return result_of(folder)


def announce(plan: Plan, options: RunOptions, observer: Observer) -> None:
    """Tells the observer what a user should know before the run."""
    if plan.method.budget is None and options.budget is not None:
        why = "has no budget" if plan.method.spec.evicts else "keeps every row"
        observer.note(f"{plan.method.label} {why}: budget={options.budget} has no effect")
    for note in plan.data.notes:
        observer.note(note)


def open_run(plan: Plan, model: ModelInfo, options: RunOptions) -> RunFolder:
    """Returns the plan's folder, to be closed: the latest run of it on this model, or a new one.

    Raises JudgeError for a judge that cannot be asked, before anything is written.
    """
    draft = draft_header(plan.config, identity(plan, model), data_info(plan.data), model, _method_info(plan))
    return open_folder(options.results, draft, None if plan.compares else plan.judge, again=options.again)


def model_info(loaded: LoadedModel) -> ModelInfo:
    """Returns what the records say about a loaded model."""
    return ModelInfo(
        name=loaded.name,
        content_sha256=loaded.content_sha256,
        device=loaded.device,
        route=loaded.route,
        dtype=loaded.dtype,
        context_length=loaded.context_length,
        n_layers=loaded.n_layers,
    )


def build_engine(
    method: MethodConfig, request: Request, loaded: LoadedModel, options: RunOptions
) -> tuple[Engine | Fidelity | Likelihood, Work]:
    """Returns what answers requests of the kind of `request`, and its method that does.

    Raises ConfigError / MethodError for settings that cannot work on the model.
    """
    from velox_eval.engine.engine import Engine
    from velox_eval.engine.fidelity import Fidelity
    from velox_eval.engine.likelihood import Likelihood

    settings: dict[str, Any] = {
        name: getattr(options, name) for name in ("prefill_step", "evict_block", "batch_size", "memory_limit")
    }
    if isinstance(request, TeacherForce):
        fidelity = Fidelity(loaded, method, **settings)
        return fidelity, fidelity.compare
    if isinstance(request, LogLikelihood):
        likelihood = Likelihood(loaded, method, **settings)
        return likelihood, likelihood.measure
    sampling = Sampling(options.temperature, options.top_p, options.seed)
    engine = Engine(loaded, method, sampling=sampling, **settings)
    return engine, engine.generate


def identity(plan: Plan, model: ModelInfo) -> Identity:
    """Returns the contents behind the plan's names, on this model and with the packages installed here.

    Raises ConfigError for a package that is not installed.
    """
    return Identity(
        task_version=plan.task.info.version,
        data_sha256=plan.data.sha256,
        requests_sha256=plan.requests_sha256,
        model_sha256=model.content_sha256,
        device=model.device,
        route=model.route,
        judge=plan.judge.id,
        versions=package_versions(plan.config.method),
        code_sha256=code_sha256(ANSWERING),
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


def _drive(recorder: Recorder, work: Work) -> None:
    """Feeds the recorder from an engine in this process, until all is done, Ctrl-C or an error."""
    todo = recorder.begin()
    try:
        recorder.score_left()
        with contextlib.closing(_outcomes(recorder, work, todo)) as outcomes:
            for outcome in outcomes:
                recorder.record(outcome)
        recorder.finish()
    except KeyboardInterrupt:
        recorder.interrupted()
    except VeloxEvalError as error:
        recorder.failed(str(error))
        raise
    finally:
        recorder.observer.ended()


def _outcomes(recorder: Recorder, work: Work, todo: Sequence[Request]) -> Generator[Outcome, None, None]:
    watch = recorder.watch

    def step(progress: Progress) -> None:
        with watch.measure("progress"):
            recorder.observer.step(progress)

    outcomes = cast("Generator[Outcome, None, None]", work(todo, on_step=step))
    with contextlib.closing(outcomes):  # however this ends, the engine restores the model at once
        while True:
            with watch.measure("engine"):
                outcome = next(outcomes, None)
            if outcome is None:
                return
            yield outcome
