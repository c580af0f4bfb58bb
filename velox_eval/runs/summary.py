"""Sums a run up: pooled scores with their error, counts of what went wrong, bytes and speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from velox_eval.metrics.aggregate import largest, mean
from velox_eval.metrics.uncertainty import ratio_interval
from velox_eval.records.schema import Cost, JudgeSummary, RunHeader, RunSummary, SampleRecord, ScoreSummary, Session
from velox_eval.records.score import Score, pooled
from velox_eval.runs.sample import JUDGE_NOTES
from velox_eval.tasks.base import Task


def summarise(task: Task, header: RunHeader, records: Sequence[SampleRecord]) -> RunSummary:
    """Returns the summary of `records`, with the speeds of the header's sessions.

    A failed sample counts as having missed everything it was asked, except in `accuracy_scored`.
    """
    ok = [record for record in records if record.status == "ok"]
    answered = [record for record in records if record.answer is not None]
    names = sorted({name for record in records for name in record.scores})
    scores = {name: _score_summary(_scores(records, name), _strata(task, records, name)) for name in names}
    derived = task.derived({name: score.value for name, score in scores.items()})
    derived |= task.aggregated([record.details for record in ok])
    primary = scores.get(task.info.primary) or ScoreSummary(value=derived.get(task.info.primary), n=len(records))
    cost = total_cost(header.sessions)
    return RunSummary(
        n=len(records),
        n_ok=len(ok),
        n_error=len(records) - len(ok),
        n_unscored=sum(bool(record.unscored) for record in ok),
        n_truncated=sum(record.truncated is True for record in records),
        n_beyond_context=sum(record.beyond_context is True for record in records),
        n_prompt_cut=sum(bool(record.cut_tokens) for record in records),
        n_not_fired=sum(record.method_fired is False for record in ok) if header.method.evicts else None,
        primary=task.info.primary,
        higher_is_better=task.info.higher_is_better,
        primary_value=primary.value,
        primary_low=primary.low,
        primary_high=primary.high,
        accuracy=_accuracy_over_all(records, task.info.accuracy),
        accuracy_scored=pooled(_scores(ok, task.info.accuracy)),
        scores=scores,
        derived=derived,
        curves=task.curves([record.details for record in ok]),
        repetition_rate=mean(record.repetition_rate for record in answered),
        repetition_rate_10=mean(record.repetition_rate_10 for record in answered),
        repetition_rate_20=mean(record.repetition_rate_20 for record in answered),
        late_repetition_rate=mean(record.late_repetition_rate for record in answered),
        late_repetition_rate_10=mean(record.late_repetition_rate_10 for record in answered),
        late_repetition_rate_20=mean(record.late_repetition_rate_20 for record in answered),
        mean_generated_tokens=mean(record.generated_tokens for record in answered),
        peak_cache_bytes=largest(record.peak_cache_bytes for record in answered),
        mean_peak_cache_bytes=mean(record.peak_cache_bytes for record in answered),
        peak_total_bytes=largest(record.peak_total_bytes for record in answered),
        end_cache_bytes=largest(record.end_cache_bytes for record in answered),
        full_cache_bytes=largest(record.full_cache_bytes for record in answered),
        peak_of_full=share_of_full(answered, "peak_cache_bytes"),
        end_of_full=share_of_full(answered, "end_cache_bytes"),
        kept_fraction=mean(record.kept_fraction for record in answered),
        early_share=mean(record.early_share for record in answered),
        decode_tokens_per_second=_rate(cost.decode_tokens, cost.decode_seconds),
        prefill_tokens_per_second=_rate(cost.prefill_tokens, cost.prefill_seconds),
        batch_sizes=tuple(sorted({size for session in header.sessions for size in session.batch_sizes})),
        mlx_peak_bytes=largest(session.mlx_peak_bytes for session in header.sessions if session.cost is not None),
        judging=_judge_summary(ok),
        cost=cost,
    )


def share_of_full(records: Iterable[SampleRecord], name: str) -> float | None:
    """Returns the bytes that field `name` counts over those of the full cache, all samples together; None: no bytes."""
    held = [record for record in records if getattr(record, name) is not None and record.full_cache_bytes]
    full = sum(record.full_cache_bytes or 0 for record in held)
    return sum(getattr(record, name) for record in held) / full if full else None


def total_cost(sessions: Iterable[Session]) -> Cost:
    """Returns the sum over sessions that ended; a killed one left no numbers."""
    costs = [session.cost for session in sessions if session.cost is not None]
    return Cost(**{name: sum(getattr(cost, name) for cost in costs) for name in Cost.model_fields})


def _scores(records: Iterable[SampleRecord], name: str) -> list[Score]:
    return [record.scores[name] for record in records if name in record.scores]


def _strata(task: Task, records: Iterable[SampleRecord], name: str) -> list[str] | None:
    """The stratum of each score of that name, where the task's strata are parts that every run of it has."""
    return [record.stratum for record in records if name in record.scores] if task.fixed_strata else None


def _score_summary(scores: Sequence[Score], strata: Sequence[str] | None = None) -> ScoreSummary:
    interval = ratio_interval(scores, strata)
    return ScoreSummary(
        value=pooled(scores),
        n=sum(score.den > 0 for score in scores),
        standard_error=interval.standard_error,
        low=interval.low,
        high=interval.high,
    )


def _judge_summary(records: Iterable[SampleRecord]) -> JudgeSummary | None:
    notes: list[Any] = [record.details[JUDGE_NOTES] for record in records if JUDGE_NOTES in record.details]
    if not notes:
        return None
    spreads = sum(item["spreads"] for item in notes)
    return JudgeSummary(
        repeats=max(item["repeats"] for item in notes),
        questions=sum(item["questions"] for item in notes),
        disagreement=_score_summary([Score(num=item["differing"], den=item["pairs"]) for item in notes]),
        unreadable=sum(item["unreadable"] for item in notes),
        rating_sd=(sum(item["squares"] for item in notes) / spreads) ** 0.5 if spreads else None,
    )


def _accuracy_over_all(records: Sequence[SampleRecord], name: str) -> float | None:
    """Failed samples count as all wrong; one that does not say how much it was asked counts as the average one."""
    scores = _scores(records, name)
    silent = sum(record.status == "error" and name not in record.scores for record in records)
    accuracy = pooled(scores)
    if accuracy is None:
        return 0.0 if silent else None
    return accuracy * len(scores) / (len(scores) + silent)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds > 0 else None
