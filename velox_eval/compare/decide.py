"""From stored runs to a Comparison: which runs may be compared, what differs, and what these samples can tell."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

from velox_eval.compare import stats
from velox_eval.compare.comparison import Comparison, LeftOut
from velox_eval.compare.conditions import Group, arm_label, conditions, differing, group_runs, refusal
from velox_eval.compare.pairing import Rules
from velox_eval.compare.sections import is_baseline, left_out_run, make_section
from velox_eval.errors import ConfigError, StoreError
from velox_eval.records.store import StoredRun, find_run, load_run

DEFAULT_BASELINE = "full"
NO_BASELINE = "none"


def is_results_folder(path: str | Path) -> bool:
    """Returns whether `path` is a folder of runs, and not a run."""
    folder = Path(path)
    return folder.is_dir() and not (folder / "run.json").is_file() and any(folder.glob("*/run.json"))


def load_runs(paths: Sequence[str | Path], results: str | Path = "results") -> list[StoredRun]:
    """Returns the runs of `paths`, each once: run folders, run ids under `results`, or folders that hold runs.

    Raises StoreError for what is neither, and for a record that cannot be read, naming file, line and field.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        if is_results_folder(path):
            found = sorted(file.parent for file in Path(path).glob("*/run.json"))
        elif Path(path).is_dir() and not (Path(path) / "run.json").is_file():
            raise StoreError(
                f"{Path(path)} holds no run: no run.json is in it or in its folders; name a results folder"
            )
        else:
            found = [find_run(str(path), results)]
        for folder in found:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise StoreError("no run was given; name run folders, run ids or a results folder")
    return [load_run(folder) for folder in folders.values()]


def compare(
    runs: Sequence[StoredRun],
    baseline: str | None = DEFAULT_BASELINE,
    *,
    allow: Collection[str] = (),
    score: str | None = None,
    margin: float | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
    resamples: int = stats.RESAMPLES,
    split: bool = False,
    repeats: bool = False,
    unfinished: bool = False,
) -> Comparison:
    """Returns what the runs show against `baseline`: a method, an arm (`streaming_llm@128`), a run id; None: none.

    Runs of other tasks, models or seeds are sections of their own. Runs that differ in anything else that changes
    answers are refused (ConfigError names the condition and both values) unless `allow` names it; with `split` they
    are sections of their own too, and those without a baseline are left out. Of several runs of one arm the newest
    counts; with `repeats` all do, the oldest as the baseline. Runs that have not attempted all their samples are left
    out, or with `unfinished` taken on the samples they have. Runs that ended with failed samples count, marked.
    """
    _check(alpha, power, margin)
    rules = Rules(alpha, power, margin, resamples)
    wanted = None if baseline in (None, NO_BASELINE) else baseline
    left_out: list[LeftOut] = []
    usable = _usable(runs, left_out, unfinished=unfinished)
    groups = group_runs(usable, allow, split=split)
    kept = _with_baseline(groups, wanted, left_out, split=split)
    sections = [make_section(group, wanted, score, rules, left_out, repeats=repeats) for group in kept]
    return Comparison(
        baseline=wanted,
        alpha=alpha,
        power=power,
        margin=margin,
        resamples=resamples,
        allowed=tuple(sorted(allow)),
        rules=_rules(rules),
        sections=sections,
        left_out=left_out,
    )


def _check(alpha: float, power: float, margin: float | None) -> None:
    if not 0 < alpha < 0.5:
        raise ConfigError(f"alpha={alpha:g} must be above 0 and below 0.5")
    if not 0.5 <= power < 1:
        raise ConfigError(f"power={power:g} must be from 0.5 to below 1")
    if margin is not None and not 0 < margin < math.inf:
        raise ConfigError(f"margin={margin:g} must be above 0, in units of the score")


def _usable(runs: Sequence[StoredRun], left_out: list[LeftOut], *, unfinished: bool) -> list[StoredRun]:
    usable = []
    for run in runs:
        header = run.header
        if header.finished_at is None and not (unfinished and run.samples):
            why = f"unfinished ({header.status}): {len(run.samples)} of {header.data.samples} samples"
            left_out.append(left_out_run(run, f"{why}; the same command resumes it"))
        else:
            usable.append(run)
    if not usable:
        listed = "; ".join(f"{each.run_id} {each.reason}" for each in left_out)
        raise ConfigError(f"no run to compare ({listed}); --unfinished takes them as they are")
    return usable


def _with_baseline(groups: Sequence[Group], wanted: str | None, left_out: list[LeftOut], *, split: bool) -> list[Group]:
    """The groups that have the baseline. Others are refused, or with `split` left out with the reason."""
    if wanted is None:
        return list(groups)
    bases = [next((run for run in group.runs if is_baseline(run, wanted)), None) for group in groups]
    if not any(bases):
        known = sorted({arm_label(run.header) for group in groups for run in group.runs})
        raise ConfigError(
            f"no run of the baseline {wanted!r}; run it, or choose --baseline from {', '.join(known)}, or none"
        )
    kept = [group for group, base in zip(groups, bases, strict=True) if base]
    refused = [group.runs[0] for group, base in zip(groups, bases, strict=True) if not base]
    found = [base for base in bases if base]
    compared = any(len(group.runs) > 1 for group in kept)
    if refused and not (split and compared):
        raise ConfigError(_no_baseline(refused[0], found, wanted))
    for group, base in zip(groups, bases, strict=True):
        if base is None:
            left_out += [left_out_run(run, _no_baseline(run, found, wanted)) for run in group.runs]
        elif split and compared and len(group.runs) == 1:
            left_out.append(left_out_run(group.runs[0], "no other run under the same conditions"))
    return [group for group in kept if len(group.runs) > 1 or not (split and compared)]


def _no_baseline(run: StoredRun, bases: Sequence[StoredRun], wanted: str) -> str:
    """Why no baseline serves `run`: what differs from the one that is nearest."""
    its = conditions(run.header)
    nearest = min(bases, key=lambda base: len(differing(its, conditions(base.header))))
    different = differing(conditions(nearest.header), its)
    return f"no run of {wanted} under the same conditions: {refusal(nearest, run, different)}"


def _rules(rules: Rules) -> tuple[str, ...]:
    stated = [
        "Scores are ratios of sums over samples. Samples are paired and resampled, never the checks within one.",
        f"Intervals: {1 - rules.alpha:.0%}, bootstrap within types of samples, corrected for few; none without spread.",
        "p: permutation test that swaps both methods within pairs, after Holm over the methods of one budget; level "
        f"{rules.alpha:g}. What would show: at a power of {rules.power:.0%}.",
        "A failed sample has missed all it was asked; one without a score on one side is left out on both.",
        "Same answers: byte-identical in every pair; if their scores differ, that is the judge's own noise.",
        "Repeats: share of repeated word 4-grams, both answers cut to the shorter, and the difference. Speeds: at the "
        "baseline's batch only.",
    ]
    if rules.margin is not None:
        stated.append(
            f"Not worse: the same test, one-sided at {rules.alpha / 2:g}, excludes a loss of {rules.margin:g} or more."
        )
    return tuple(stated)
