"""The stored records: run.json and a line of runs.jsonl here, a line of samples.jsonl in sample.py beside it.

Field order is part of the format. All of them are imported from here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from velox_eval.records.config import Frozen, Identity, ParamValue, RunConfig
from velox_eval.records.sample import Likelihoods, SampleRecord, TeacherForced

__all__ = [
    "SCHEMA_VERSION",
    "Cost",
    "DataInfo",
    "JudgeSummary",
    "Likelihoods",
    "MethodInfo",
    "ModelInfo",
    "ResponsesInfo",
    "Revision",
    "RunHeader",
    "RunRow",
    "RunStatus",
    "RunSummary",
    "SampleRecord",
    "ScoreSummary",
    "Session",
    "TeacherForced",
    "run_row",
]

SCHEMA_VERSION = 1

RunStatus = Literal["started", "success", "cancelled", "error"]


class ScoreSummary(Frozen):
    """A score pooled over samples: ratio of sums, with its error."""

    value: float | None = Field(description="Sum of numerators / sum of denominators; null when nothing was scored.")
    n: int = Field(ge=0, description="Samples scored.")
    standard_error: float | None = Field(
        default=None, description="Standard error over samples; null under two samples."
    )
    low: float | None = Field(default=None, description="Lower end of the 95% interval.")
    high: float | None = Field(default=None, description="Upper end of the 95% interval.")


class Cost(Frozen):
    """Seconds and tokens of a run, sessions added up. Loading and compiling are left out of the rates."""

    decode_tokens: int = Field(default=0, ge=0, description="Tokens decoded, all sequences.")
    decode_seconds: float = Field(default=0.0, ge=0, description="Seconds in which anything was decoded.")
    prefill_tokens: int = Field(default=0, ge=0, description="Prompt tokens read.")
    prefill_seconds: float = Field(default=0.0, ge=0, description="Seconds of reading prompts.")
    wall_seconds: float = Field(default=0.0, ge=0, description="Seconds from the first request to the last record.")
    engine_seconds: float = Field(default=0.0, ge=0, description="Of these, in the engine.")
    scoring_seconds: float = Field(default=0.0, ge=0, description="Of these, scoring answers.")
    store_seconds: float = Field(default=0.0, ge=0, description="Of these, writing records.")
    harness_seconds: float = Field(
        default=0.0, ge=0, description="wall_seconds outside the engine: the harness's own share."
    )


class Session(Frozen):
    """One process that worked on the run. A killed one has no end and no cost."""

    started_at: datetime = Field(description="UTC.")
    ended_at: datetime | None = Field(default=None, description="UTC; null when the process was killed.")
    command: list[str] = Field(default_factory=list, description="The command line.")
    samples: int = Field(default=0, ge=0, description="Samples recorded.")
    batch_sizes: tuple[int, ...] = Field(default=(), description="Distinct batch sizes that decoded.")
    mlx_peak_bytes: int = Field(default=0, ge=0, description="The array library's own peak, whole process.")
    cost: Cost | None = Field(default=None, description="Seconds and tokens.")


class JudgeSummary(Frozen):
    """How far a judge that was asked several times agreed with itself."""

    repeats: int = Field(ge=2, description="Times each question was asked.")
    questions: int = Field(ge=0, description="Questions asked, over all answers.")
    disagreement: ScoreSummary = Field(
        description="Pairs of readable replies to one question (of a rating: to one dimension) that differ / all pairs."
    )
    unreadable: int = Field(ge=0, description="Replies that could not be read.")
    rating_sd: float | None = Field(
        description="Standard deviation between ratings of one answer, in points; null: nothing was rated twice."
    )


class RunSummary(Frozen):
    """What a run showed."""

    n: int = Field(ge=0, description="Samples attempted.")
    n_ok: int = Field(ge=0, description="Samples answered and scored.")
    n_error: int = Field(ge=0, description="Samples that failed.")
    n_unscored: int = Field(ge=0, description="Samples with at least one score that could not be given.")
    n_truncated: int = Field(ge=0, description="Answers ended by a limit.")
    n_beyond_context: int = Field(ge=0, description="Answers whose limit was cut at the model's context.")
    n_prompt_cut: int = Field(default=0, ge=0, description="Prompts that lost tokens to make them fit.")
    n_not_fired: int | None = Field(
        description="Samples in which nothing was evicted; null: it never evicts, or not known."
    )
    primary: str = Field(description="Name of the score that comparisons decide on.")
    higher_is_better: bool = Field(default=True, description="Whether more of it is better.")
    primary_value: float | None = Field(description="Its value.")
    primary_low: float | None = Field(description="Lower end of its 95% interval.")
    primary_high: float | None = Field(description="Upper end of its 95% interval.")
    accuracy: float | None = Field(description="Accuracy over all attempted: a failed sample counts as all wrong.")
    accuracy_scored: float | None = Field(description="Accuracy over the samples that were scored.")
    scores: dict[str, ScoreSummary] = Field(description="Every score, pooled; failed samples missed all they asked.")
    derived: dict[str, float | None] = Field(description="Scores computed from the pooled ones.")
    curves: dict[str, list[float | None]] = Field(description="Scores along the answer, pooled; null: nothing there.")
    repetition_rate: float | None = Field(description="Mean over answers long enough.")
    repetition_rate_10: float | None = Field(description="Mean over answers long enough.")
    repetition_rate_20: float | None = Field(description="Mean over answers long enough.")
    late_repetition_rate: float | None = Field(default=None, description="The same of the answers' second halves.")
    late_repetition_rate_10: float | None = Field(default=None, description="The same of the answers' second halves.")
    late_repetition_rate_20: float | None = Field(default=None, description="The same of the answers' second halves.")
    mean_generated_tokens: float | None = Field(description="Mean tokens an answer.")
    peak_cache_bytes: int | None = Field(description="Largest over samples.")
    mean_peak_cache_bytes: float | None = Field(description="Mean over samples.")
    peak_total_bytes: int | None = Field(description="Largest over samples.")
    end_cache_bytes: int | None = Field(description="Largest over samples.")
    full_cache_bytes: int | None = Field(description="Largest over samples.")
    peak_of_full: float | None = Field(
        default=None, description="Peak bytes over the full cache's, of all samples together."
    )
    end_of_full: float | None = Field(
        default=None, description="Bytes at the end over the full cache's, of all samples together."
    )
    kept_fraction: float | None = Field(description="Mean over samples.")
    early_share: float | None = Field(description="Mean over samples.")
    decode_tokens_per_second: float | None = Field(description="All tokens decoded / seconds in which any was.")
    prefill_tokens_per_second: float | None = Field(description="Prompt tokens / seconds of prefill.")
    batch_sizes: tuple[int, ...] = Field(description="Distinct batch sizes that decoded.")
    mlx_peak_bytes: int | None = Field(description="Largest over sessions.")
    judging: JudgeSummary | None = Field(
        default=None, description="How far the judge agreed with itself; null when it was asked once."
    )
    cost: Cost = Field(description="Seconds and tokens, sessions added up.")


class Revision(Frozen):
    """State of the source checkout that ran."""

    commit: str = Field(description="Git commit.")
    dirty: bool = Field(description="Whether tracked files differed from it.")


class DataInfo(Frozen):
    """Where the samples came from."""

    source: str = Field(description="bundled, official or data.")
    origin: str = Field(description="What was read: generator seed, address and revision, or file name.")
    sha256: str = Field(description="SHA-256 of the samples' content.")
    samples: int = Field(ge=0, description="Samples of this run.")
    total: int = Field(ge=0, description="Samples there were before the limit.")
    incomplete: str | None = Field(default=None, description="Why this is not the whole task; null when it is.")
    notes: tuple[str, ...] = Field(default=(), description="What loading changed or found odd.")


class ResponsesInfo(Frozen):
    """Where answers that this harness did not write were read from.

    Of such a run the config's generation settings say nothing; `method` and `model` hold what its giver called them.
    """

    file: str = Field(description="Name of the file.")
    sha256: str = Field(description="SHA-256 of the file.")
    rows: int = Field(ge=0, description="Rows it has.")
    fields: dict[str, str] = Field(description="What was read from which of its fields.")
    matched_by: Literal["id", "prompt", "order"] = Field(description="What told which sample a row answers.")
    rated_by: str | None = Field(default=None, description="Who gave the stored ratings; null: none were read.")


class ModelInfo(Frozen):
    """The model that ran; of foreign answers its name as claimed, everything else \"unknown\"."""

    name: str = Field(description="Name as asked.")
    content_sha256: str = Field(description="SHA-256 of its content.")
    device: str = Field(description="Device it ran on.")
    route: str = Field(description="How the weights were held.")
    dtype: str = Field(description="Type of the activations.")
    context_length: int | None = Field(description="Tokens it can see; null: not stated.")
    n_layers: int = Field(ge=0, description="Layers.")


class MethodInfo(Frozen):
    """The method as it was declared and placed."""

    name: str = Field(description="Method without variant.")
    variant: str = Field(description="Variant: adapted, paper, ...")
    params: dict[str, ParamValue] = Field(description="Every parameter.")
    differs: str = Field(description="How it differs from the paper or code it names.")
    capacity: str = Field(description="Rows it may hold, as declared.")
    evicts: bool | None = Field(
        description="Whether the method evicts at all (full does not); null: not known, the answers are foreign."
    )
    query_aware: bool = Field(
        default=True, description="Whether what it keeps of a context may depend on the question that follows it."
    )
    eviction_layers: tuple[int, ...] = Field(default=(), description="Layers with an eviction cache.")
    other_layers: dict[str, str] = Field(default_factory=dict, description="Layers left alone: layer to cache class.")


class RunHeader(Frozen):
    """run.json: everything about a run that is not one sample."""

    schema_version: int = Field(default=SCHEMA_VERSION, description="Version of these records.")
    run_id: str = Field(description="<first 12 digits of the hash>-<n>.")
    status: RunStatus = Field(description="started (running or killed), success, cancelled, or error.")
    config: RunConfig = Field(description="What was asked.")
    config_hash: str = Field(description="SHA-256 over what changes answers or scores.")
    identity: Identity = Field(description="The contents the hash covers.")
    created_at: datetime = Field(description="UTC.")
    finished_at: datetime | None = Field(default=None, description="UTC; null until all samples are attempted.")
    platform: str = Field(description="Operating system and machine type.")
    python: str = Field(description="Python version.")
    revision: Revision | None = Field(
        default=None, description="Source checkout; null when run from an installed package."
    )
    data: DataInfo = Field(description="Source and content of the samples.")
    model: ModelInfo = Field(description="The model.")
    method: MethodInfo = Field(description="The method.")
    responses: ResponsesInfo | None = Field(
        default=None, description="The file that the answers were read from; null: this harness wrote them."
    )
    sessions: tuple[Session, ...] = Field(default=(), description="Processes that worked on the run, in order.")
    error: str | None = Field(default=None, description="Why the status is error; null otherwise.")
    summary: RunSummary | None = Field(default=None, description="What the run showed; null until one session ended.")


class RunRow(Frozen):
    """One flat line of runs.jsonl: a run that attempted all its samples."""

    schema_version: int = Field(default=SCHEMA_VERSION, description="Version of these records.")
    run_id: str = Field(description="Folder of the run.")
    config_hash: str = Field(description="SHA-256 over what changes answers or scores.")
    status: RunStatus = Field(description="success or error.")
    finished_at: datetime = Field(description="UTC.")
    method: str = Field(description="Method without variant.")
    variant: str = Field(description="Variant of the method.")
    task: str = Field(description="Task.")
    task_version: int = Field(description="Version of the task.")
    source: str = Field(description="bundled, official or data.")
    data_sha256: str = Field(description="SHA-256 of the samples' content.")
    model: str = Field(description="Model, as asked.")
    model_sha256: str = Field(description="SHA-256 of its content.")
    device: str = Field(description="Device it ran on.")
    budget: int | None = Field(description="Rows per layer and KV head; null with keep or without bound.")
    keep: float | None = Field(description="Share kept; null with budget.")
    prefill_step: int = Field(description="Prompt tokens a prefill chunk has.")
    judge: str = Field(description="Judge id.")
    rescored_from: str | None = Field(default=None, description="Run whose answers were scored again.")
    responses: str | None = Field(
        default=None, description="File that the answers were read from; null: this harness wrote them."
    )
    n: int = Field(description="Samples attempted.")
    n_error: int = Field(description="Samples that failed.")
    n_truncated: int = Field(description="Answers ended by a limit.")
    n_not_fired: int | None = Field(description="As in the summary.")
    primary: str = Field(description="Name of the primary score.")
    higher_is_better: bool = Field(default=True, description="Whether more of it is better.")
    primary_value: float | None = Field(description="Its value.")
    primary_low: float | None = Field(description="Lower end of its 95% interval.")
    primary_high: float | None = Field(description="Upper end of its 95% interval.")
    accuracy: float | None = Field(description="Accuracy over all attempted.")
    repetition_rate: float | None = Field(description="Mean over answers.")
    peak_cache_bytes: int | None = Field(description="Largest over samples.")
    end_cache_bytes: int | None = Field(description="Largest over samples.")
    full_cache_bytes: int | None = Field(description="Largest over samples.")
    kept_fraction: float | None = Field(description="Mean over samples.")
    prefill_tokens_per_second: float | None = Field(description="Prompt tokens / seconds of prefill.")
    decode_tokens_per_second: float | None = Field(description="Tokens decoded / seconds in which any was.")
    batch_size: int | None = Field(description="Most sequences that decoded together; null: none decoded.")


def run_row(header: RunHeader) -> RunRow:
    """Returns the flat line of a run whose samples were all attempted. Raises ValueError before that."""
    summary = header.summary
    if summary is None or header.finished_at is None:
        raise ValueError(f"run {header.run_id} is not finished")
    shared = {name: getattr(summary, name) for name in RunRow.model_fields if name in RunSummary.model_fields}
    return RunRow(
        **shared,
        run_id=header.run_id,
        config_hash=header.config_hash,
        status=header.status,
        finished_at=header.finished_at,
        method=header.method.name,
        variant=header.method.variant,
        task=header.config.task.name,
        task_version=header.identity.task_version,
        source=header.data.source,
        data_sha256=header.data.sha256,
        model=header.config.model,
        model_sha256=header.model.content_sha256,
        device=header.model.device,
        budget=header.config.budget,
        keep=header.config.keep,
        prefill_step=header.config.prefill_step,
        judge=header.identity.judge,
        rescored_from=header.identity.rescored_from,
        responses=None if header.responses is None else header.responses.file,
        batch_size=max(summary.batch_sizes, default=None),
    )
