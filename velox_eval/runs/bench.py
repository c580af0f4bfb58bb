"""Measures a bench's rows on this machine: steps and prompts through the engine, whole runs through the runner."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from velox_eval.errors import ConfigError, VeloxEvalError
from velox_eval.methods import MethodConfig, Value, resolve
from velox_eval.records.config import DEFAULT_PREFILL_STEP
from velox_eval.runs.bench_suite import MEASURES, Row
from velox_eval.runs.labels import budget_words
from velox_eval.runs.plan import DEFAULT_MODEL, RunOptions

if TYPE_CHECKING:
    from velox_eval.engine.bench import DecodeTimes, PrefillTimes
    from velox_eval.engine.models import LoadedModel
    from velox_eval.runs.bench_runs import RunTimes

FAILURES = (VeloxEvalError, ValueError, RuntimeError)  # mlx raises the last two
BUSY = 0.5  # load average a core from which a machine counts as busy


@dataclass(frozen=True)
class BenchOptions:
    """What a bench measures and how often."""

    rows: tuple[Row, ...]
    suite: str | None = None
    remarks: tuple[str, ...] = ()  # the suite's own, for the report
    model: str = DEFAULT_MODEL
    steps: int = 8  # decode steps timed together
    repeats: int = 5
    prefill_repeats: int = 3
    prefill_step: int = DEFAULT_PREFILL_STEP
    veloxquant: bool = True  # whether the installed package is timed where a row asks for it
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "repeats", "prefill_repeats", "prefill_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True)
class Line:
    """One figure of one method. `value` is None where it could not be measured, and `why` says why."""

    what: str
    method: str
    params: Mapping[str, Value]
    figure: str
    reach: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    met: bool | None = None
    why: str | None = None


@dataclass
class Report:
    """What a bench found. `seconds` says how long each part took, by row."""

    suite: str | None
    command: list[str]
    created_at: str
    machine: dict[str, Any]
    model: dict[str, Any]
    settings: dict[str, int]
    remarks: tuple[str, ...] = ()  # what the suite says about its figures
    lines: list[Line] = field(default_factory=list)
    decode: list[DecodeTimes] = field(default_factory=list)
    prefill: list[PrefillTimes] = field(default_factory=list)
    runs: list[RunTimes] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def bench(options: BenchOptions, note: Callable[[str], None] = lambda _text: None) -> Report:
    """Returns what was measured; `note` is told what is being timed.

    Raises VeloxEvalError for a model that cannot be loaded. What cannot be measured has the reason in its line,
    and the rest goes on; prompts are timed together, so a method that fails takes along those timed with it.
    """
    from velox_eval.engine.models import load_model

    load = os.getloadavg()[0]
    loaded = load_model(options.model)
    report = Report(
        suite=options.suite,
        command=list(options.command),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(load),
        model=_model(loaded),
        settings={name: getattr(options, name) for name in ("steps", "repeats", "prefill_repeats", "prefill_step")},
        remarks=options.remarks,
    )
    cores = report.machine["cores"]
    if load > BUSY * cores:
        report.notes.append(
            f"this machine was busy at the start (load {load:.1f} on {cores} cores): expect wide spreads"
        )
        note(report.notes[-1])
    measuring = _Measuring(options, report, note, loaded)
    for measure in MEASURES:
        rows = [row for row in options.rows if row.measure == measure]
        if measure == "prefill":
            measuring.prefill(rows)
        else:
            for row in rows:
                measuring.row(row)
    report.lines = [line for row in options.rows for line in measuring.lines[options.rows.index(row)]]
    return report


def machine(load: float) -> dict[str, Any]:
    """Returns what speeds depend on: device, cores, memory, BLAS, versions and the load at the start; no paths."""
    from velox_eval.engine.doctor import report as doctor

    found = doctor()
    return {
        "device": found["device"]["kind"],
        "name": found["device"]["name"],
        "cores": found["cores"],
        "memory_bytes": found["memory_bytes"],
        "platform": found["platform"],
        "blas": found["blas"]["kind"],
        "matmul_gflops_float32": found["matmul_gflops_float32"],
        "load_average": round(load, 2),
        "python": found["python"],
        "packages": {name: version for name, version in found["packages"].items() if version},
    }


def _model(loaded: LoadedModel) -> dict[str, Any]:
    names = ("name", "content_sha256", "route", "dtype", "n_layers")
    return {name: getattr(loaded, name) for name in names}


class _Measuring:
    """One bench at work: rows in, lines and times into the report."""

    def __init__(self, options: BenchOptions, report: Report, note: Callable[[str], None], loaded: LoadedModel) -> None:
        from velox_eval.engine.bench import Bench
        from velox_eval.runs.bench_runs import bundled_prompts

        self.options = options
        self.report = report
        self.note = note
        self.bench = Bench(loaded, bundled_prompts(), prefill_step=options.prefill_step, steps=options.steps)
        self.lines: list[list[Line]] = [[] for _ in options.rows]
        self.run_options = RunOptions(prefill_step=options.prefill_step)

    def row(self, row: Row) -> None:
        """Measures a row that is not about prompts, method by method."""
        began = time.perf_counter()
        for method in row.methods:
            self.note(f"{row.measure}: {method.label}{_budget(method)}")
            try:
                if row.measure == "decode":
                    self._decode(row, method)
                else:
                    self._run(row, method)
            except FAILURES as error:
                self._line(row, method, why=str(error))
        self._took(row.what, began)

    def _decode(self, row: Row, method: MethodConfig) -> None:
        theirs, why = self._veloxquant(row, method)
        times = self.bench.decode(
            method, batch=row.batch, repeats=self.options.repeats, context=row.context, veloxquant=theirs
        )
        self.report.decode.append(times)
        self._line(row, method, getattr(times, row.figure), why)

    def prefill(self, rows: Sequence[Row]) -> None:
        """Measures the rows about prompts: those of equal budget and length in the same turns."""
        groups: dict[tuple[int | None, int], list[tuple[Row, MethodConfig]]] = {}
        for row in rows:
            for method in row.methods:
                groups.setdefault((method.budget, _prompt_length(row, method)), []).append((row, method))
        for (budget, context), asked in groups.items():
            began = time.perf_counter()
            self._prefill(context, asked)
            self._took(f"prompts of {context} tokens, budget {budget}", began)

    def _prefill(self, context: int, asked: Sequence[tuple[Row, MethodConfig]]) -> None:
        methods: list[MethodConfig] = []
        theirs: dict[int, MethodConfig] = {}
        reasons: dict[int, str | None] = {}
        for row, method in asked:
            if method not in methods:
                methods.append(method)
            index = methods.index(method)
            found, why = self._veloxquant(row, method)
            if found is not None:
                theirs[index] = found
            reasons[index] = reasons.get(index) or why
        self.note(f"prefill of {context} tokens: {', '.join(method.label for method in methods)}")
        limit = max(row.veloxquant_seconds for row, _ in asked)
        try:
            times = self.bench.prefill(
                methods,
                context=context,
                repeats=self.options.prefill_repeats,
                veloxquant=theirs,
                seconds=limit,
            )
        except FAILURES as error:
            for row, method in asked:
                self._line(row, method, why=str(error))
            return
        self.report.prefill += times
        for row, method in asked:
            index = methods.index(method)
            self._line(row, method, getattr(times[index], row.figure), reasons[index])

    def _run(self, row: Row, method: MethodConfig) -> None:
        from velox_eval.runs import bench_runs

        model, options = self.options.model, self.run_options
        if row.measure == "run":
            runs = [bench_runs.timed_run(model, method, bench_runs.bundled(options, row))]
            value = runs[0].harness_share
        elif row.measure == "flatness":
            runs = bench_runs.short_and_long(model, method, row, options)
            value = bench_runs.long_over_short(runs)
        else:
            if row.measure == "one_by_one":
                theirs, why = self._veloxquant(row, method)
                if theirs is None:
                    self._line(row, method, why=why)
                    return
                runs = bench_runs.one_by_one(model, method, theirs, row, options)
            else:
                runs = bench_runs.at_one_memory(model, method, resolve("full"), row, options)
            value = runs[0].tokens_per_second / runs[1].tokens_per_second
        self.report.runs += runs
        self._line(row, method, value)

    def _veloxquant(self, row: Row, method: MethodConfig) -> tuple[MethodConfig | None, str | None]:
        """The installed package's configuration of the same method, or why there is none; nothing if not asked for."""
        if not row.veloxquant:
            return None, None
        if not self.options.veloxquant:
            return None, "veloxquant was left out"
        if method.variant_name != "adapted":
            return None, f"veloxquant has no {method.label}"
        defaults = {parameter.name: parameter.default for parameter in method.variant.parameters}
        changed = {name: value for name, value in method.params.items() if value != defaults[name]}
        try:
            return resolve(f"veloxquant/{method.spec.name}", changed, budget=method.budget), None
        except ConfigError as error:
            return None, str(error)

    def _line(self, row: Row, method: MethodConfig, figure: Any = None, why: str | None = None) -> None:
        value = getattr(figure, "value", figure)
        self.lines[self.options.rows.index(row)].append(
            Line(
                what=row.what,
                method=method.label,
                params=method.params,
                figure=row.figure,
                reach=row.reach,
                value=value,
                low=getattr(figure, "low", None),
                high=getattr(figure, "high", None),
                met=None if value is None else row.met(value),
                why=why if value is None else None,
            )
        )

    def _took(self, part: str, began: float) -> None:
        seconds = self.report.seconds
        seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - began


def _budget(method: MethodConfig) -> str:
    size = budget_words(method.budget, method.keep)
    return f", {size}" if size else ""


def _prompt_length(row: Row, method: MethodConfig) -> int:
    assert method.budget is not None  # the row saw to it
    return row.context or 4 * method.budget
