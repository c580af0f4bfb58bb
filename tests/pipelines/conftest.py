"""Suites that run on the tiny model in seconds, and an observer that keeps what it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velox_eval.pipelines.matrix import SweepPlan, plan_sweep
from velox_eval.pipelines.suite import Suite, SuiteMethod, SuiteTask
from velox_eval.pipelines.sweep import SweepObserver


class Watching(SweepObserver):
    """Keeps notes, records and ends of runs; presses Ctrl-C once `stop_after` samples are recorded."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str] = []
        self.records: list[Any] = []
        self.runs: list[Any] = []
        self.stop_after = stop_after

    def note(self, message: str) -> None:
        self.notes.append(message)

    def recorded(self, record: Any) -> None:
        self.records.append(record)
        if len(self.records) == self.stop_after:
            raise KeyboardInterrupt

    def run_ended(self, run: Any) -> None:
        self.runs.append(run)


@pytest.fixture
def watching() -> type[Watching]:
    return Watching


@pytest.fixture
def suite(tiny_model_dir: Path) -> Callable[..., Suite]:
    """Makes a suite: four prompts written on in 16 tokens, morphkv and tova at 40 rows, one sample at a time."""

    def make(**changes: Any) -> Suite:
        fields: dict[str, Any] = {
            "name": "tiny",
            "models": (str(tiny_model_dir),),
            "budgets": (40,),
            "batch_size": 1,
            "task": (SuiteTask(name="longgenbench", limit=4, max_tokens=16),),
            "method": (SuiteMethod(name="tova"), SuiteMethod(name="morphkv")),
        }
        return Suite(**(fields | changes))

    return make


@pytest.fixture
def planned(suite: Callable[..., Suite], tmp_path: Path) -> Callable[..., SweepPlan]:
    """Plans such a suite with its records in `tmp_path / results`."""

    def make(results: str = "results", again: bool = False, **changes: Any) -> SweepPlan:
        return plan_sweep(suite(**changes), results=tmp_path / results, again=again)

    return make
