"""Stored runs in one line: a task of yes/no questions, scored and summed up as real runs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from velox_eval.methods import resolve
from velox_eval.metrics.repetition import repetition_rate
from velox_eval.records.config import Identity, build_config, config_hash, text_sha256
from velox_eval.records.schema import (
    Cost,
    DataInfo,
    MethodInfo,
    ModelInfo,
    RunHeader,
    SampleRecord,
    Session,
)
from velox_eval.records.score import Score
from velox_eval.records.store import RunStore, StoredRun
from velox_eval.runs.summary import summarise
from velox_eval.tasks.base import Scored, Task, TaskData, TaskInfo, TaskOptions

START = datetime(2026, 1, 1, tzinfo=UTC)


class Quiz(Task):
    """A task that is only asked for what summing up needs."""

    def load(self) -> TaskData:
        raise NotImplementedError

    def request(self, sample: Any) -> Any:
        raise NotImplementedError

    def score(self, sample: Any, response: str, judge: Any) -> Scored:
        raise NotImplementedError

    def derived(self, pooled_scores: Mapping[str, float | None]) -> dict[str, float | None]:
        return {"percent": 100 * (pooled_scores.get("accuracy") or 0)}


def make_record(index: int, score: Score | float | None, **changes: Any) -> SampleRecord:
    """One sample: answered with `score`; None is a failed sample that says nothing of what it was asked."""
    response = changes.pop("response", f"answer {index} worth {score}")
    name = changes.pop("score_name", "accuracy")
    fields: dict[str, Any] = {"sample_id": f"s{index}", "index": index, "stratum": "quiz", "prompt_sha256": "0"}
    if score is None:
        fields |= {"status": "error", "error": "out of memory"}
    else:
        item = score if isinstance(score, Score) else Score(num=score)
        fields |= {"status": "ok", "scores": {name: item}, "accuracy": item.value}
        fields |= {"response": response, "response_sha256": text_sha256(response), "method_fired": True}
        fields |= {"repetition_rate": repetition_rate(response)}
        fields |= {"peak_cache_bytes": 500, "full_cache_bytes": 1000, "allocated_cache_bytes": 4000}
        fields |= {"kept_tokens": (4, 6), "kept_fraction": 0.5, "early_share": 0.2, "generated_tokens": 3}
    return SampleRecord(**(fields | changes))


def make_run(
    scores: Sequence[Score | float | None] | Sequence[SampleRecord],
    method: str = "full",
    budget: int | None = None,
    *,
    number: int = 1,
    batch: int = 8,
    speed: float = 100.0,
    higher: bool = True,
    status: str = "success",
    finished: bool = True,
    strata: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> StoredRun:
    """A stored run of the quiz. `changes` are fields of its config or identity; `number` tells its repeats apart."""
    chosen = resolve(method, settings or {}, budget=budget, keep=changes.get("keep"))
    identity = {
        "task_version": 1,
        "data_sha256": "d" * 64,
        "requests_sha256": "e" * 64,
        "model_sha256": "a" * 64,
        "device": "cpu",
        "route": "float32",
        "judge": "rules@2",
        "versions": {"mlx": "0.32.4"},
        "rescored_from": None,
    }
    task = {"name": "quiz", "source": "bundled", **changes.pop("task", {})}
    source = changes.pop("source", "bundled")
    config = {"model": "tiny", "budget": chosen.budget, "params": dict(chosen.params)} | {
        name: value for name, value in changes.items() if name not in identity
    }
    identity |= {name: value for name, value in changes.items() if name in identity}
    built = build_config(task=task, method=method, **config)
    digest = config_hash(built, Identity(**identity))
    records = [
        item
        if isinstance(item, SampleRecord)
        else make_record(index, item, **({} if strata is None else {"stratum": strata[index]}))
        for index, item in enumerate(scores)
    ]
    session = Session(
        started_at=START,
        ended_at=START,
        command=["velox-eval", "run", "--method", method],
        batch_sizes=(batch,),
        cost=Cost(decode_tokens=int(speed * 10), decode_seconds=10, prefill_tokens=5000, prefill_seconds=1),
    )
    header = RunHeader(
        run_id=f"{digest[:12]}-{number}",
        status=status,
        config=built,
        config_hash=digest,
        identity=Identity(**identity),
        created_at=START + timedelta(hours=number),
        finished_at=START + timedelta(hours=number, minutes=1) if finished else None,
        platform="-",
        python="-",
        data=DataInfo(
            source=source, origin="-", sha256=identity["data_sha256"], samples=len(scores), total=len(scores)
        ),
        model=ModelInfo(
            name=built.model,
            content_sha256=identity["model_sha256"],
            device="cpu",
            route="float32",
            dtype="float32",
            context_length=None,
            n_layers=2,
        ),
        method=MethodInfo(
            name=chosen.spec.name,
            variant=chosen.variant_name,
            params=dict(chosen.params),
            differs="-",
            capacity="-",
            evicts=chosen.spec.evicts,
        ),
        sessions=(session,),
        error="samples failed" if status == "error" else None,
    )
    info = TaskInfo("quiz", "-", 1, "accuracy", "accuracy", ("bundled",), ("1: -",), "-", {}, higher)
    summary = summarise(Quiz(info, TaskOptions()), header, records)
    return StoredRun(header.model_copy(update={"summary": summary}), records)


def store(run: StoredRun, results: Path) -> Path:
    """Writes the run to a results folder as a real one is, and returns its folder."""
    with RunStore(results).open(
        run.header.config_hash,
        lambda run_id: run.header.model_copy(
            update={"run_id": run_id, "status": "started", "finished_at": None, "summary": None}
        ),
        again=True,
    ) as folder:
        for record in run.samples:
            folder.append(record)
        folder.update(run.header.model_copy(update={"run_id": folder.header.run_id}))
        return folder.path


@pytest.fixture
def run() -> Callable[..., StoredRun]:
    return make_run


@pytest.fixture
def record() -> Callable[..., SampleRecord]:
    return make_record


@pytest.fixture
def stored() -> Callable[..., Path]:
    return store
