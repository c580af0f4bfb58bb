"""A suite run anew and held against its stored baseline: does every method keep what it kept, at the same cost?

A night is red when the statistics support that something got worse:
score   of a run, lower on the same samples: permutation test within pairs (velox_eval.compare.stats), Holm over the
        runs of one model, task and budget. Fidelity needs no judge and tells methods apart with few samples.
failed  samples that the baseline's night answered and this one did not.
bytes   of caches, counted and not timed: any growth on samples that saw as many tokens.
speed   decode steps as a ratio to the full cache of the same night, timed in turns: slower by more than the tolerance
        and three times what both nights' own repeats scatter.
Answers that changed are counted and shown; alone they are no regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from velox_eval.compare import stats
from velox_eval.errors import ConfigError
from velox_eval.pipelines.baseline import (
    Night,
    NightRun,
    check_comparable,
    check_suite,
    night_of,
    read_night,
    write_night,
)
from velox_eval.pipelines.matrix import SweepPlan, plan_sweep
from velox_eval.pipelines.step_ratio import REPEATS, step_ratios
from velox_eval.pipelines.suite import Suite
from velox_eval.pipelines.sweep import KeptModel, SweepObserver, SweepResult, sweep
from velox_eval.records.output import why_not_into
from velox_eval.runs.plan import DEFAULT_RESULTS

ALPHA = 0.05
SPEED_TOLERANCE = 0.20
BYTES_TOLERANCE = 0.001  # of a sum of counted bytes: rounding of shares, no noise
_SCATTER = 3.0  # standard errors of both medians


@dataclass(frozen=True)
class Line:
    """One run tonight beside the baseline's."""

    label: str
    run: NightRun
    before: NightRun
    n_pairs: int
    difference: float | None  # of the score, tonight - baseline; None: nothing scored on both sides
    p: float | None  # after Holm; None: no pair differs, or nothing scored
    family: int  # runs that Holm's correction covers
    changed: int  # answers that are not the baseline's
    failed: int  # samples that failed tonight and not then
    n_bytes: int  # samples that saw as many tokens in both nights
    bytes: int
    bytes_before: int
    speed: float | None  # full cache's step over this one's, median of the repeats
    speed_before: float | None
    speed_tolerance: float  # what a fall has to exceed, as a fraction
    regressions: tuple[str, ...] = ()  # score, failed, bytes, speed
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NightlyResult:
    """A night: what was found, and how it stands beside the baseline (no lines when there was none)."""

    plan: SweepPlan
    sweep: SweepResult
    night: Night
    baseline: Night | None
    lines: tuple[Line, ...]
    updated: bool  # whether this night is the baseline now
    speed_tolerance: float

    @property
    def regressions(self) -> list[Line]:
        """Lines on which something got worse."""
        return [line for line in self.lines if line.regressions]


def nightly(
    suite: Suite,
    baseline: Path,
    *,
    results: Path = DEFAULT_RESULTS,
    update: bool = False,
    alpha: float = ALPHA,
    speed_tolerance: float = SPEED_TOLERANCE,
    repeats: int = REPEATS,
    observer: SweepObserver | None = None,
) -> NightlyResult | SweepResult:
    """Runs the suite anew, times its steps, and holds the night against the file `baseline`.

    With `update` the night becomes the baseline, whatever it shows; a baseline of another suite is then no hindrance.
    Returns the SweepResult alone when Ctrl-C ended it. Raises ConfigError when a run could not be made, when there is
    no baseline, or when it is of another suite, data, task version, model or device, naming which.
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha={alpha:g} must be between 0 and 1")
    if not 0 < speed_tolerance < 1:
        raise ConfigError(f"speed_tolerance={speed_tolerance:g} must be between 0 and 1")
    if repeats < 1:
        raise ConfigError(f"repeats={repeats} must be at least 1")
    observer, kept = observer or SweepObserver(), KeptModel()
    plan = plan_sweep(suite, results=results, again=True)
    before = _baseline(baseline, plan, update)
    if update and (why := why_not_into(baseline.parent)):
        raise ConfigError(f"cannot write {baseline}: {why}")
    swept = sweep(plan, observer, load=kept.load)
    if swept.interrupted:
        return swept
    broken = [run for run in swept.runs if run.header is None]
    if broken:
        raise ConfigError(
            f"{len(broken)} of {len(plan.runs)} runs could not be made: "
            + "; ".join(f"{run.planned.label}: {run.error}" for run in broken)
        )
    night = night_of(plan, swept.runs, step_ratios(plan, kept.load, observer.note, repeats=repeats))
    if before is not None and update:
        try:
            check_comparable(baseline, before, night)
        except ConfigError as error:
            observer.note(f"not compared with the old baseline: {error}")
            before = None
    elif before is not None:
        check_comparable(baseline, before, night)
    lines = judge(night, before, alpha=alpha, speed_tolerance=speed_tolerance) if before is not None else ()
    if update:
        write_night(baseline, night)
    return NightlyResult(plan, swept, night, before, tuple(lines), update, speed_tolerance)


def _baseline(path: Path, plan: SweepPlan, update: bool) -> Night | None:
    """The stored night, refused before anything runs where it cannot be compared; None where it is to be replaced."""
    if update and not path.exists():
        return None
    found = read_night(path)
    if update and (found.suite, found.suite_sha256) != (plan.suite.name, plan.suite.sha256):
        return None
    check_suite(path, found, plan)
    return found


def judge(
    night: Night, baseline: Night, *, alpha: float = ALPHA, speed_tolerance: float = SPEED_TOLERANCE
) -> list[Line]:
    """Returns a line for every run, in the suite's order; both nights have the same runs."""
    lines = [_line(label, run, baseline.runs[label], speed_tolerance) for label, run in night.runs.items()]
    families: dict[tuple[str, str, int, int | None, float | None], list[int]] = {}
    for index, line in enumerate(lines):
        run = line.run
        families.setdefault((run.model, run.task, run.seed, run.budget, run.keep), []).append(index)
    for members in families.values():
        tested = [index for index in members if lines[index].p is not None]
        adjusted = stats.holm([lines[index].p or 0.0 for index in tested])
        for index in members:
            p = dict(zip(tested, adjusted, strict=True)).get(index)
            lines[index] = _decided(replace(lines[index], p=p, family=len(members)), alpha)
    return lines


def _line(label: str, run: NightRun, before: NightRun, speed_tolerance: float) -> Line:
    """Everything but the decision on the score; `p` is not adjusted yet."""
    names = list(run.samples)
    both = [(run.samples[name], before.samples[name]) for name in names if name in before.samples]
    scored = [(now, old) for now, old in both if now.score is not None and old.score is not None]
    pairs = stats.Pairs(
        first=tuple(now.score for now, _ in scored if now.score is not None),
        second=tuple(old.score for _, old in scored if old.score is not None),
        strata=tuple(now.stratum for now, _ in scored),
    )
    alike = [(now, old) for now, old in both if now.full_bytes is not None and now.full_bytes == old.full_bytes]
    speed, error = _median(run.full_over)
    speed_before, error_before = _median(before.full_over)
    return Line(
        label=label,
        run=run,
        before=before,
        n_pairs=len(pairs),
        difference=pairs.difference,
        p=stats.swap_p(pairs) if any(now.score != old.score for now, old in scored) else None,
        family=1,
        changed=sum(now.answer != old.answer for now, old in both),
        failed=sum(not now.ok and old.ok for now, old in both),
        n_bytes=len(alike),
        bytes=sum(now.peak_bytes or 0 for now, _ in alike),
        bytes_before=sum(old.peak_bytes or 0 for _, old in alike),
        speed=speed,
        speed_before=speed_before,
        speed_tolerance=max(speed_tolerance, _SCATTER * math.hypot(error, error_before)),
    )


def _median(ratios: Sequence[float]) -> tuple[float | None, float]:
    """The median and its standard error as a fraction of it, from the median distance (1.858 = 1.4826 x 1.2533)."""
    if not ratios:
        return None, 0.0
    middle = median(ratios)
    distance = median([abs(ratio - middle) for ratio in ratios])
    return middle, 1.858 * distance / math.sqrt(len(ratios)) / middle


def _decided(line: Line, alpha: float) -> Line:
    worse: list[str] = []
    notes: list[str] = []
    if line.difference is not None and line.p is not None and line.p <= alpha:
        lower = line.difference < 0
        if lower == line.run.higher_is_better:
            worse.append("score")
        else:
            notes.append("score better")
    elif line.p is not None and line.n_pairs < stats.needed_pairs(line.family, alpha):
        needed = stats.needed_pairs(line.family, alpha)
        notes.append(f"{line.n_pairs} pairs cannot decide on the score: {needed} are needed")
    if line.failed:
        worse.append("failed")
    if line.bytes > line.bytes_before * (1 + BYTES_TOLERANCE):
        worse.append("bytes")
    elif line.bytes < line.bytes_before * (1 - BYTES_TOLERANCE):
        notes.append("fewer bytes")
    if not line.n_bytes and line.changed:
        notes.append("bytes not compared: no answer is as long as the baseline's")
    if line.speed is not None and line.speed_before is not None:
        if line.speed < line.speed_before * (1 - line.speed_tolerance):
            worse.append("speed")
        elif line.speed > line.speed_before * (1 + line.speed_tolerance):
            notes.append("faster")
    elif line.speed_before is not None:
        notes.append("speed not timed tonight")
    return replace(line, regressions=tuple(worse), notes=tuple(notes))
