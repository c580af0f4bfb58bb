"""A suite made ready: every run checked before any starts, repetitions taken out, its length and time worked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from velox_eval.engine.requests import LogLikelihood
from velox_eval.errors import ConfigError, StoreError
from velox_eval.pipelines.suite import Suite, matrix, run_command
from velox_eval.records.config import TaskChoice, canonical_json, config_hash
from velox_eval.records.schema import RunHeader
from velox_eval.records.store import load_header
from velox_eval.runs.labels import budget_words
from velox_eval.runs.plan import DEFAULT_RESULTS, Plan, RunOptions, make_plan, task_choice
from velox_eval.runs.runner import identity

CHARACTERS_A_TOKEN = 4  # English text; only the estimate uses it
ASSUMED = (500.0, 20.0)  # tokens read and written a second where nothing was measured


class Plans:
    """Makes plans, loading a task's samples once for runs that follow each other."""

    def __init__(self) -> None:
        self._last: tuple[TaskChoice, Plan] | None = None

    def make(self, options: RunOptions) -> Plan:
        """Returns the plan of `options`; raises as `make_plan` does."""
        choice = task_choice(options)
        like = self._last[1] if self._last is not None and self._last[0] == choice else None
        plan = make_plan(options, like)
        self._last = choice, plan
        return plan


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: what it is and what it will take."""

    label: str  # unique in the sweep
    options: RunOptions
    budget: int | None  # with the task's and the method's defaults filled in
    samples: int
    prompt_tokens: int  # about, all samples
    tokens: int  # most that may be written, all samples
    state: str = "new"  # or "finished", "begun": what results/ has of it, if the model is what it was
    seconds: float = 0.0  # expected, if every answer runs to its limit
    basis: str = ""  # what that is worked out from


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a suite in the order they run: by model, task and seed, the full cache first."""

    suite: Suite
    runs: tuple[PlannedRun, ...]
    repeated: int = 0  # runs that were the same as another
    impossible: tuple[tuple[str, str], ...] = ()  # label, reason; left out
    notes: tuple[str, ...] = field(default=())

    @property
    def seconds(self) -> float:
        """Expected seconds of what is not finished."""
        return sum(run.seconds for run in self.runs if run.state != "finished")


def plan_sweep(suite: Suite, *, results: Path = DEFAULT_RESULTS, again: bool = False) -> SweepPlan:
    """Returns the suite's runs, each checked as `velox-eval run` checks it, without a model.

    Raises ConfigError naming every combination that cannot work (left out instead where the suite says so), and
    DataError for data that cannot be used.
    """
    plans, headers = Plans(), [] if again else stored_headers(results)
    speeds = _Speeds(stored_headers(results) if again else headers)
    seen: set[str] = set()
    runs: list[PlannedRun] = []
    impossible: list[tuple[str, str]] = []
    repeated = 0
    for options in matrix(suite, results=results, again=again):
        try:
            plan = plans.make(options)
        except ConfigError as error:
            impossible.append((_asked(options), str(error)))
            continue
        key = _sameness(plan)
        if key in seen:
            repeated += 1
            continue
        seen.add(key)
        run = PlannedRun(
            label=_label(plan, suite),
            options=replace(options, command=run_command(options)),
            budget=plan.method.budget,
            samples=len(plan.requests),
            prompt_tokens=sum(len(request.prompt) for request in plan.requests) // CHARACTERS_A_TOKEN,
            tokens=sum(0 if isinstance(request, LogLikelihood) else request.max_tokens for request in plan.requests),
            state=_state(plan, headers),
        )
        runs.append(speeds.estimated(run, plan))
    if impossible and not suite.leave_out_impossible:
        raise ConfigError(f"suite {suite.name}: {len(impossible)} runs cannot work: {_listed(impossible)}")
    notes = []
    if len(suite.seeds) > 1 and not suite.temperature:
        notes.append(f"temperature 0 draws nothing: seed {suite.seeds[0]} alone stands for all {len(suite.seeds)}")
    return SweepPlan(suite, _numbered(runs), repeated, tuple(impossible), tuple(notes))


def _listed(impossible: Iterable[tuple[str, str]]) -> str:
    """Every reason once, with the runs it is about."""
    labels: dict[str, list[str]] = {}
    for label, reason in impossible:
        labels.setdefault(reason, []).append(label)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in labels.items())


def stored_headers(results: Path) -> list[RunHeader]:
    """Returns the headers of the runs under `results`; a folder that cannot be read is no run."""
    found = []
    for path in sorted(results.glob("*/run.json")):
        try:
            found.append(load_header(path.parent))
        except StoreError:
            continue  # not ours to judge here: opening that run says what is wrong with it
    return found


def _sameness(plan: Plan) -> str:
    """What two runs of a sweep share when one of them is enough."""
    config = plan.config.model_dump(mode="json", exclude={"performance"})
    config["method"] = plan.method.label
    if not plan.config.temperature:
        config["seed"] = 0  # greedy: nothing is drawn from it
    return canonical_json(config)


def _label(plan: Plan, suite: Suite) -> str:
    """Task, method with parameters that are not its defaults, budget; model and seed where the suite has several."""
    config, method = plan.config, plan.method
    defaults = {parameter.name: parameter.default for parameter in method.variant.parameters}
    words = [method.label, *(f"{name}={value}" for name, value in method.params.items() if value != defaults[name])]
    text = f"{config.task.name}: {' '.join(words)}"
    if size := budget_words(method.budget, method.keep):
        text += f", {size}"
    if len(suite.models) > 1:
        text += f", {config.model}"
    if len(suite.seeds) > 1 and config.temperature:
        text += f", seed {config.seed}"
    return text


def _asked(options: RunOptions) -> str:
    """The label of a run that has no plan."""
    words = [options.method, *(f"{name}={value}" for name, value in options.settings.items())]
    size = budget_words(options.budget, options.keep)
    return f"{options.task}: {' '.join(words)}{f', {size}' if size else ''}"


def _numbered(runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
    """Tells runs of one label apart: one task with two sets of options."""
    labels = [run.label for run in runs]
    numbers = {label: 0 for label in labels if labels.count(label) > 1}
    named = []
    for run in runs:
        if run.label in numbers:
            numbers[run.label] += 1
            run = replace(run, label=f"{run.label} ({numbers[run.label]})")
        named.append(run)
    return tuple(named)


def _state(plan: Plan, headers: Iterable[RunHeader]) -> str:
    """What `results` has of the plan, taking for granted that the model's name still stands for the same content."""
    latest: RunHeader | None = None
    for header in headers:
        if header.config.model != plan.config.model or header.config.method != plan.config.method:
            continue
        try:
            expected = config_hash(plan.config, identity(plan, header.model))
        except ConfigError:
            return "new"  # a package is missing, which the run itself will say
        if header.config_hash == expected and (latest is None or header.created_at > latest.created_at):
            latest = header
    if latest is None:
        return "new"
    return "finished" if latest.status == "success" else "begun"


class _Speeds:
    """Seconds a token from stored runs: those of the same kind, else of the same task, else of the same model."""

    def __init__(self, headers: Iterable[RunHeader]) -> None:
        self._measured: list[tuple[tuple[str, str, str, int | None], float, float]] = []
        for header in headers:
            cost = header.summary.cost if header.summary else None
            if cost is not None and cost.prefill_tokens and cost.decode_tokens:
                config = header.config
                kind = config.model, config.task.name, config.method, config.budget
                read = cost.prefill_seconds / cost.prefill_tokens
                written = max(cost.wall_seconds - cost.prefill_seconds, 0.0) / cost.decode_tokens
                self._measured.append((kind, read, written))

    def estimated(self, run: PlannedRun, plan: Plan) -> PlannedRun:
        """Returns the run with its expected seconds and what they are worked out from."""
        kind = plan.config.model, plan.config.task.name, plan.config.method, plan.config.budget
        for alike, of in ((4, "this run"), (3, "this method"), (2, "this task"), (1, "this model")):
            found = [(read, written) for known, read, written in self._measured if known[:alike] == kind[:alike]]
            if found:
                read, written = (median(column) for column in zip(*found, strict=True))
                basis = f"measured runs of {of}"
                break
        else:
            read, written = 1 / ASSUMED[0], 1 / ASSUMED[1]
            basis = f"assumed: {ASSUMED[0]:g} tokens read and {ASSUMED[1]:g} written a second"
        return replace(run, seconds=run.prompt_tokens * read + run.tokens * written, basis=basis)
