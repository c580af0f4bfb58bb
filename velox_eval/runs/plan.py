"""From what a user chose to a run that can start: everything that can be refused is refused here, without a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Literal

from velox_eval.engine.requests import Generate, Request, TeacherForce
from velox_eval.errors import ConfigError, DataError
from velox_eval.judges.base import Judge
from velox_eval.methods import MethodConfig, Value, resolve
from velox_eval.records.config import (
    DEFAULT_PREFILL_STEP,
    Performance,
    RunConfig,
    TaskChoice,
    build_config,
    canonical_json,
)
from velox_eval.runs.judging import DEFAULT_JUDGING, JudgeOptions, open_judge
from velox_eval.tasks import get_task
from velox_eval.tasks.base import Task, TaskData, TaskOptions

DEFAULT_METHOD = "morphkv"
DEFAULT_TASK = "longgenbench"
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_RESULTS = Path("results")


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose about a run. None leaves it to the task's definition, then to the method's default."""

    method: str = DEFAULT_METHOD
    task: str = DEFAULT_TASK
    model: str = DEFAULT_MODEL
    settings: Mapping[str, Value] = field(default_factory=dict)  # parameters of the method
    budget: int | None = None
    keep: float | None = None
    source: str | None = None
    data: str | None = None
    limit: int | None = None
    max_tokens: int | None = None
    entries: int | None = None
    variant: str | None = None
    data_seed: int = 0
    max_prompt_tokens: int | None = None
    prefill_step: int = DEFAULT_PREFILL_STEP
    evict_block: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    judge: str = "rules"
    judging: JudgeOptions = DEFAULT_JUDGING
    batch_size: int | Literal["auto"] | None = None
    memory_limit: int | None = None
    results: Path = DEFAULT_RESULTS
    again: bool = False
    max_error_share: float = 0.0
    command: tuple[str, ...] = ()  # as typed, for the record


@dataclass(frozen=True)
class Plan:
    """A run that can start: nothing is written yet and no model loaded."""

    config: RunConfig
    method: MethodConfig
    task: Task
    data: TaskData
    requests: tuple[Request, ...]
    judge: Judge

    @property
    def requests_sha256(self) -> str:
        """SHA-256 over all that the model is asked, in order: of a JSON list that is never held as a whole."""
        digest = hashlib.sha256(b"[")
        for place, request in enumerate(self.requests):
            digest.update((("," if place else "") + canonical_json(astuple(request))).encode())
        digest.update(b"]")
        return digest.hexdigest()

    @property
    def compares(self) -> bool:
        """Whether the task asks for comparisons with the full cache instead of answers."""
        return isinstance(self.requests[0], TeacherForce)


def make_plan(options: RunOptions, like: Plan | None = None) -> Plan:
    """Returns the run's plan; `like` is another run's with the same `task_choice`, whose samples serve again.

    Raises ConfigError for options that cannot work, naming value and what is allowed, and DataError for
    data that cannot be used.
    """
    _config(options, options.source, options.settings, options.budget)
    if not 0 <= options.max_error_share <= 1:
        raise ConfigError(f"max_error_share={options.max_error_share}: must be from 0 to 1")
    task = like.task if like else get_task(options.task, task_options(task_choice(options), options.model))
    method = _method(options, task)
    judge = open_judge(options.judge, options.judging)
    data = like.data if like else task.load()
    return Plan(
        config=_config(options, data.source, method.params, method.budget),
        method=method,
        task=task,
        data=data,
        requests=_requests(task, data, options.temperature),
        judge=judge,
    )


def task_options(choice: TaskChoice, model: str | None = None) -> TaskOptions:
    """Returns the choice as the task takes it, with the model that runs or ran."""
    return TaskOptions(**choice.model_dump(exclude={"name"}), model=model)


def stored_task(config: RunConfig, data: str | None = None) -> Task:
    """Returns the task of a stored run; `data` says where its data is now. Raises as `get_task`."""
    choice = config.task
    if data is not None:
        choice = choice.model_copy(update={"source": "data", "data": data})
    return get_task(choice.name, task_options(choice, config.model))


def task_choice(options: RunOptions) -> TaskChoice:
    """Returns which task on which data the options choose."""
    names = set(TaskChoice.model_fields) - {"name"}
    return TaskChoice(name=options.task, **{name: getattr(options, name) for name in names})


def _config(options: RunOptions, source: str | None, params: Mapping[str, Value], budget: int | None) -> RunConfig:
    shared: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("model", "method", "keep", "prefill_step", "evict_block", "temperature", "top_p", "seed", "judge")
    }
    choice = {name: getattr(options, name) for name in TaskChoice.model_fields if name not in ("name", "source")}
    return build_config(
        task={"name": options.task, "source": source, **choice},
        params=dict(params),
        budget=budget,
        judge_repeats=1 if options.judging.repeats is None else options.judging.repeats,
        performance={name: getattr(options, name) for name in Performance.model_fields},
        **shared,
    )


def _method(options: RunOptions, task: Task) -> MethodConfig:
    """The method with its budget: the user's, else the task definition's for this source, else the method's own."""
    budget, default = options.budget, None
    if options.budget is None and options.keep is None:
        source = options.source or ("data" if options.data else task.info.sources[0])
        section = task.info.settings.get(source, {})
        budget = default = section.get("budget") if isinstance(section, Mapping) else None
    try:
        return resolve(options.method, options.settings, budget=budget, keep=options.keep)
    except ConfigError as error:
        if default is None or f"budget={default}" not in str(error):
            raise
        raise ConfigError(f"{error} (budget={default} is what {task.info.name} sets; --budget sets another)") from error


def _requests(task: Task, data: TaskData, temperature: float) -> tuple[Request, ...]:
    if not data.samples:
        raise DataError(f"{task.info.name}: {data.origin} holds no samples")
    repeated = _first_repeated(sample.sample_id for sample in data.samples)
    if repeated is not None:
        raise DataError(f"{task.info.name}: {data.origin} has sample id {repeated!r} more than once")
    requests = tuple(task.request(sample) for sample in data.samples)
    if not isinstance(requests[0], Generate) and temperature:
        raise ConfigError(f"temperature={temperature:g}: {task.info.name} feeds fixed tokens, nothing is drawn; use 0")
    return requests


def _first_repeated(ids: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            return name
        seen.add(name)
    return None
