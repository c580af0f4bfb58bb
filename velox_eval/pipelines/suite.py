"""What a sweep runs: methods x parameters x budgets x tasks x models x seeds, from a TOML file.

    kind = "sweep"
    budgets = [128, 256]              # rows; or keeps = [0.25, 0.5]; a [[task]] or [[method]] may have its own

    [[task]]
    name = "fidelity"
    limit = 8                         # every option of `velox-eval run` about the task, also judge

    [[method]]
    name = "morphkv:paper"
    set = { window = [32, 64], fusion = ["max", "sum"] }   # a list: one run each

The full cache runs once for every task, model and seed, whatever the budgets. Field lists: `Suite`, `SuiteTask`,
`SuiteMethod`. Suites of kind "speed" are `velox-eval bench`'s (velox_eval/runs/bench_suite.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from velox_eval.errors import DataError, unknown_name
from velox_eval.records.config import (
    DEFAULT_PREFILL_STEP,
    Frozen,
    ParamValue,
    TaskChoice,
    canonical_json,
    text_sha256,
)
from velox_eval.runs.plan import DEFAULT_MODEL, DEFAULT_RESULTS, RunOptions
from velox_eval.runs.suite_files import read_suite_file

BASELINE = "full"

Budgets = tuple[Annotated[int, Field(ge=1)], ...]
Keeps = tuple[Annotated[float, Field(gt=0, le=1)], ...]


class Sizes(Frozen):
    """How much of the cache is kept, one run each; neither: what the level above says, at last the task's default."""

    budgets: Budgets = Field(default=(), description="Rows per layer and KV head.")
    keeps: Keeps = Field(default=(), description="Shares of prompt + max new tokens.")

    @property
    def given(self) -> list[tuple[int | None, float | None]]:
        """Pairs (budget, keep), one of them None."""
        return [(budget, None) for budget in self.budgets] + [(None, keep) for keep in self.keeps]


class SuiteTask(TaskChoice, Sizes):
    """A task with its data and limits."""

    judge: str = Field(default="rules", description="Judge of open answers.")


class SuiteMethod(Sizes):
    """A method with the values of its parameters; every combination of listed values is a run."""

    name: str = Field(description="[veloxquant/]name[:variant].")
    set: dict[str, ParamValue | tuple[ParamValue, ...]] = Field(
        default_factory=dict, description="Parameters: a value, or a list of values."
    )
    tasks: tuple[str, ...] = Field(default=(), description="Only on these tasks; empty: on all.")

    @property
    def settings(self) -> Iterator[dict[str, ParamValue]]:
        """Every combination of the parameters' values."""
        lists = [value if isinstance(value, tuple) else (value,) for value in self.set.values()]
        for values in itertools.product(*lists):
            yield dict(zip(self.set, values, strict=True))


class Suite(Sizes):
    """A matrix of runs. What stands here holds for all of them."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$", description="Name for tables and files.")
    summary: str = Field(default="", description="What it is for, in a line.")
    models: tuple[str, ...] = Field(default=(DEFAULT_MODEL,), min_length=1, description="Names, directories, hub ids.")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(0,), min_length=1, description="Seeds of sampling, one run each; they count where temperature > 0."
    )
    temperature: float = Field(default=0.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling.")
    prefill_step: int = Field(default=DEFAULT_PREFILL_STEP, ge=1, description="Prompt tokens a chunk.")
    evict_block: int | None = Field(default=None, ge=1, description="Rows between evictions in prefill.")
    batch_size: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Answers written together; speeds compare at equal batch."
    )
    max_error_share: float = Field(default=0.0, ge=0, le=1, description="Share of samples of a run that may fail.")
    leave_out_impossible: bool = Field(
        default=False, description="Leave combinations out that cannot work (named) instead of refusing the suite."
    )
    task: tuple[SuiteTask, ...] = Field(min_length=1, description="The [[task]] tables.")
    method: tuple[SuiteMethod, ...] = Field(min_length=1, description="The [[method]] tables.")

    @model_validator(mode="after")
    def _names_fit(self) -> Suite:
        known = {task.name for task in self.task}
        for method in self.method:
            for name in method.tasks:
                if name not in known:
                    raise ValueError(f"method {method.name}: tasks: {unknown_name('task of this suite', name, known)}")
        return self

    @property
    def sha256(self) -> str:
        """Hash of everything that says which runs there are; names and summaries are left out."""
        asked = self.model_dump(mode="json", exclude={"name", "summary", "leave_out_impossible"})
        return text_sha256(canonical_json(asked))


def read_suite(name: str) -> Suite:
    """Returns the suite of that name, or in the file `name` where it ends with .toml; data paths count from the file.

    Raises ConfigError for an unknown name, DataError naming file and field for what cannot be read.
    """
    path, table = read_suite_file(name, "sweep")
    try:
        suite = Suite.model_validate({"name": path.stem, **table})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part not in ("int", "float", "str", "bool"))
        given = f" (given: {first['input']!r})" if first["type"] not in ("missing", "value_error") else ""
        reason = first["msg"].removeprefix("Value error, ")
        raise DataError(f"{path}: {field + ': ' if field else ''}{reason}{given}") from error
    tasks = [
        task.model_copy(update={"data": str(path.parent / Path(task.data).expanduser())}) if task.data else task
        for task in suite.task
    ]
    return suite.model_copy(update={"task": tuple(tasks)})


def matrix(suite: Suite, *, results: Path = DEFAULT_RESULTS, again: bool = False) -> Iterator[RunOptions]:
    """Yields the options of every run, unchecked and with repetitions: by model, task, seed; the full cache first."""
    for model, task, seed in itertools.product(suite.models, suite.task, suite.seeds):
        shared: dict[str, Any] = {
            **{name: getattr(task, name) for name in TaskChoice.model_fields if name != "name"},
            **{name: getattr(suite, name) for name in _SHARED},
            "task": task.name,
            "judge": task.judge,
            "model": model,
            "seed": seed,
            "results": results,
            "again": again,
        }
        yield RunOptions(method=BASELINE, **shared)
        for method in suite.method:
            if method.tasks and task.name not in method.tasks:
                continue
            sizes = method.given or task.given or suite.given or [(None, None)]
            for settings, (budget, keep) in itertools.product(method.settings, sizes):
                yield RunOptions(method=method.name, settings=settings, budget=budget, keep=keep, **shared)


_SHARED = ("temperature", "top_p", "prefill_step", "evict_block", "batch_size", "max_error_share")


def run_command(options: RunOptions) -> tuple[str, ...]:
    """Returns the `velox-eval run` command that gives the same run."""
    default = RunOptions()
    words = ["velox-eval", "run", "--method", options.method, "--task", options.task]
    for name in _FLAGS:
        value = getattr(options, name)
        if value is not None and (name == "model" or value != getattr(default, name)):
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    for name, value in options.settings.items():
        words += ["--set", f"{name}={value}"]
    return tuple(words)


_FLAGS = (
    *("model", "budget", "keep", "source", "data", "variant", "limit", "entries", "data_seed", "max_tokens"),
    *("temperature", "top_p", "seed", "prefill_step", "evict_block", "batch_size", "judge", "results"),
)
