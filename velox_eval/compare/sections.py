"""One table: the arms of a group of runs, each beside its baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from velox_eval.compare.arms import Measure, make_arm, measure
from velox_eval.compare.comparison import Arm, LeftOut, MemoryRow, Section
from velox_eval.compare.conditions import (
    Group,
    arm_key,
    arm_label,
    conditions,
    describe,
    method_label,
    newest_first,
    settings,
)
from velox_eval.compare.pairing import (
    Rules,
    judge_family,
    outcome,
    repetition_at_equal_length,
    with_speed_ratios,
)
from velox_eval.errors import ConfigError
from velox_eval.records.config import ParamValue
from velox_eval.records.store import StoredRun

FOREIGN = "responses/"  # begins the method of a run that scored a file of answers


def left_out_run(run: StoredRun, reason: str) -> LeftOut:
    """Returns the run as one that is in no table."""
    return LeftOut(run_id=run.header.run_id, label=arm_label(run.header), reason=reason)


def is_baseline(run: StoredRun, wanted: str) -> bool:
    """Returns whether `wanted` names the run: by its method (of foreign answers by their name), its arm or its id."""
    method, arm = method_label(run.header), arm_label(run.header)
    return wanted.removesuffix(":adapted") in (method, method.removeprefix(FOREIGN), arm) or wanted == run.header.run_id


def make_section(
    group: Group,
    wanted: str | None,
    score: str | None,
    rules: Rules,
    left_out: list[LeftOut],
    *,
    repeats: bool,
) -> Section:
    """Returns the table of a group; with `repeats` of all its runs, else of the newest of every arm."""
    what = measure(group.runs, score)
    runs = list(reversed(newest_first(group.runs))) if repeats else _newest(group, left_out)
    bases = [run for run in runs if wanted is not None and is_baseline(run, wanted)]
    if repeats:  # of one arm's runs the oldest is what the others are compared with
        first = {arm_key(run.header): run for run in reversed(bases)}
        bases = [run for run in bases if first[arm_key(run.header)] is run]
    shown = _shown(group, runs)
    strata = list(dict.fromkeys(record.stratum for run in runs for record in run.samples))
    arms = {
        run.header.run_id: make_arm(
            run,
            what,
            strata,
            shown[run.header.run_id],
            baseline=run in bases,
            alpha=rules.alpha,
            resamples=rules.resamples,
        )
        for run in runs
    }
    arms = _compared(runs, bases, arms, what, rules)
    header = runs[0].header
    seed = group.shared["seed"].key if "seed" in group.shared else "-"
    return Section(
        title=_title(group),
        task=header.config.task.name,
        model=header.config.model,
        seed=int(seed) if seed.isdecimal() else None,
        conditions={name: each.shown for name, each in group.shared.items()},
        mixed=dict(group.mixed),
        score=what.name,
        higher_is_better=what.higher_is_better,
        baseline=wanted,
        notes=(f"not the whole task: {header.data.incomplete}",) if header.data.incomplete else (),
        arms=sorted(arms.values(), key=_order),
        equal_memory=_equal_memory(group, arms, bases),
    )


def _newest(group: Group, left_out: list[LeftOut]) -> list[StoredRun]:
    """The newest run of every arm; runs under other (allowed) conditions are other arms."""
    found: dict[tuple[str, ...], StoredRun] = {}
    for run in newest_first(group.runs):
        its = conditions(run.header)
        key = (arm_key(run.header), *(its[name].key for name in group.mixed))
        if key in found:
            left_out.append(left_out_run(run, f"run {found[key].header.run_id} of the same arm is newer"))
        else:
            found[key] = run
    return list(reversed(found.values()))


def _shown(group: Group, runs: Sequence[StoredRun]) -> dict[str, dict[str, ParamValue]]:
    """What an arm's label must say besides method and budget, by run id, so that every label is unique."""
    known: dict[str, dict[str, ParamValue]] = {}
    for run in runs:
        its = conditions(run.header)
        plain = {name: "-" if value is None else value for name, value in settings(run.header).items()}
        known[run.header.run_id] = {**plain, **{name: its[name].shown for name in group.mixed}}
    shown: dict[str, dict[str, ParamValue]] = {}
    for members in _alike(runs, known, ()).values():
        every = [known[run.header.run_id] for run in members]
        names = [name for name in every[0] if len({each.get(name) for each in every}) > 1]
        for same in _alike(members, known, names).values():
            for run in same:
                its_own: dict[str, ParamValue] = {"run": run.header.run_id} if len(same) > 1 else {}
                shown[run.header.run_id] = {name: known[run.header.run_id][name] for name in names} | its_own
    return shown


def _alike(
    runs: Sequence[StoredRun], known: Mapping[str, Mapping[str, ParamValue]], names: Sequence[str]
) -> dict[str, list[StoredRun]]:
    """The runs by method, budget and their values of `names`."""
    found: dict[str, list[StoredRun]] = defaultdict(list)
    for run in runs:
        values = known[run.header.run_id]
        found[arm_label(run.header, {name: values[name] for name in names})].append(run)
    return found


def _compared(
    runs: Sequence[StoredRun],
    bases: Sequence[StoredRun],
    arms: Mapping[str, Arm],
    what: Measure,
    rules: Rules,
) -> dict[str, Arm]:
    """The arms with everything that needs the baseline. Holm covers the arms of one budget together."""
    done = dict(arms)
    families: dict[tuple[int | None, float | None], list[tuple[StoredRun, StoredRun]]] = defaultdict(list)
    for run in runs:
        if bases and not done[run.header.run_id].baseline:
            config = run.header.config
            families[config.budget, config.keep].append((run, _base_for(run, bases)))
    for family in families.values():
        tested = [outcome(run, base, done[base.header.run_id].label, what, rules) for run, base in family]
        for (run, base), difference in zip(family, judge_family(tested, what, rules), strict=True):
            arm = done[run.header.run_id].model_copy(
                update={"difference": difference, "repetition": repetition_at_equal_length(run, base, rules)}
            )
            done[run.header.run_id] = with_speed_ratios(arm, done[base.header.run_id])
    return done


def _base_for(run: StoredRun, bases: Sequence[StoredRun]) -> StoredRun:
    """The baseline of the run's budget, or the only one there is."""
    config = run.header.config
    near = [
        base for base in bases if (base.header.config.budget, base.header.config.keep) == (config.budget, config.keep)
    ] or list(bases)
    if len(near) > 1:
        raise ConfigError(
            f"{describe(run)} could be compared with {' or '.join(describe(base) for base in near)}; "
            "name one with --baseline RUN_ID"
        )
    return near[0]


def _title(group: Group) -> str:
    """What the table is about, in words; a condition that is mixed is named by the notes."""
    shared = {name: each.shown for name, each in group.shared.items() if each.shown != "-"}
    parts = [f"{shared['task']} version {shared['task_version']}" if "task_version" in shared else shared["task"]]
    parts += [f"{name.replace('_', ' ')} {shared[name]}" for name in ("variant", "entries") if name in shared]
    parts += [shared[name] for name in ("source", "data", "model") if name in shared]
    parts += [
        f"{name.replace('_', ' ')} {shared[name]}" for name in ("seed", "data_seed") if shared.get(name, "0") != "0"
    ]
    return ", ".join(parts)


def _order(arm: Arm) -> tuple[bool, bool, float, str, str]:
    size = arm.budget if arm.budget is not None else arm.keep or 0.0
    return (not arm.baseline, arm.budget is None, float(size), arm.method, arm.label)


def _equal_memory(group: Group, arms: Mapping[str, Arm], bases: Sequence[StoredRun]) -> list[MemoryRow]:
    """Speeds of runs under a memory limit, older runs of an arm included; only limits that two arms ran under."""
    labels = {}
    for run in group.runs:
        if run.header.run_id in arms:
            labels[arm_key(run.header)] = arms[run.header.run_id].label
    found: dict[tuple[int, str], StoredRun] = {}
    for run in newest_first(group.runs):
        limit = run.header.config.performance.memory_limit
        if limit is not None:
            found.setdefault((limit, arm_key(run.header)), run)
    limits = [limit for limit, _ in found]
    base_keys = {arm_key(base.header) for base in bases}
    base_speed = {limit: _decode_speed(run) for (limit, key), run in found.items() if key in base_keys}
    rows = []
    for (limit, key), run in found.items():
        summary = run.header.summary
        if limits.count(limit) < 2 or summary is None:
            continue
        speed, base = summary.decode_tokens_per_second, base_speed.get(limit)
        rows.append(
            MemoryRow(
                memory_limit=limit,
                label=labels.get(key, arm_label(run.header)),
                run_id=run.header.run_id,
                batch=max(summary.batch_sizes, default=None),
                decode_tokens_per_second=speed,
                prefill_tokens_per_second=summary.prefill_tokens_per_second,
                decode_ratio=speed / base if speed is not None and base else None,
            )
        )
    return sorted(rows, key=lambda row: (row.memory_limit, -(row.decode_tokens_per_second or 0)))


def _decode_speed(run: StoredRun) -> float | None:
    return run.header.summary.decode_tokens_per_second if run.header.summary else None
