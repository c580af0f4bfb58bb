"""From a request and what came of it to the sample's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from velox_eval.engine.requests import Comparison, Failure, Generation, Outcome, Request, ScoredPairs
from velox_eval.errors import VeloxEvalError
from velox_eval.judges.base import Judge
from velox_eval.metrics.repetition import repetition_rate
from velox_eval.records.config import text_sha256
from velox_eval.records.schema import Likelihoods, SampleRecord, TeacherForced
from velox_eval.records.score import Score
from velox_eval.tasks.base import Sample, Task

JUDGE_NOTES = "judge"  # in a record's details: what a judge that is asked several times tells of itself
_CACHE_FIELDS = (
    "peak_cache_bytes",
    "peak_total_bytes",
    "end_cache_bytes",
    "allocated_cache_bytes",
    "full_cache_bytes",
    "kept_tokens",
    "evicted_tokens",
    "kept_fraction",
    "method_fired",
    "early_share",
    "budget",
    "reported",
)


def sample_record(
    task: Task, sample: Sample, index: int, request: Request, outcome: Outcome, judge: Judge
) -> SampleRecord:
    """Returns the record of one sample; a failed request or scoring is in it as an error, nothing is raised."""
    fields: dict[str, Any] = {
        "sample_id": sample.sample_id,
        "index": index,
        "stratum": sample.stratum,
        "prompt_sha256": text_sha256(request.prompt),
    }
    if isinstance(outcome, Failure):
        return SampleRecord(**fields, **_failed(task, sample, one_line(outcome.error)))
    fields |= cost_fields(outcome)
    if isinstance(outcome, Comparison):
        compared = _teacher_forced(outcome)
        return SampleRecord(**fields, teacher_forced=compared, **scored_fields(task, sample, compared, judge))
    if isinstance(outcome, ScoredPairs):
        found = Likelihoods(logprobs=_digits(outcome.logprobs), greedy=outcome.greedy, tokens=outcome.tokens)
        return SampleRecord(**fields, likelihoods=found, **scored_fields(task, sample, found, judge))
    return SampleRecord(**fields, **_answer(outcome), **scored_fields(task, sample, outcome.text, judge))


def scored_fields(
    task: Task, sample: Sample, answer: str | TeacherForced | Likelihoods, judge: Judge
) -> dict[str, Any]:
    """Returns the fields of a record that scoring decides, status included."""
    notes: dict[str, Any] = {}
    try:
        if isinstance(answer, TeacherForced):
            scored = task.score_comparison(sample, answer)
        elif isinstance(answer, Likelihoods):
            scored = task.score_likelihoods(sample, answer)
        else:
            asked = judge.for_answer()
            scored = task.score(sample, answer, asked)
            notes = asked.notes()
    except VeloxEvalError as error:
        return _failed(task, sample, f"scoring failed: {one_line(str(error))}")
    return {
        "status": "ok",
        "error": None,
        **_scores(task, scored.scores),
        "unscored": dict(scored.unscored),
        "details": {**scored.details, **({JUDGE_NOTES: notes} if notes else {})},
    }


def _failed(task: Task, sample: Sample, error: str) -> dict[str, Any]:
    missed = _scores(task, task.unanswered(sample))
    return {"status": "error", "error": error, **missed, "unscored": {}, "details": {}}


def _scores(task: Task, scores: Mapping[str, Score]) -> dict[str, Any]:
    accuracy = scores.get(task.info.accuracy)
    return {"scores": dict(scores), "accuracy": accuracy.value if accuracy else None}


def cost_fields(outcome: Generation | Comparison | ScoredPairs) -> dict[str, Any]:
    """Returns the fields of a record that say what an outcome cost."""
    names = (
        "prompt_tokens",
        "beyond_context",
        "prefill_seconds",
        "compress_seconds",
        "decode_seconds",
        "tokens_per_second",
    )
    return {
        **{name: getattr(outcome, name) for name in names},
        "cut_tokens": None if isinstance(outcome, Comparison) else outcome.cut_tokens,
        **{name: getattr(outcome.cache, name) for name in _CACHE_FIELDS},
    }


def _teacher_forced(outcome: Comparison) -> TeacherForced:
    """The comparison as it is stored; scores are those of the stored numbers."""
    return TeacherForced(
        text=outcome.text,
        tokens=outcome.tokens,
        kl=_digits(outcome.kl),
        agree=outcome.agree,
        full_logprob=_digits(outcome.full_logprob),
        method_logprob=_digits(outcome.method_logprob),
    )


def _digits(values: Sequence[float]) -> tuple[float, ...]:
    """Float32 numbers with their digits and no more."""
    return tuple(float(f"{value:.8g}") for value in values)


def _answer(generation: Generation) -> dict[str, Any]:
    return {
        "generated_tokens": len(generation.tokens),
        "finish_reason": generation.finish_reason,
        "truncated": generation.truncated,
        **text_fields(generation.text),
    }


def text_fields(text: str) -> dict[str, Any]:
    """Returns the fields of a record that an answer's text alone decides."""
    rates = {"": 4, "_10": 10, "_20": 20}
    return {
        "response": text,
        "response_sha256": text_sha256(text),
        **{f"repetition_rate{end}": repetition_rate(text, n) for end, n in rates.items()},
        **{f"late_repetition_rate{end}": repetition_rate(text, n, part="second_half") for end, n in rates.items()},
    }


def one_line(text: str) -> str:
    """Returns `text` with every run of white space as one space."""
    return " ".join(text.split())
