"""An arm beside its baseline: samples in pairs, the difference with its rules, the verdict, repetition, speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velox_eval.compare import stats
from velox_eval.compare.arms import Measure, counted_scores
from velox_eval.compare.comparison import Arm, Difference, EqualLength, Estimate, Verdict
from velox_eval.metrics.repetition import rates_at_equal_length
from velox_eval.records.schema import SampleRecord
from velox_eval.records.score import Score, pooled
from velox_eval.records.store import StoredRun


@dataclass(frozen=True)
class Rules:
    """How differences are tested."""

    alpha: float
    power: float
    margin: float | None
    resamples: int


@dataclass(frozen=True)
class Outcome:
    """An arm's difference before Holm has seen its family."""

    against: str
    value: float | None
    between: stats.Range
    p: float | None
    p_margin: float | None
    smallest: float  # the smallest p that these samples could have given
    pairs: stats.Pairs
    paired: bool
    dropped: int
    lost: int  # failed samples that could not count as missed
    identical: int
    identical_other_score: int
    by_sample: bool = True

    @property
    def n(self) -> int:
        """Samples that carry the test: pairs, or those of the smaller side."""
        if self.paired:
            return len(self.pairs)
        return min(sum(score.den != 0 for score in side) for side in (self.pairs.first, self.pairs.second))


def outcome(run: StoredRun, baseline: StoredRun, against: str, what: Measure, rules: Rules) -> Outcome:
    """Returns the difference of `run` and `baseline` with its p values, before any correction."""
    theirs = {record.sample_id: record for record in baseline.samples}
    common = [(record, theirs[record.sample_id]) for record in run.samples if record.sample_id in theirs]
    if not common and run.samples and baseline.samples:
        return _unpaired(run, baseline, against, what, rules)
    ours, base = (
        {record.sample_id: score for record, score in counted_scores(side.samples, what)} for side in (run, baseline)
    )
    scored = [pair for pair in common if pair[0].sample_id in ours and pair[0].sample_id in base]
    both = [(_missed_like(pair, ours, base, what), pair) for pair in scored]
    both = [(scores, pair) for scores, pair in both if any(score.den for score in scores)]
    pairs = stats.Pairs(
        tuple(scores[0] for scores, _ in both),
        tuple(scores[1] for scores, _ in both),
        tuple(first.stratum for _, (first, _) in both),
    )
    same = [(scores, pair) for scores, pair in both if same_answer(*pair)]
    everyone = {record.sample_id for record in (*run.samples, *baseline.samples)}
    return Outcome(
        against=against,
        value=pairs.difference,
        between=stats.difference_range(pairs, 1 - rules.alpha, rules.resamples),
        p=stats.swap_p(pairs, resamples=rules.resamples),
        p_margin=_margin_p(pairs, what, rules),
        smallest=stats.smallest_p(len(pairs)),
        pairs=pairs,
        paired=True,
        dropped=len(everyone) - len(pairs),
        lost=sum(_lost(first, what) for first, _ in common) + sum(_lost(second, what) for _, second in common),
        identical=len(same),
        identical_other_score=sum(scores[0] != scores[1] for scores, _ in same),
        by_sample=what.by_sample,
    )


def _missed_like(
    pair: tuple[SampleRecord, SampleRecord], ours: dict[str, Score], base: dict[str, Score], what: Measure
) -> tuple[Score, Score]:
    """Both scores; a failed side that does not say what it was asked has missed what the other side was asked."""
    first, second = ours[pair[0].sample_id], base[pair[1].sample_id]
    if what.name not in pair[0].scores and what.name in pair[1].scores:
        first = Score(num=0, den=second.den)
    elif what.name in pair[0].scores and what.name not in pair[1].scores:
        second = Score(num=0, den=first.den)
    return first, second


def _lost(record: SampleRecord, what: Measure) -> bool:
    return record.status == "error" and what.name not in record.scores and not what.higher_is_better


def same_answer(first: SampleRecord, second: SampleRecord) -> bool:
    """Returns whether both answered and the answers are the same, byte for byte (or number for number)."""
    return first.answer is not None and first.answer == second.answer


def _margin_p(pairs: stats.Pairs, what: Measure, rules: Rules) -> float | None:
    """p of "worse by the margin or more"; the sides change places where lower is better."""
    if rules.margin is None:
        return None
    if not what.higher_is_better:
        pairs = stats.Pairs(pairs.second, pairs.first, pairs.strata)
    return stats.swap_p(pairs, margin=rules.margin, resamples=rules.resamples)


def _unpaired(run: StoredRun, baseline: StoredRun, against: str, what: Measure, rules: Rules) -> Outcome:
    """Runs without a sample in common: all samples dealt out anew, no pairs, no strata, no margin."""
    first = [score for _, score in counted_scores(run.samples, what)]
    second = [score for _, score in counted_scores(baseline.samples, what)]
    ours, theirs = pooled(first), pooled(second)
    pairs = stats.two_sides(first, second)
    smallest = stats.smallest_unpaired_p(len(first), len(second))
    return Outcome(
        against=against,
        value=None if ours is None or theirs is None else ours - theirs,
        between=stats.difference_range(pairs, 1 - rules.alpha, rules.resamples),
        p=stats.unpaired_p(first, second, rules.resamples),
        p_margin=None,
        smallest=smallest,
        pairs=pairs,
        paired=False,
        dropped=len(run.samples) + len(baseline.samples) - len(first) - len(second),
        lost=sum(_lost(record, what) for record in (*run.samples, *baseline.samples)),
        identical=0,
        identical_other_score=0,
        by_sample=what.by_sample,
    )


def judge_family(family: Sequence[Outcome], what: Measure, rules: Rules) -> list[Difference]:
    """Returns the differences of the arms that Holm's correction covers together, with their verdicts."""
    adjusted = stats.holm([1.0 if each.p is None else each.p for each in family])
    attainable = stats.holm([each.smallest for each in family])
    margins = stats.holm([1.0 if each.p_margin is None else each.p_margin for each in family])
    found = []
    for each, p, best, p_margin in zip(family, adjusted, attainable, margins, strict=True):
        within = each.p_margin is not None and p_margin <= rules.alpha / 2
        needed = stats.needed_pairs(len(family), rules.alpha) if best > rules.alpha else None
        verdict, reason = _verdict(each, p, needed, within, what, rules)
        found.append(
            Difference(
                against=each.against,
                value=each.value,
                low=each.between.low,
                high=each.between.high,
                p=each.p,
                p_adjusted=None if each.p is None else p,
                p_margin=None if each.p_margin is None else p_margin,
                family=len(family),
                paired=each.paired,
                n_pairs=each.n,
                n_dropped=each.dropped,
                n_identical=each.identical,
                n_identical_other_score=each.identical_other_score,
                detectable=stats.detectable(each.pairs, rules.alpha / len(family), rules.power),
                needed_pairs=needed,
                verdict=verdict,
                within_margin=within,
                reason=reason,
            )
        )
    return found


def _verdict(
    each: Outcome, p: float, needed: int | None, within: bool, what: Measure, rules: Rules
) -> tuple[Verdict, str]:
    if not each.by_sample:
        return "not_compared", f"{what.name} is computed over all samples; compare another score with --score"
    if each.value is None or each.p is None:
        return "cannot_decide", "no sample is scored on both sides"
    if each.paired and each.identical == len(each.pairs):
        if not each.identical_other_score:
            return "same_answers", ""
        return "judge_noise", f"{each.identical_other_score} of {each.identical} same answers got another score"
    if needed is not None:
        return "cannot_decide", f"{each.n} samples are too few for any verdict: {needed} or more are needed"
    gained = each.value > 0 if what.higher_is_better else each.value < 0
    if p <= rules.alpha and not gained:
        return "worse", "but by less than the margin" if within else ""
    if each.lost:
        return "cannot_decide", f"{each.lost} failed samples have no {what.name} and could not count as missed"
    if p <= rules.alpha:
        return "better", ""
    return ("not_worse", "") if within else ("no_difference", "")


def repetition_at_equal_length(run: StoredRun, baseline: StoredRun, rules: Rules) -> EqualLength | None:
    """Returns the mean repetition of both over the pairs with enough words; None where no pair has them."""
    theirs = {record.sample_id: record for record in baseline.samples}
    found, strata = [], []
    for record in run.samples:
        other = theirs.get(record.sample_id)
        if record.response is None or other is None or other.response is None:
            continue
        rates = rates_at_equal_length(record.response, other.response)
        if rates is not None:
            found.append(rates)
            strata.append(record.stratum)
    if not found:
        return None
    pairs = stats.Pairs(
        tuple(Score(num=rates.first) for rates in found),
        tuple(Score(num=rates.second) for rates in found),
        tuple(strata),
    )
    between = stats.difference_range(pairs, 1 - rules.alpha, rules.resamples)
    ours, base = (sum(score.num for score in side) / len(found) for side in (pairs.first, pairs.second))
    return EqualLength(
        value=ours,
        baseline=base,
        difference=Estimate(value=ours - base, low=between.low, high=between.high, n=len(found)),
        words=sum(rates.words for rates in found) / len(found),
    )


def with_speed_ratios(arm: Arm, baseline: Arm) -> Arm:
    """Returns the arm with its speeds over the baseline's, where both decoded at the same batch."""
    ours, theirs = arm.cost, baseline.cost
    equal = ours.batch is not None and ours.batch == theirs.batch

    def ratio(name: str) -> float | None:
        mine, base = getattr(ours, name), getattr(theirs, name)
        return mine / base if equal and mine is not None and base else None

    cost = ours.model_copy(
        update={
            "batch_equal": equal,
            "prefill_ratio": ratio("prefill_tokens_per_second"),
            "decode_ratio": ratio("decode_tokens_per_second"),
        }
    )
    return arm.model_copy(update={"cost": cost})
