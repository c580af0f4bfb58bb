"""The tasks by name. Listing them reads their definitions and loads no adapter."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from velox_eval.errors import ConfigError, unknown_name
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.definition import read_definition

__all__ = [
    "TASKS",
    "Sample",
    "Scored",
    "Task",
    "TaskData",
    "TaskInfo",
    "TaskOptions",
    "describe_tasks",
    "get_task",
    "task_info",
    "task_names",
]

LM_EVAL = "lm_eval/"  # lm_eval/NAME: the task of that name in lm-eval

# name -> module and class of the adapter
TASKS: Mapping[str, tuple[str, str]] = {
    "fidelity": ("velox_eval.tasks.fidelity", "Fidelity"),
    "longbench": ("velox_eval.tasks.longbench", "LongBench"),
    "longbench_v2": ("velox_eval.tasks.longbench_v2", "LongBenchV2"),
    "longgenbench": ("velox_eval.tasks.longgenbench", "LongGenBench"),
    "longgenbench_qa": ("velox_eval.tasks.longgenbench_qa", "LongGenBenchQA"),
    "longwriter": ("velox_eval.tasks.longwriter", "LongWriter"),
}


def task_names() -> tuple[str, ...]:
    """Returns the names of all tasks, sorted."""
    return tuple(sorted(TASKS))


def task_info(name: str) -> TaskInfo:
    """Returns a task's definition. Raises ConfigError for an unknown name, with the nearest known one."""
    if name not in TASKS:
        raise ConfigError(unknown_name("task", name, TASKS))
    return read_definition(name)


def describe_tasks() -> list[TaskInfo]:
    """Returns all definitions, by name."""
    return [task_info(name) for name in task_names()]


def get_task(name: str, options: TaskOptions | None = None) -> Task:
    """Returns the task, ready to load; lm_eval/NAME is one of lm-eval's.

    Raises ConfigError for an unknown name or source, or an option that this task or source does not have.
    """
    options = options or TaskOptions()
    if name.startswith(LM_EVAL):
        from velox_eval.tasks.lm_eval_loading import load_lm_eval_task

        return load_lm_eval_task(name, options)
    info = task_info(name)
    _check(info, options)
    module, adapter = TASKS[name]
    task: Task = getattr(importlib.import_module(module), adapter)(info, options)
    return task


def _check(info: TaskInfo, options: TaskOptions) -> None:
    """The checks that are the same for every task."""
    known = set(info.settings.get("options", ()))
    for option in ("entries", "variant", "max_prompt_tokens"):
        if getattr(options, option) is not None and option not in known:
            raise ConfigError(
                f"task {info.name} has no option {option!r} (it has: {', '.join(sorted(known)) or 'none'})"
            )
    if options.data_seed != 0 and "data_seed" not in known:
        raise ConfigError(f"task {info.name} has no generated material, so no data_seed; leave it out")
    for option in ("limit", "max_tokens", "entries"):
        value = getattr(options, option)
        if value is not None and value < 1:
            raise ConfigError(f"{option}={value} must be at least 1")
    if options.max_prompt_tokens is not None and options.max_prompt_tokens < 2:
        raise ConfigError(f"max_prompt_tokens={options.max_prompt_tokens} must be at least 2: a beginning and an end")
    if options.source is not None and options.source not in (*info.sources, "data"):
        raise ConfigError(unknown_name(f"source of task {info.name}", options.source, (*info.sources, "data")))
    if options.data is not None and options.source not in (None, "data"):
        raise ConfigError(f"source={options.source} and data={options.data} are both given; give one of them")
    if options.source == "data" and options.data is None:
        raise ConfigError("source=data needs the place of the data: --data PATH")
