"""From a stored run to its row: its own score, counts, bytes, rows and speeds, worked out from its samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from velox_eval.compare import stats
from velox_eval.compare.comparison import Arm, ArmCost, Counts, Estimate
from velox_eval.compare.conditions import arm_label, method_label
from velox_eval.errors import ConfigError, unknown_name
from velox_eval.metrics.aggregate import largest, mean
from velox_eval.records.config import ParamValue
from velox_eval.records.schema import SampleRecord
from velox_eval.records.score import Score, pooled
from velox_eval.records.store import StoredRun
from velox_eval.runs.summary import share_of_full
from velox_eval.tasks import task_info

# Scores other than a task's primary one say nowhere which way is better; these begin the names of those to keep low.
_LOWER_IS_BETTER = ("mean_kl", "nll_", "diverged")


@dataclass(frozen=True)
class Measure:
    """The score that is compared. `by_sample` is false for one that only exists over all samples (a product)."""

    name: str
    higher_is_better: bool
    by_sample: bool


def measure(runs: Sequence[StoredRun], asked: str | None) -> Measure:
    """Returns the score to compare `runs` of one task by: the one asked for, else the task's primary score.

    Raises ConfigError for a score that none of them has, naming those they have.
    """
    header = runs[0].header
    summaries = [run.header.summary for run in runs if run.header.summary is not None]
    if summaries:
        primary, higher = summaries[0].primary, summaries[0].higher_is_better
    else:  # nothing but runs that were killed
        info = task_info(header.config.task.name)
        primary, higher = info.primary, info.higher_is_better
    by_sample = {name for run in runs for record in run.samples for name in record.scores}
    derived = {name for summary in summaries for name in summary.derived}
    name = asked or primary
    if asked is not None and name not in by_sample | derived:
        raise ConfigError(unknown_name(f"score of task {header.config.task.name}", name, by_sample | derived))
    if name != primary:
        higher = not name.startswith(_LOWER_IS_BETTER)
    return Measure(name, higher, name in by_sample or name not in derived)


def counted_scores(records: Iterable[SampleRecord], what: Measure) -> list[tuple[SampleRecord, Score]]:
    """Returns the samples that count, with their scores.

    A failed sample counts as its record says (everything asked was missed). Where that says nothing it has missed
    as much as the average sample was asked; a score to keep low has no worst value, so there it does not count.
    A sample whose score could not be given does not count.
    """
    records = list(records)
    dens = [record.scores[what.name].den for record in records if what.name in record.scores]
    missed = Score(num=0, den=sum(dens) / len(dens) if dens else 1)
    found = []
    for record in records:
        if what.name in record.scores:
            found.append((record, record.scores[what.name]))
        elif record.status == "error" and what.higher_is_better:
            found.append((record, missed))
    return found


def make_arm(
    run: StoredRun,
    what: Measure,
    strata: Sequence[str],
    shown: Mapping[str, ParamValue],
    *,
    baseline: bool,
    alpha: float,
    resamples: int,
) -> Arm:
    """Returns the run's row, without anything that needs another run: differences and ratios come later."""
    header, records = run.header, run.samples
    config, summary = header.config, header.summary
    scored = counted_scores(records, what)
    return Arm(
        run_id=header.run_id,
        label=arm_label(header, shown),
        method=method_label(header),
        budget=config.budget,
        keep=config.keep,
        params=dict(header.method.params),
        shown_params=dict(shown),
        baseline=baseline,
        status=header.status,
        finished=header.finished_at is not None,
        finished_at=header.finished_at,
        command=header.sessions[-1].command if header.sessions else [],
        score=_derived(run, what) if not what.by_sample else _estimate(scored, alpha, resamples),
        by_stratum={
            name: _estimate([each for each in scored if each[0].stratum == name], alpha, resamples) for name in strata
        },
        other_scores=_others(run, what),
        accuracy=summary.accuracy if summary else None,
        accuracy_scored=summary.accuracy_scored if summary else None,
        counts=_counts(run),
        cost=_cost(run, baseline=baseline),
        repetition_rate=summary.repetition_rate if summary else None,
        notes=_notes(run, what),
    )


def _estimate(scored: Sequence[tuple[SampleRecord, Score]], alpha: float, resamples: int) -> Estimate:
    scores = [score for _, score in scored]
    between = stats.score_range(scores, [record.stratum for record, _ in scored], 1 - alpha, resamples)
    return Estimate(value=pooled(scores), low=between.low, high=between.high, n=sum(score.den != 0 for score in scores))


def _derived(run: StoredRun, what: Measure) -> Estimate:
    summary = run.header.summary
    return Estimate(value=summary.derived.get(what.name) if summary else None, n=len(run.samples))


def _others(run: StoredRun, what: Measure) -> dict[str, float | None]:
    records, summary = run.samples, run.header.summary
    names = sorted({name for record in records for name in record.scores})
    found = {name: pooled(record.scores[name] for record in records if name in record.scores) for name in names}
    found |= summary.derived if summary else {}
    return {name: value for name, value in found.items() if name != what.name}


def _counts(run: StoredRun) -> Counts:
    ok = [record for record in run.samples if record.status == "ok"]
    return Counts(
        n=len(run.samples),
        wanted=run.header.data.samples,
        ok=len(ok),
        error=len(run.samples) - len(ok),
        unscored=sum(bool(record.unscored) for record in ok),
        truncated=sum(record.truncated is True for record in run.samples),
        not_fired=sum(record.method_fired is False for record in ok) if run.header.method.evicts else None,
    )


def _cost(run: StoredRun, *, baseline: bool) -> ArmCost:
    records, summary = run.samples, run.header.summary
    return ArmCost(
        peak_cache_bytes=largest(r.peak_cache_bytes for r in records),
        peak_of_full=share_of_full(records, "peak_cache_bytes"),
        peak_total_bytes=largest(r.peak_total_bytes for r in records),
        end_cache_bytes=largest(r.end_cache_bytes for r in records),
        allocated_cache_bytes=largest(r.allocated_cache_bytes for r in records),
        full_cache_bytes=largest(r.full_cache_bytes for r in records),
        kept_tokens=mean(sum(r.kept_tokens) / len(r.kept_tokens) for r in records if r.kept_tokens),
        kept_fraction=mean(r.kept_fraction for r in records),
        early_share=mean(r.early_share for r in records),
        generated_tokens=mean(r.generated_tokens for r in records),
        batch=max(summary.batch_sizes, default=None) if summary else None,
        batch_equal=baseline,
        prefill_tokens_per_second=summary.prefill_tokens_per_second if summary else None,
        decode_tokens_per_second=summary.decode_tokens_per_second if summary else None,
        prefill_ratio=None,
        decode_ratio=None,
    )


def _notes(run: StoredRun, what: Measure) -> tuple[str, ...]:
    header, records = run.header, run.samples
    notes = []
    if header.finished_at is None:
        notes.append(f"unfinished ({header.status}): {len(records)} of {header.data.samples} samples")
    elif header.status == "error":
        notes.append(f"the run ended in error: {header.error}")
    ok = [record for record in records if record.status == "ok"]
    if header.method.evicts and ok and all(record.method_fired is False for record in ok):
        notes.append("nothing was evicted in any sample: this is the full cache's result; choose a smaller budget")
    lost = sum(record.status == "error" and what.name not in record.scores for record in records)
    if lost and not what.higher_is_better:
        notes.append(f"{lost} failed samples have no {what.name} and do not count")
    if header.identity.rescored_from:
        notes.append(f"answers of run {header.identity.rescored_from}, scored again")
    return tuple(notes)
