"""Builders of records, so that a store test is three lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from velox_eval.records.config import Identity, RunConfig, TaskChoice, build_config, config_hash
from velox_eval.records.schema import Cost, DataInfo, MethodInfo, ModelInfo, RunHeader, RunSummary, SampleRecord


def make_identity(**changes: Any) -> Identity:
    fields: dict[str, Any] = {
        "task_version": 1,
        "data_sha256": "d" * 64,
        "requests_sha256": "e" * 64,
        "model_sha256": "m" * 64,
        "device": "cpu",
        "route": "float32",
        "judge": "rules@2",
        "versions": {"mlx": "0.32.4"},
    }
    return Identity(**(fields | changes))


def make_config(**changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "task": TaskChoice(name="longgenbench", source="bundled"),
        "model": "tiny",
        "method": "morphkv",
        "params": {"n_sink": 4, "window": 8},
        "budget": 64,
    }
    return build_config(**(fields | changes))


def make_header(run_id: str = "r-1", **changes: Any) -> RunHeader:
    config, identity = make_config(), make_identity()
    fields: dict[str, Any] = {
        "run_id": run_id,
        "status": "started",
        "config": config,
        "config_hash": config_hash(config, identity),
        "identity": identity,
        "created_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "platform": "Linux x86_64",
        "python": "3.11",
        "data": DataInfo(source="bundled", origin="seed 0", sha256="d" * 64, samples=3, total=8),
        "model": ModelInfo(
            name="tiny",
            content_sha256="m" * 64,
            device="cpu",
            route="-",
            dtype="float32",
            context_length=2048,
            n_layers=2,
        ),
        "method": MethodInfo(
            name="morphkv", variant="adapted", params=config.params, differs="-", capacity="budget", evicts=True
        ),
    }
    return RunHeader(**(fields | changes))


def make_record(index: int = 0, **changes: Any) -> SampleRecord:
    fields: dict[str, Any] = {
        "sample_id": f"s{index}",
        "index": index,
        "stratum": "diary",
        "status": "ok",
        "prompt_sha256": "p" * 64,
        "response": "Week 1: rain",
        "response_sha256": "q" * 64,
        "scores": {"accuracy": {"num": 1, "den": 2}},
        "accuracy": 0.5,
    }
    return SampleRecord(**(fields | changes))


@pytest.fixture
def header() -> Callable[..., RunHeader]:
    return make_header


@pytest.fixture
def record() -> Callable[..., SampleRecord]:
    return make_record


@pytest.fixture
def identity() -> Callable[..., Identity]:
    return make_identity


@pytest.fixture
def config() -> Callable[..., RunConfig]:
    return make_config


def make_summary(**changes: Any) -> RunSummary:
    fields: dict[str, Any] = {name: None for name, field in RunSummary.model_fields.items() if field.is_required()}
    fields |= {"n": 10, "n_ok": 9, "n_error": 1, "n_unscored": 0, "n_truncated": 0, "n_beyond_context": 0}
    fields |= {"primary": "accuracy", "accuracy": 0.8, "scores": {}, "derived": {}, "curves": {}}
    fields |= {"higher_is_better": True, "batch_sizes": (1,), "cost": Cost()}
    return RunSummary(**(fields | changes))


@pytest.fixture
def summary() -> Callable[..., RunSummary]:
    return make_summary
