"""Whole runs for the bench: the runner itself on bundled samples, its records in a folder that is thrown away."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from velox_eval.errors import MethodError
from velox_eval.methods import MethodConfig, Value
from velox_eval.runs.bench_suite import Row
from velox_eval.runs.plan import RunOptions
from velox_eval.runs.runner import run
from velox_eval.tasks import get_task
from velox_eval.tasks.base import Sample, TaskOptions

TASK = "longgenbench"


@dataclass(frozen=True)
class RunTimes:
    """One run through the runner. `wall_seconds` is everything from the first request to the last record."""

    method: str
    params: Mapping[str, Value]
    budget: int | None
    memory_limit: int | None
    batch_sizes: tuple[int, ...]  # that decoded
    samples: int
    prompt_tokens: int
    generated_tokens: int
    wall_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float  # generated, over the wall time
    harness_share: float  # of the wall time: neither prefill nor decode


def bundled_samples() -> list[Sample]:
    """Returns all bundled samples of the main task."""
    task = get_task(TASK, TaskOptions(source="bundled", limit=10**6))
    return list(task.load().samples)


def bundled_prompts() -> list[str]:
    """Returns the prompts of the bundled samples: English for prompts of any length."""
    task = get_task(TASK, TaskOptions(source="bundled", limit=10**6))
    return [task.request(sample).prompt for sample in task.load().samples]


def timed_run(model: str, method: MethodConfig, options: RunOptions) -> RunTimes:
    """Returns what a run of `options` with this model and method took. Raises MethodError when a sample failed."""
    with tempfile.TemporaryDirectory() as folder:
        options = replace(
            options,
            model=model,
            method=method.label,
            settings=method.params,
            budget=method.budget,
            task=TASK,
            results=Path(folder),
        )
        result = run(options)
        failed = [record.error for record in result.samples if record.status == "error"]
        if failed:
            raise MethodError(f"{method.label}: {len(failed)} of {len(result.samples)} samples failed: {failed[0]}")
        session = result.header.sessions[-1]
        assert session.cost is not None  # the run ended
        cost = session.cost
        written = sum(record.generated_tokens or 0 for record in result.samples)
        return RunTimes(
            method=method.label,
            params=method.params,
            budget=method.budget,
            memory_limit=options.memory_limit,
            batch_sizes=session.batch_sizes,
            samples=len(result.samples),
            prompt_tokens=cost.prefill_tokens,
            generated_tokens=written,
            wall_seconds=cost.wall_seconds,
            prefill_seconds=cost.prefill_seconds,
            decode_seconds=cost.decode_seconds,
            tokens_per_second=written / cost.wall_seconds,
            harness_share=1 - (cost.prefill_seconds + cost.decode_seconds) / cost.wall_seconds,
        )


def bundled(options: RunOptions, row: Row) -> RunOptions:
    """Returns the options with the row's bundled samples, token limit and batch."""
    return replace(options, source="bundled", limit=row.samples, max_tokens=row.max_tokens, batch_size=row.batch)


def one_by_one(
    model: str, method: MethodConfig, veloxquant: MethodConfig, row: Row, options: RunOptions
) -> list[RunTimes]:
    """Returns the batched run, and the installed package's on the first of the same samples, one at a time."""
    first = replace(row, samples=row.veloxquant_samples, batch=1)
    return [timed_run(model, method, bundled(options, row)), timed_run(model, veloxquant, bundled(options, first))]


def at_one_memory(
    model: str, method: MethodConfig, full: MethodConfig, row: Row, options: RunOptions
) -> list[RunTimes]:
    """Returns the method's run and the full cache's, each in batches as large as the memory limit allows."""
    options = replace(bundled(options, row), batch_size="auto", memory_limit=row.memory_limit)
    return [timed_run(model, method, options), timed_run(model, full, options)]


def short_and_long(model: str, method: MethodConfig, row: Row, options: RunOptions) -> list[RunTimes]:
    """Returns a short run, a long one of the same samples over and over, and the short one again."""
    first = bundled_samples()[: row.short_samples]
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.json"
        for count in (row.short_samples, row.samples, row.short_samples):
            path.write_text(json.dumps([dict(first[index % len(first)].data) for index in range(count)]))
            data = replace(options, data=str(path), max_tokens=row.max_tokens, batch_size=row.batch)
            runs.append(timed_run(model, method, data))
    return runs


def long_over_short(runs: list[RunTimes]) -> float:
    """Returns the wall time per generated token of the long run over the short ones'."""
    short, long, again = (run.wall_seconds / run.generated_tokens for run in runs)
    return long / median([short, again])
