"""What a comparison found: plain data, JSON-able, no NaN. Tables, plots and pages are made of this.

Comparison
└── sections: runs that may be compared (one task, model, seed, ...)
    ├── arms: one method at one budget with one set of parameters; the baseline comes first
    │   ├── score, by_stratum, counts, cost
    │   ├── difference: paired with the baseline, with its verdict (None for the baseline)
    │   └── repetition: at equal length with the baseline
    └── equal_memory: speeds of arms that ran under one memory limit
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from velox_eval.records.config import Frozen, ParamValue
from velox_eval.records.schema import RunStatus

COMPARISON_VERSION = 1

Verdict = Literal[
    "better", "worse", "not_worse", "no_difference", "cannot_decide", "same_answers", "judge_noise", "not_compared"
]

VERDICTS: dict[Verdict, str] = {
    "better": "better",
    "worse": "worse",
    "not_worse": "not worse than the margin",
    "no_difference": "no difference shown",
    "cannot_decide": "cannot decide",
    "same_answers": "no difference: same answers",
    "judge_noise": "same answers: judge noise",
    "not_compared": "not compared",
}


class Estimate(Frozen):
    """A number with its interval (bootstrap over samples); null where the samples cannot give one."""

    value: float | None = Field(description="The estimate; null when nothing was scored.")
    low: float | None = Field(default=None, description="Lower end of the interval; null without any spread.")
    high: float | None = Field(default=None, description="Upper end of the interval.")
    n: int = Field(default=0, ge=0, description="Samples (or pairs) it is from.")


class Difference(Frozen):
    """An arm's score less the baseline's, on the samples both have."""

    against: str = Field(description="Label of the baseline's arm.")
    value: float | None = Field(description="Arm - baseline, in units of the score.")
    low: float | None = Field(default=None, description="Lower end of its bootstrap interval.")
    high: float | None = Field(default=None, description="Upper end.")
    p: float | None = Field(default=None, description="Permutation p, two-sided: the two swapped within pairs.")
    p_adjusted: float | None = Field(default=None, description="The same after Holm over the family.")
    p_margin: float | None = Field(
        default=None, description="One-sided p of being worse by the margin or more, after Holm; null without a margin."
    )
    family: int = Field(default=1, ge=1, description="Arms that Holm's correction covers: those of this budget.")
    paired: bool = Field(default=True, description="Whether samples were paired; false: the two have none in common.")
    n_pairs: int = Field(ge=0, description="Samples that count on both sides (unpaired: of the smaller side).")
    n_dropped: int = Field(default=0, ge=0, description="Samples of either side without a partner or without a score.")
    n_identical: int = Field(default=0, ge=0, description="Pairs with byte-identical answers.")
    n_identical_other_score: int = Field(
        default=0, ge=0, description="Of these, pairs whose scores differ: the judge's own noise."
    )
    detectable: float | None = Field(
        default=None,
        description="Smallest true difference this n would show at the stated power; null without spread.",
    )
    needed_pairs: int | None = Field(
        default=None, description="Pairs from which on any verdict is possible in this family; null when reached."
    )
    verdict: Verdict = Field(description="What the test supports.")
    within_margin: bool = Field(default=False, description="Whether it is shown to be less than the margin worse.")
    reason: str = Field(default="", description="Why the verdict is what it is, where that is not plain.")


class EqualLength(Frozen):
    """Repetition (word 4-grams) of arm and baseline, both answers of a pair cut to the words of the shorter."""

    value: float = Field(description="The arm's mean rate.")
    baseline: float = Field(description="The baseline's mean rate on the same pairs.")
    difference: Estimate = Field(description="Arm - baseline.")
    words: float = Field(description="Mean words compared a pair.")


class Counts(Frozen):
    """How many samples went which way."""

    n: int = Field(ge=0, description="Samples attempted.")
    wanted: int = Field(ge=0, description="Samples of the run's task.")
    ok: int = Field(ge=0, description="Answered and scored.")
    error: int = Field(ge=0, description="Failed; they count as missed.")
    unscored: int = Field(ge=0, description="Answered, with at least one score that could not be given.")
    truncated: int = Field(ge=0, description="Ended by a limit.")
    not_fired: int | None = Field(description="Answered with nothing evicted; null: the method never evicts.")


class ArmCost(Frozen):
    """What an arm held and how fast it was. Bytes and rows are measured."""

    peak_cache_bytes: int | None = Field(description="Key and value bytes at the largest, over samples.")
    peak_of_full: float | None = Field(
        description="Sum of peaks / sum of what the full cache would hold, over samples; rows held over rows held."
    )
    peak_total_bytes: int | None = Field(description="peak_cache_bytes with the method's own arrays.")
    end_cache_bytes: int | None = Field(description="Rows held after the last step, largest over samples.")
    allocated_cache_bytes: int | None = Field(description="The buffers' capacity at the largest, over samples.")
    full_cache_bytes: int | None = Field(description="What the full cache would hold at the end, largest.")
    kept_tokens: float | None = Field(description="Rows a layer holds at the end, mean over layers and samples.")
    kept_fraction: float | None = Field(description="Rows held at the end / tokens seen, mean over samples.")
    early_share: float | None = Field(description="Share of kept rows from the first tenth, mean over samples.")
    generated_tokens: float | None = Field(description="Tokens an answer has, mean.")
    batch: int | None = Field(description="Most sequences that decoded together.")
    batch_equal: bool = Field(description="Whether that is the baseline's; speeds compare only then.")
    prefill_tokens_per_second: float | None = Field(description="Prompt tokens / seconds of prefill.")
    decode_tokens_per_second: float | None = Field(description="Tokens decoded / seconds in which any was.")
    prefill_ratio: float | None = Field(description="Prefill speed over the baseline's; null at another batch.")
    decode_ratio: float | None = Field(description="Decode speed over the baseline's; null at another batch.")


class Arm(Frozen):
    """One row: a method at a budget with its parameters, from one run."""

    run_id: str = Field(description="The run.")
    label: str = Field(description="Unique in its section: method, budget, and what else tells it from others.")
    method: str = Field(description="name[:variant], as typed.")
    budget: int | None = Field(description="Rows per layer and KV head; null with keep or without bound.")
    keep: float | None = Field(description="Share kept; null with budget.")
    params: dict[str, ParamValue] = Field(description="Every parameter of the method.")
    shown_params: dict[str, ParamValue] = Field(description="Those in which arms of the same method and budget differ.")
    baseline: bool = Field(description="Whether others are compared with it.")
    status: RunStatus = Field(description="Status of the run.")
    finished: bool = Field(description="Whether all samples were attempted.")
    finished_at: datetime | None = Field(description="UTC.")
    command: list[str] = Field(description="The command line of the run's last session.")
    score: Estimate = Field(description="The compared score over all samples; failed ones missed what they asked.")
    by_stratum: dict[str, Estimate] = Field(description="The same by type of sample; null with n 0: none of it here.")
    other_scores: dict[str, float | None] = Field(
        description="Every other score, pooled, and those computed from them."
    )
    accuracy: float | None = Field(description="The task's accuracy over all attempted.")
    accuracy_scored: float | None = Field(description="The same over those that were scored.")
    counts: Counts = Field(description="Samples.")
    cost: ArmCost = Field(description="Bytes, rows, speeds.")
    repetition_rate: float | None = Field(description="Mean over answers as they are, of whatever length.")
    repetition: EqualLength | None = Field(default=None, description="Against the baseline; null where no text was.")
    difference: Difference | None = Field(default=None, description="Against the baseline; null for it.")
    notes: tuple[str, ...] = Field(default=(), description="What a reader of this row should know.")


class MemoryRow(Frozen):
    """Speed of one arm under a memory limit that others ran under too."""

    memory_limit: int = Field(ge=1, description="Bytes the caches of one batch may hold.")
    label: str = Field(description="The arm's label.")
    run_id: str = Field(description="The run.")
    batch: int | None = Field(description="Most sequences that decoded together.")
    decode_tokens_per_second: float | None = Field(description="All sequences together.")
    prefill_tokens_per_second: float | None = Field(description="Prompt tokens / seconds of prefill.")
    decode_ratio: float | None = Field(description="Over the baseline's under the same limit; null without one.")


class Section(Frozen):
    """Arms that may be compared: everything in `conditions` is the same for all of them."""

    title: str = Field(description="Task, data, model and seed in words.")
    task: str = Field(description="Task.")
    model: str = Field(description="Model, as asked.")
    seed: int | None = Field(description="Seed; null: nothing was drawn.")
    conditions: dict[str, str] = Field(description="What had to be equal, by name.")
    mixed: dict[str, list[str]] = Field(description="Conditions that differ and were allowed to, with their values.")
    score: str = Field(description="Name of the compared score.")
    higher_is_better: bool = Field(description="Whether more of it is better.")
    baseline: str | None = Field(description="The baseline, as asked; null: only rows, no differences.")
    notes: tuple[str, ...] = Field(default=(), description="What holds for every row.")
    arms: list[Arm] = Field(description="The baseline first, then by budget, method and parameters.")
    equal_memory: list[MemoryRow] = Field(description="Only where two arms ran under one memory limit.")


class LeftOut(Frozen):
    """A run that was given and is in no section."""

    run_id: str = Field(description="The run.")
    label: str = Field(description="Method and budget.")
    reason: str = Field(description="Why.")


class Comparison(Frozen):
    """What was compared, by which rules, and what came of it."""

    schema_version: int = Field(default=COMPARISON_VERSION, description="Version of this document.")
    baseline: str | None = Field(description="As asked.")
    alpha: float = Field(description="Level of the tests; intervals are at 1 - alpha.")
    power: float = Field(description="Power that `detectable` is stated at.")
    margin: float | None = Field(description="Loss that counts as none, in units of the score.")
    resamples: int = Field(description="Bootstrap samples; permutations where not all can be listed.")
    allowed: tuple[str, ...] = Field(description="Conditions that were allowed to differ.")
    rules: tuple[str, ...] = Field(description="How the numbers were made, one sentence each.")
    sections: list[Section] = Field(description="One table each.")
    left_out: list[LeftOut] = Field(description="Runs that are in no table, with the reason.")

    def arms(self) -> list[Arm]:
        """Returns the arms of all sections."""
        return [arm for section in self.sections for arm in section.arms]
