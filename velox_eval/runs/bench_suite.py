"""What a bench measures: rows, each a figure of some methods and what it is to reach, from a TOML file.

`kind = "speed"` tells such a file from the suites of `velox-eval sweep`; `remarks` are texts for the report.

[[row]] fields: `what` (a line for the table), `measure`, `figure`, `at_least` / `at_most` (optional), `methods` (names,
or "constant-size" for every adapted method whose rows do not grow), `except`, `settings` (of these methods), and the
numbers that the measure takes:

decode      budget, batch, context   figures over_pinned, full_over, veloxquant_over
prefill     budget, context, veloxquant_seconds   over_full, veloxquant_over
run         budget, batch, samples, max_tokens   harness_share
one_by_one  budget, batch, samples, veloxquant_samples, max_tokens   speedup
memory      budget, samples, max_tokens, memory_limit (bytes)   speedup
flatness    budget, batch, samples, short_samples, max_tokens   long_over_short
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from velox_eval.errors import ConfigError, DataError, unknown_name
from velox_eval.methods import METHODS, MethodConfig, Value, resolve
from velox_eval.runs.suite_files import read_suite_file

CONSTANT_SIZE = "constant-size"
DEFAULT_BUDGET = 512
DEFAULT_BATCH = 8
GENERAL = ("decode", "prefill", "run")  # what can be asked for without a suite
MEASURES: Mapping[str, tuple[str, ...]] = {  # measure -> its figures
    "decode": ("over_pinned", "full_over", "veloxquant_over"),
    "prefill": ("over_full", "veloxquant_over"),
    "run": ("harness_share",),
    "one_by_one": ("speedup",),
    "memory": ("speedup",),
    "flatness": ("long_over_short",),
}


@dataclass(frozen=True)
class Row:
    """One line of a bench: a figure of some methods, and what it is to reach (None: only reported)."""

    what: str
    measure: str
    figure: str
    methods: tuple[MethodConfig, ...]
    at_least: float | None = None
    at_most: float | None = None
    batch: int = 8
    context: int | None = None  # of a decode row: the full cache's rows, timed where it is given
    samples: int = 8
    short_samples: int = 8
    veloxquant: bool = False  # whether the installed package is timed beside it
    veloxquant_samples: int = 2
    veloxquant_seconds: float = 60.0
    max_tokens: int | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a method without a budget, or one beyond the context, where rows are compared."""
        for method in self.methods if self.measure in ("decode", "prefill") else ():
            if method.budget is None:
                raise ConfigError(f"{method.label} has no budget: name methods that evict")
            if self.context is not None and self.context < method.budget:
                raise ConfigError(f"context={self.context} must be at least budget={method.budget}")

    @property
    def reach(self) -> str:
        """What the figure is to reach, in words."""
        bounds = [f">= {self.at_least:g}"] if self.at_least is not None else []
        bounds += [f"<= {self.at_most:g}"] if self.at_most is not None else []
        return ", ".join(bounds) or "reported"

    def met(self, value: float) -> bool | None:
        """Whether `value` reaches it; None where nothing is to be reached."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Suite:
    """A named list of rows."""

    name: str
    summary: str
    rows: tuple[Row, ...] = field(default=())
    remarks: tuple[str, ...] = ()  # what bounds a figure, for the report


def constant_size_methods() -> tuple[str, ...]:
    """Returns every method whose adapted variant holds no more rows however long it writes."""
    from velox_eval.methods.policy import Layer

    found = []
    for name, spec in METHODS.items():
        variant = spec.variants.get("adapted")
        if spec.default_budget is None or variant is None:
            continue
        defaults = {parameter.name: parameter.default for parameter in variant.parameters}
        if not variant.policy(defaults, Layer()).grows:
            found.append(name)
    return tuple(sorted(found))


def method_names(given: Iterable[str], without: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the names with "constant-size" spelled out, each once, those in `without` left out."""
    names: list[str] = []
    for name in given:
        names += constant_size_methods() if name == CONSTANT_SIZE else [name]
    return tuple(name for name in dict.fromkeys(names) if name not in without)


def asked_rows(
    *,
    methods: Sequence[str],
    budgets: Sequence[int],
    batches: Sequence[int],
    contexts: Sequence[int],
    settings: Mapping[str, Value],
    measures: Sequence[str],
    samples: int,
    max_tokens: int,
) -> tuple[Row, ...]:
    """Returns the rows of a bench without a suite; empty lists stand for the defaults, a context is 4 x the budget.

    The whole run is the first method's, at the first budget and batch. Raises ConfigError for what cannot work.
    """
    single = {"samples": [samples], "max_tokens": [max_tokens]}
    for name, values in {"budget": budgets, "batch": batches, "context": contexts, **single}.items():
        for value in values:
            if value < 1:
                raise ConfigError(f"{name}={value} must be at least 1")
    for measure in measures:
        if measure not in GENERAL:
            raise ConfigError(unknown_name("part", measure, GENERAL))
    names = method_names(methods or [CONSTANT_SIZE])
    rows = []
    for budget in budgets or [DEFAULT_BUDGET]:
        chosen = tuple(resolve(name, settings, budget=budget) for name in names)
        for context in contexts or [4 * budget]:
            for batch in batches or [DEFAULT_BATCH]:
                what = f"decode step, budget {budget}, batch {batch}, full cache of {context} rows"
                rows.append(Row(what, "decode", "over_pinned", chosen, batch=batch, context=context, veloxquant=True))
            what = f"prompt of {context} tokens, budget {budget}"
            rows.append(Row(what, "prefill", "over_full", chosen, context=context, veloxquant=True))
    first = (resolve(names[0], settings, budget=(budgets or [DEFAULT_BUDGET])[0]),)
    batch = (batches or [DEFAULT_BATCH])[0]
    what = "wall time of a run outside reading and writing"
    rows.append(Row(what, "run", "harness_share", first, batch=batch, samples=samples, max_tokens=max_tokens))
    return tuple(row for row in rows if row.measure in measures)


def read_suite(name: str) -> Suite:
    """Returns the suite. Raises DataError naming file, row and field, and ConfigError for a method that cannot run."""
    path, table = read_suite_file(name, "speed")
    rows = table.get("row")
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path}: a suite needs at least one [[row]]")
    return Suite(
        name=str(table.get("name", path.stem)),
        summary=str(table.get("summary", "")),
        rows=tuple(_row(f"{path}: row {index}", row) for index, row in enumerate(rows, 1)),
        remarks=tuple(_texts(str(path), "remarks", table)) if "remarks" in table else (),
    )


def _row(where: str, given: Any) -> Row:
    table = dict(given) if isinstance(given, dict) else {}
    texts = {name: table.pop(name, None) for name in ("what", "measure", "figure")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise DataError(f"{where}: field {name!r} must be a text, got {value!r}")
    if texts["measure"] not in MEASURES:
        raise DataError(f"{where}: {unknown_name('measure', texts['measure'], MEASURES)}")
    if texts["figure"] not in MEASURES[texts["measure"]]:
        raise DataError(f"{where}: {unknown_name('figure', texts['figure'], MEASURES[texts['measure']])}")
    names = method_names(_texts(where, "methods", table), _texts(where, "except", table) if "except" in table else ())
    settings: Mapping[str, Value] = table.pop("settings", {})
    budget = table.pop("budget", None)
    methods = tuple(resolve(name, settings, budget=budget) for name in names)
    return Row(
        **texts,
        methods=methods,
        veloxquant=texts["figure"] == "veloxquant_over" or texts["measure"] == "one_by_one",
        **_numbers(where, table),
    )


def _texts(where: str, name: str, table: dict[str, Any]) -> list[str]:
    value = table.pop(name, None)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise DataError(f"{where}: field {name!r} must be a list of texts, got {value!r}")
    return value


def _numbers(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    known = {item.name for item in fields(Row)} - {"what", "measure", "figure", "methods", "veloxquant"}
    for name, value in table.items():
        if name not in known:
            raise DataError(f"{where}: {unknown_name('field', name, known)}")
        fraction = name in ("at_least", "at_most", "veloxquant_seconds")
        if isinstance(value, bool) or not isinstance(value, (int, float) if fraction else int) or value <= 0:
            raise DataError(f"{where}: field {name!r} must be a positive {'' if fraction else 'whole '}number")
    return dict(table)
