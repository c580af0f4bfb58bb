"""Stored runs made in memory: as many samples, methods and budgets as a test of plots or of the page needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tests.records.conftest import make_config, make_header, make_record, make_summary
from velox_eval.metrics.repetition import repetition_rate
from velox_eval.records.config import text_sha256
from velox_eval.records.schema import Cost, MethodInfo, SampleRecord, Session
from velox_eval.records.store import StoredRun

FINISHED = datetime(2026, 1, 2, 4, 0, 0, tzinfo=UTC)


def answer(index: int, text: str, score: float, **changes: Any) -> SampleRecord:
    """Returns a sample that answered `text` and met `score` of its one check."""
    fields: dict[str, Any] = {
        "response": text,
        "response_sha256": text_sha256(text),
        "scores": {"stic_2": {"num": score, "den": 1}},
        "accuracy": score,
        "repetition_rate": repetition_rate(text),
        "prompt_tokens": 100,
        "generated_tokens": len(text.split()),
        "finish_reason": "eos",
        "truncated": False,
        "peak_cache_bytes": 1 << 20,
        "full_cache_bytes": 4 << 20,
        "kept_tokens": (64, 48),
        "kept_fraction": 0.5,
        "early_share": 0.2,
    }
    return make_record(index, **(fields | changes))


def stored(
    method: str,
    budget: int | None,
    records: Sequence[SampleRecord],
    *,
    primary: str = "stic_2",
    curves: dict[str, list[float | None]] | None = None,
    speed: float | None = 100.0,
    batch: int = 4,
    command: Sequence[str] = ("velox-eval", "run"),
    **changes: Any,
) -> StoredRun:
    """Returns a finished run of `method` with these samples."""
    name, _, variant = method.partition(":")
    evicts = name != "full"
    params = {"window": 8} if evicts else {}
    config = changes.pop("config", None) or make_config(method=method, params=params, budget=budget)
    summary = make_summary(
        n=len(records),
        n_ok=len(records),
        n_error=0,
        n_not_fired=0 if evicts else None,
        primary=primary,
        curves=curves or {},
        decode_tokens_per_second=speed,
        prefill_tokens_per_second=2000.0,
        batch_sizes=(batch,),
        cost=Cost(decode_tokens=1000, decode_seconds=10.0, wall_seconds=12.0, engine_seconds=11.0),
    )
    header = make_header(
        run_id=f"{text_sha256(method)[:8]}-{budget or 0}",
        status="success",
        config=config,
        finished_at=FINISHED,
        method=MethodInfo(
            name=name, variant=variant or "adapted", params=params, differs="-", capacity="budget", evicts=evicts
        ),
        sessions=(Session(started_at=FINISHED, ended_at=FINISHED, command=list(command), samples=len(records)),),
        summary=summary,
        **changes,
    )
    return StoredRun(header, list(records))
