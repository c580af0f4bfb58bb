"""What a night found, small enough to be stored as the baseline of later nights: scores, answers' hashes, bytes, speed.

Speeds are stored as ratios to the full cache of the same night, never as times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from velox_eval.compare.conditions import conditions, settings
from velox_eval.errors import ConfigError, DataError
from velox_eval.pipelines.matrix import SweepPlan
from velox_eval.pipelines.sweep import SweepRun
from velox_eval.records import jsonl
from velox_eval.records.config import Frozen, ParamValue, canonical_json, text_sha256
from velox_eval.records.schema import RunHeader, SampleRecord
from velox_eval.records.score import Score
from velox_eval.records.store import load_run

BASELINE_VERSION = 1
_DIGITS = 16  # of the hash of an answer


class NightSample(Frozen):
    """One sample of one run."""

    stratum: str = Field(description="Type of the sample.")
    ok: bool = Field(description="Whether it was answered and scored.")
    score: Score | None = Field(description="The task's primary score; null when it could not be given.")
    answer: str | None = Field(description="First digits of the SHA-256 of what came back; null when nothing did.")
    peak_bytes: int | None = Field(description="peak_total_bytes of the record.")
    full_bytes: int | None = Field(description="full_cache_bytes of the record: equal where as many tokens were seen.")


class NightRun(Frozen):
    """One run of a night."""

    task: str = Field(description="Task.")
    method: str = Field(description="name[:variant].")
    budget: int | None = Field(description="Rows per layer and KV head; null: keep, or no bound.")
    keep: float | None = Field(description="Share kept.")
    params: dict[str, ParamValue] = Field(description="Every parameter of the method.")
    seed: int = Field(description="Seed.")
    model: str = Field(description="Model, as asked.")
    same: dict[str, str] = Field(description="What must be equal for two nights to be compared, by name.")
    primary: str = Field(description="Name of the score that decides.")
    higher_is_better: bool = Field(description="Whether more of it is better.")
    value: float | None = Field(description="That score, pooled.")
    samples: dict[str, NightSample] = Field(description="By sample id.")
    full_over: tuple[float, ...] = Field(
        default=(),
        description="The full cache's decode step over this one's, timed in turns, by repeat; empty: not timed.",
    )


class Night(Frozen):
    """All runs of one suite of one night."""

    schema_version: int = Field(default=BASELINE_VERSION, description="Version of this document.")
    suite: str = Field(description="Name of the suite.")
    suite_sha256: str = Field(description="Hash of what the suite asks for.")
    created_at: datetime = Field(description="UTC.")
    platform: str = Field(description="Operating system and machine type.")
    commit: str | None = Field(description="Git commit of the source; null for an installed package.")
    versions: dict[str, str] = Field(description="Packages that answers depend on; they may differ between nights.")
    runs: dict[str, NightRun] = Field(description="By label.")


def night_of(plan: SweepPlan, runs: Sequence[SweepRun], full_over: Mapping[str, tuple[float, ...]]) -> Night:
    """Returns what `runs` of the plan found; `full_over` has the timed ratios by label. Every run has its header."""
    headers = [run.header for run in runs if run.header is not None]
    revision = headers[0].revision
    versions = {name: version for header in headers for name, version in header.identity.versions.items()}
    return Night(
        suite=plan.suite.name,
        suite_sha256=plan.suite.sha256,
        created_at=datetime.now(UTC),
        platform=headers[0].platform,
        commit=revision.commit if revision else None,
        versions=dict(sorted(versions.items())),
        runs={
            run.planned.label: _night_run(run.path, full_over.get(run.planned.label, ()))
            for run in runs
            if run.path is not None
        },
    )


def _night_run(path: Path, full_over: tuple[float, ...]) -> NightRun:
    header, samples = load_run(path)
    assert header.summary is not None
    config, primary = header.config, header.summary.primary
    return NightRun(
        task=config.task.name,
        method=config.method,
        budget=config.budget,
        keep=config.keep,
        params=dict(header.method.params),
        seed=config.seed,
        model=config.model,
        same=_same(header),
        primary=primary,
        higher_is_better=header.summary.higher_is_better,
        value=header.summary.primary_value,
        samples={sample.sample_id: _night_sample(sample, primary) for sample in samples},
        full_over=tuple(float(f"{ratio:.4g}") for ratio in full_over),
    )


def _same(header: RunHeader) -> dict[str, str]:
    """What runs must share to be compared, but for the packages, which a night is there to watch; and its own settings.

    Those of the method and the batch are the label's and the suite's, whose defaults may be others by now.
    """
    shared = {name: condition.key for name, condition in conditions(header).items() if name != "versions"}
    batch = str(header.config.performance.batch_size)
    return {**shared, "settings": canonical_json(settings(header)), "batch": batch}


def _night_sample(sample: SampleRecord, primary: str) -> NightSample:
    answer = sample.response_sha256
    if answer is None and sample.teacher_forced is not None:
        answer = text_sha256(canonical_json(sample.teacher_forced.model_dump(mode="json")))
    return NightSample(
        stratum=sample.stratum,
        ok=sample.status == "ok",
        score=sample.scores.get(primary),
        answer=answer[:_DIGITS] if answer else None,
        peak_bytes=sample.peak_total_bytes,
        full_bytes=sample.full_cache_bytes,
    )


def read_night(path: Path) -> Night:
    """Returns the baseline in `path`.

    Raises ConfigError when there is none, DataError naming file and field when it is not one.
    """
    try:
        row: Any = jsonl.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no baseline yet; --update-baseline makes this night the baseline"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataError(f"{path}: not a baseline: {error}") from error
    version = row.get("schema_version") if isinstance(row, dict) else None
    if version != BASELINE_VERSION:
        raise DataError(
            f"{path}: schema version {version!r}; this velox-eval reads {BASELINE_VERSION}. Move the file away, and "
            "--update-baseline makes a new one"
        )
    try:
        return Night.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def write_night(path: Path, night: Night) -> None:
    """Writes the night as a baseline, all or nothing. Raises ConfigError where it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        jsonl.replace(path, json.dumps(night.model_dump(mode="json"), ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_suite(path: Path, baseline: Night, plan: SweepPlan) -> None:
    """Raises ConfigError when the baseline is of another suite, or of this one before it changed."""
    advice = "--update-baseline makes this night the baseline"
    if baseline.suite != plan.suite.name:
        raise ConfigError(f"{path}: baseline of suite {baseline.suite!r}, not {plan.suite.name!r}; {advice}")
    if baseline.suite_sha256 != plan.suite.sha256:
        raise ConfigError(f"{path}: suite {baseline.suite} was another when this baseline was made; {advice}")


def check_comparable(path: Path, baseline: Night, night: Night) -> None:
    """Raises ConfigError naming the first run and what about it is another than in the baseline."""
    if baseline.runs.keys() != night.runs.keys():
        other = sorted(baseline.runs.keys() ^ night.runs.keys())
        raise ConfigError(f"{path}: runs are in one night only: {', '.join(other)}; --update-baseline starts anew")
    for label, run in night.runs.items():
        before = baseline.runs[label]
        for name, value in run.same.items():
            old = before.same.get(name)
            if old != value:
                raise ConfigError(
                    f"{path}: {label}: {name} was {_short(old)} in the baseline and is {_short(value)}; "
                    "--update-baseline makes this night the baseline"
                )


def _short(value: str | None) -> str:
    return "unknown" if value is None else value if len(value) < 60 else f"{value[:12]}..."
