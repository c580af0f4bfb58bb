"""What must be equal for two runs to be compared, and the runs sorted by it. Nothing is mixed unasked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from velox_eval.errors import ConfigError, unknown_name
from velox_eval.records.config import ParamValue, canonical_json
from velox_eval.records.schema import RunHeader
from velox_eval.records.store import StoredRun
from velox_eval.runs.labels import budget_label

_SHOWN_DIGITS = 12
_ANY_SEED = "-"

# Every condition, in the order they are named. Runs that differ in one of AXES belong to different tables.
NAMES = (
    *("task", "variant", "entries", "data_seed", "model", "seed"),
    *("task_version", "source", "data", "requests"),
    *("prefill_step", "temperature", "top_p", "judge", "device", "route", "versions"),
)
AXES = NAMES[:6]
ALLOWABLE = NAMES[1:]  # another task has other samples and scores: there is nothing to compare


class Condition(NamedTuple):
    """One thing that must be equal: `key` decides, `shown` is what a person reads."""

    key: str
    shown: str


def conditions(header: RunHeader) -> dict[str, Condition]:
    """Returns the run's conditions by name.

    A method's own settings (parameters, budget, evict_block) are none: they are what is compared. Neither are
    settings of speed. The seed is none where nothing is drawn: greedy decoding with every row kept.
    """
    config, identity = header.config, header.identity
    greedy = config.temperature == 0
    packages = {name: version for name, version in identity.versions.items() if name != "veloxquant-mlx"}
    plain = {
        "task": config.task.name,
        "variant": config.task.variant,
        "entries": config.task.entries,
        "data_seed": config.task.data_seed,
        "seed": _ANY_SEED if greedy and not header.method.evicts else config.seed,
        "task_version": identity.task_version,
        "source": header.data.source,
        "prefill_step": config.prefill_step,
        "temperature": f"{config.temperature:g}",
        "top_p": "-" if greedy else f"{config.top_p:g}",
        "judge": identity.judge,
        "device": identity.device,
        "route": identity.route,
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(packages.items())) or None,
    }
    found = {name: Condition(str(value), "-" if value is None else str(value)) for name, value in plain.items()}
    found["model"] = _hashed(identity.model_sha256, config.model)
    found["data"] = _hashed(identity.data_sha256, f"{header.data.samples} of {header.data.total} samples")
    found["requests"] = _hashed(identity.requests_sha256, _asked(header))
    return {name: found[name] for name in NAMES}


def _hashed(sha256: str, shown: str) -> Condition:
    """Contents, by their hash; foreign answers have words in its place."""
    return Condition(sha256, f"{shown} ({sha256 if ' ' in sha256 else sha256[:_SHOWN_DIGITS]})")


def _asked(header: RunHeader) -> str:
    most = header.config.task.max_tokens
    limit = "the task's token limit" if most is None else f"max_tokens {most}"
    return f"{header.data.samples} prompts, {limit}"


@dataclass(frozen=True)
class Group:
    """Runs that agree in every condition but those allowed to differ."""

    runs: tuple[StoredRun, ...]
    shared: Mapping[str, Condition]
    mixed: Mapping[str, list[str]]


def check_allowed(allow: Collection[str]) -> None:
    """Raises ConfigError for a name that is no condition, or one that cannot be allowed to differ."""
    for name in allow:
        if name not in ALLOWABLE:
            raise ConfigError(unknown_name("condition to allow", name, ALLOWABLE))


def group_runs(runs: Sequence[StoredRun], allow: Collection[str], *, split: bool) -> list[Group]:
    """Returns the runs in groups that may be compared, in the order given.

    Runs that differ in AXES are in different groups. Those that differ in anything else: with `split` as well; else
    ConfigError names the first two and what differs. A run without a seed belongs to the groups of every seed.
    """
    check_allowed(allow)
    known = [(run, conditions(run.header)) for run in runs]
    apart = [name for name in (NAMES if split else AXES) if name not in allow]
    groups: dict[tuple[str, ...], list[tuple[StoredRun, dict[str, Condition]]]] = {}
    for run, its in known:
        groups.setdefault(tuple(its[name].key for name in apart), []).append((run, its))
    if "seed" in apart:
        _join_seedless(groups, apart.index("seed"))
    made = []
    for members in groups.values():
        for run, its in members[1:]:
            different = [name for name in differing(members[0][1], its) if name not in (*allow, *apart)]
            if different:
                raise ConfigError(refusal(members[0][0], run, different))
        made.append(_group(members, allow))
    return made


def _join_seedless(groups: dict[tuple[str, ...], list[tuple[StoredRun, dict[str, Condition]]]], place: int) -> None:
    """Puts the runs in which nothing is drawn into the groups of every seed, where there are any."""
    for key in [key for key in groups if key[place] == _ANY_SEED]:
        seeded = [
            other
            for other in groups
            if other[place] != _ANY_SEED and other[:place] == key[:place] and other[place + 1 :] == key[place + 1 :]
        ]
        if seeded:
            members = groups.pop(key)
            for other in seeded:
                groups[other] = [*members, *groups[other]]


def _group(members: Sequence[tuple[StoredRun, dict[str, Condition]]], allow: Collection[str]) -> Group:
    shared, mixed = {}, {}
    for name in NAMES:
        seen = {its[name].key: its[name] for _, its in members if (name, its[name].key) != ("seed", _ANY_SEED)}
        if len(seen) > 1:
            mixed[name] = sorted(each.shown for each in seen.values())
        else:
            shared[name] = next(iter(seen.values()), members[0][1][name])
    return Group(tuple(run for run, _ in members), shared, {name: mixed[name] for name in mixed if name in allow})


def differing(first: Mapping[str, Condition], second: Mapping[str, Condition]) -> list[str]:
    """Returns the names of the conditions in which the two differ; a missing seed differs from none."""
    names = [name for name in NAMES if first[name].key != second[name].key]
    if "seed" in names and _ANY_SEED in (first["seed"].key, second["seed"].key):
        names.remove("seed")
    return names


def refusal(first: StoredRun, second: StoredRun, names: Sequence[str]) -> str:
    """Returns why two runs cannot be compared, in one line: every condition that differs, with both values."""
    ours, theirs = conditions(first.header), conditions(second.header)
    parts = [f"{name} is {ours[name].shown} and {theirs[name].shown}" for name in names]
    allowed = [name for name in names if name in ALLOWABLE]
    way = f"; --allow {','.join(allowed)} compares them all the same" if len(allowed) == len(names) else ""
    return f"cannot compare run {describe(first)} with run {describe(second)}: {'; '.join(parts)}{way}"


def describe(run: StoredRun) -> str:
    """Returns run id and arm of a run, for a message."""
    return f"{run.header.run_id} ({arm_label(run.header)})"


def method_label(header: RunHeader) -> str:
    """Returns the method as a user types it: `morphkv`, `morphkv:paper`."""
    return header.config.method.removesuffix(":adapted")


def arm_label(header: RunHeader, shown: Mapping[str, ParamValue] | None = None) -> str:
    """Returns method, budget and the parameters in `shown`: `morphkv@256 window=32`, `kvzip@50%`, `full`."""
    budget = budget_label(header.config.budget, header.config.keep)
    return " ".join([method_label(header) + budget, *(f"{name}={value}" for name, value in (shown or {}).items())])


def settings(header: RunHeader) -> dict[str, ParamValue | None]:
    """Returns what tells arms of one method and budget apart: its parameters, and evict_block."""
    return {**header.method.params, "evict_block": header.config.evict_block}


def arm_key(header: RunHeader) -> str:
    """Returns a text that is equal for runs of the same arm."""
    config = header.config
    return canonical_json([method_label(header), config.budget, config.keep, settings(header)])


def newest_first(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """Returns the runs by when they were finished (created, where they were not), the newest first."""
    return sorted(runs, key=lambda run: run.header.finished_at or run.header.created_at, reverse=True)
