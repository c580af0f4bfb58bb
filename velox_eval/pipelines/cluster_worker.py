"""What a worker of a cluster does: it holds a model, answers requests, and sends every outcome home at once.

It has no data, no judge and no results folder: requests come to it, outcomes leave it, scoring and records are at home.
Everything about the model runs on one thread of its own, whatever threads Dask has.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from platform import python_version
from typing import Any, TypeVar

from pydantic import TypeAdapter

from velox_eval.engine.requests import (
    Comparison,
    EngineReport,
    Failure,
    Generation,
    Outcome,
    Progress,
    Request,
    ScoredPairs,
)
from velox_eval.errors import VeloxEvalError
from velox_eval.methods import MethodConfig, Value, resolve
from velox_eval.pipelines.sweep import KeptModel
from velox_eval.records.schema import ModelInfo
from velox_eval.runs.environment import code_sha256, package_versions
from velox_eval.runs.plan import RunOptions
from velox_eval.runs.runner import build_engine, model_info

T = TypeVar("T")
_OUTCOMES: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (Generation, Comparison, ScoredPairs, Failure)}
_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class MethodChoice:
    """A method by name, so that no function travels."""

    name: str
    settings: Mapping[str, Value]
    budget: int | None
    keep: float | None

    def resolve(self) -> MethodConfig:
        """Returns the method as this machine has it."""
        return resolve(self.name, self.settings, budget=self.budget, keep=self.keep)


@dataclass(frozen=True)
class Order:
    """Requests to answer: those of one run, or some of them. `model` is what the worker's own must be."""

    topic: str  # where outcomes go
    number: int  # of this order, for its outcomes
    options: RunOptions
    method: MethodChoice
    requests: tuple[Request, ...]
    model: ModelInfo


@dataclass(frozen=True)
class Answered:
    """An order that was carried out: what the engine did, and the seconds that took, loading the model included."""

    report: EngineReport
    engine_seconds: float
    seconds: float


@dataclass(frozen=True)
class Refused:
    """Why this worker cannot be used."""

    reason: str


class OrderCancelledError(RuntimeError):
    """Nobody waits for the order any more."""


def fingerprint(models: tuple[str, ...], methods: tuple[str, ...]) -> dict[str, str]:
    """Returns what two machines must share: package versions, this code, and the content of the models.

    A model that is missing has the reason in its place.
    """
    from velox_eval.engine.model_identity import content_sha256
    from velox_eval.engine.models import check_directory, find_model

    found = {"python": ".".join(python_version().split(".")[:2]), "velox-eval's code": code_sha256()}
    for method in methods or ("full",):
        try:
            found |= package_versions(method)
        except VeloxEvalError as error:
            found[method] = str(error)
    for model in models:
        try:
            path = find_model(model)
            check_directory(path)
            found[f"model {model}"] = content_sha256(path)
        except VeloxEvalError as error:
            found[f"model {model}"] = f"missing ({error})"
    return found


@dataclass(frozen=True)
class Loaded:
    """A model that is loaded and kept, on which the method can run: what the records say, and the seconds it took."""

    model: ModelInfo
    layers: EngineReport  # which layers evict; nothing was measured
    seconds: float


def load(options: RunOptions, method: MethodChoice, request: Request) -> Loaded:
    """Returns what the records say about the model, now loaded and kept here, on which the method was tried.

    Raises VeloxEvalError when it cannot be loaded, or the method cannot run on it as asked.
    """
    return _on_model_thread(lambda: _load(options, method, request))


def _load(options: RunOptions, method: MethodChoice, request: Request) -> Loaded:
    began = time.perf_counter()
    loaded = _kept.load(options.model)
    engine, _ = build_engine(method.resolve(), request, loaded, options)
    report = engine.report()
    layers = EngineReport(eviction_layers=report.eviction_layers, other_layers=report.other_layers)
    return Loaded(model_info(loaded), layers, time.perf_counter() - began)


def answer(order: Order) -> Answered | Refused:
    """Carries the order out; every outcome goes to the order's topic as it comes, before this returns.

    Raises VeloxEvalError when the method cannot run, OrderCancelledError when nobody waits any more.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        state = worker.state.tasks.get(key)
        return state is not None and state.state != "cancelled"

    def send(message: dict[str, Any]) -> None:
        worker.log_event(order.topic, {"order": order.number, **message})

    return _on_model_thread(lambda: _answer(order, send, wanted))


def _answer(order: Order, send: Callable[[dict[str, Any]], None], wanted: Callable[[], bool]) -> Answered | Refused:
    began = time.perf_counter()
    loaded = _kept.load(order.options.model)
    info = model_info(loaded)
    if info != order.model:
        names = [name for name in ModelInfo.model_fields if getattr(info, name) != getattr(order.model, name)]
        differing = ", ".join(f"{name} {getattr(info, name)} instead of {getattr(order.model, name)}" for name in names)
        return Refused(f"model {order.options.model} is another here: {differing}")
    engine, work = build_engine(order.method.resolve(), order.requests[0], loaded, order.options)
    sent = time.perf_counter()

    def step(progress: Progress) -> None:
        nonlocal sent
        if not wanted():
            raise OrderCancelledError(f"order {order.number} was cancelled")
        if time.perf_counter() - sent > _PROGRESS_SECONDS:
            sent = time.perf_counter()
            send({"progress": asdict(progress)})

    engine_began = time.perf_counter()
    for outcome in work(order.requests, on_step=step):
        if not wanted():
            raise OrderCancelledError(f"order {order.number} was cancelled")
        send({"outcome": packed(outcome), "report": asdict(engine.report())})
    now = time.perf_counter()
    return Answered(engine.report(), now - engine_began, now - began)


def packed(outcome: Outcome) -> dict[str, Any]:
    """Returns the outcome as plain data."""
    return {"kind": type(outcome).__name__, "fields": asdict(outcome)}


def unpacked(message: Mapping[str, Any]) -> Outcome:
    """Returns the outcome that `packed` made plain data of. Raises ValueError for anything else."""
    if message.get("kind") not in _OUTCOMES:
        raise ValueError(f"kind {message.get('kind')!r} is no outcome")
    outcome: Outcome = TypeAdapter(_OUTCOMES[message["kind"]]).validate_python(message["fields"])
    return outcome


def unpacked_report(fields: Mapping[str, Any]) -> EngineReport:
    """Returns an engine's report from plain data. Raises ValueError for anything else."""
    report: EngineReport = TypeAdapter(EngineReport).validate_python(fields)
    return report


def dask_setup(_worker: Any) -> None:
    """Runs where a sweep starts its own workers: Ctrl-C in its terminal is for the sweep, which then ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_kept = KeptModel()
_pools: list[Any] = []


def _on_model_thread(work: Callable[[], T]) -> T:
    """Runs `work` on the one thread that knows the model."""
    from distributed.threadpoolexecutor import ThreadPoolExecutor

    if not _pools:  # at the first order: importing this starts nothing
        _pools.append(ThreadPoolExecutor(1, thread_name_prefix="velox-eval-model"))
        # Where another thread than the main one used mlx, taking mlx down at the end aborts the process now and then.
        atexit.register(os._exit, 0)
    result: T = _pools[0].submit(work).result()
    return result
