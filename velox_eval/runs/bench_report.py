"""What a bench found, as tables for a terminal and as a Markdown page."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from velox_eval.runs.text_tables import markdown_table

if TYPE_CHECKING:
    from velox_eval.engine.bench import DecodeTimes, PrefillTimes
    from velox_eval.engine.timing import Ratio, Spread
    from velox_eval.runs.bench import Line, Report
    from velox_eval.runs.bench_runs import RunTimes

HOW = """\
Times are medians over repeats, smallest and largest in brackets. In every repeat each thing is timed once, in an order
that rotates; warming up is left out. Ratios are ratios of these medians, in brackets the smallest and largest ratio
within a repeat.

- step: the model's whole decode step, all sequences together, in steady state: each cache was filled with `budget` rows
  of a real prompt (one sequence, stacked with itself) and has evicted since. Logits and caches are evaluated as the
  engine does.
- pinned: the same step on mlx-lm's KVCache that attends to budget + 1 rows every time: its offset goes back after each
  step, so that positions and rows stay.
  Attention there is mlx-lm's own. Under a method, on a CPU, query heads that share a KV head go through one product,
  and the method's ranking shares its logits (velox_eval/caches/attention.py): hence ratios below 1. What choosing
  itself costs is what a method takes over sliding_window.
- full: the same step on a KVCache pinned at `context` rows, filled directly with the rows of the prompt over and over.
- caches: of the step, what the caches take alone: what one step brought them is given to them again, in every layer,
  and their arrays evaluated. The model is the step without that.
- read: seconds of prefill as the engine reports them, one sequence, in chunks, with everything the method does once the
  prompt is in.
- veloxquant: the installed package's own caches, one sequence at a time, through the same engine; over: times as long
  as the method's, in decode per token (the method's step shared by its batch).
- kept: bytes of the rows held; aux: of what the method holds beside them; allocated: of the buffers for rows. All from
  the caches' own counters.
- runs: the runner itself on bundled samples; tokens: of prompts + generated; tokens/s: generated over wall time;
  harness: the share of wall time that is neither reading prompts nor writing answers.
"""


@dataclass(frozen=True)
class Sheet:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def document(report: Report) -> dict[str, Any]:
    """Returns the report as one JSON document."""
    return dataclasses.asdict(report)


def sheets(report: Report, *, spreads: bool = False) -> list[Sheet]:
    """Returns the tables that have rows: figures first, then what they rest on, in medians or with their spreads."""
    show = _Times(spreads)
    made = [
        _sheet("Figures", ("what", "method", "reach", "measured", ""), map(_line, report.lines)),
        _sheet(
            "Decode, ms a step",
            ("method", "budget", "batch", "step", "caches", "pinned", "over pinned", "tokens/s"),
            map(show.decode, report.decode),
        ),
        _sheet(
            "Decode, ms a step, beside the full cache and veloxquant at batch 1",
            ("method", "budget", "batch", "step", "context", "full", "full over", "veloxquant", "veloxquant over"),
            map(show.beside, (times for times in report.decode if times.full_ms or times.veloxquant_ms)),
        ),
        _sheet(
            "Bytes of one sequence in steady state",
            ("method", "budget", "kept", "aux", "allocated", "full cache"),
            map(_bytes, report.decode),
        ),
        _sheet(
            "Prefill, seconds a prompt",
            ("method", "budget", "tokens", "read", "tokens/s", "full", "over full", "veloxquant", "veloxquant over"),
            map(show.prefill, report.prefill),
        ),
        _sheet(
            "Runs, seconds",
            (
                "method",
                "budget",
                "batch",
                "limit",
                "samples",
                "tokens",
                "wall",
                "read",
                "written",
                "tokens/s",
                "harness",
            ),
            map(_run, report.runs),
        ),
        _sheet(
            "Time this took",
            ("part", "seconds"),
            ((part, f"{seconds:.0f}") for part, seconds in report.seconds.items()),
        ),
    ]
    return [sheet for sheet in made if sheet.rows]


def markdown(report: Report) -> str:
    """Returns the report as a Markdown page, with command, machine and how it was measured."""
    machine, model = report.machine, report.model
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    memory = "" if machine["memory_bytes"] is None else f", {machine['memory_bytes'] / 1e9:.0f} GB"
    head = [
        f"# Bench: {report.suite or 'as asked'}",
        "",
        f"    {shlex.join(report.command)}",
        "",
        f"- {report.created_at}, load {machine['load_average']} at the start",
        f"- {machine['name']}, {machine['cores']} cores{memory}, {machine['platform']}, {machine['device']}",
        f"- BLAS {machine['blas']}, {machine['matmul_gflops_float32']} GFLOP/s (float32)",
        f"- Python {machine['python']}, {packages}",
        f"- model {model['name']} ({model['dtype']}, {model['route']}, {model['n_layers']} layers, "
        f"sha256 {model['content_sha256'][:12]})",
        f"- {settings}",
        *(f"- {note}" for note in report.notes),
    ]
    parts = ["\n".join(head), *(f"## {sheet.title}\n\n{_table(sheet)}" for sheet in sheets(report, spreads=True))]
    if report.remarks:
        parts.insert(2, "## What bounds them\n\n" + "\n".join(f"- {remark}" for remark in report.remarks))
    return "\n\n".join([*parts, f"## How it is measured\n\n{HOW}"])


def _sheet(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Sheet:
    """A table without the columns that are empty all the way down."""
    found = list(rows)
    used = [index for index in range(len(columns)) if any(row[index] not in ("", "-") for row in found)]
    return Sheet(
        title, tuple(columns[index] for index in used), tuple(tuple(row[index] for index in used) for row in found)
    )


def _table(sheet: Sheet) -> str:
    rows = ([cell.replace("|", "\\|") for cell in row] for row in sheet.rows)
    return "\n".join(markdown_table(sheet.columns, rows))


def _line(line: Line) -> tuple[str, ...]:
    measured = "not measured" if line.value is None else f"{line.value:.3g}"
    if line.low is not None and line.high is not None:
        measured += f" ({line.low:.3g} to {line.high:.3g})"
    verdict = {True: "met", False: "MISSED", None: ""}[line.met]
    return (line.what, _method(line.method, line.params), line.reach, measured, line.why or verdict)


def _bytes(times: DecodeTimes) -> tuple[str, ...]:
    held = times.bytes
    full = "-" if held.full is None else f"{held.full:,} ({times.context} rows)"
    return (
        _method(times.method, times.params),
        str(times.budget),
        *(f"{count:,}" for count in (held.kept, held.aux, held.allocated)),
        full,
    )


def _run(run: RunTimes) -> tuple[str, ...]:
    return (
        _method(run.method, run.params),
        "-" if run.budget is None else str(run.budget),
        str(max(run.batch_sizes, default=1)),
        "-" if run.memory_limit is None else f"{run.memory_limit:,}",
        str(run.samples),
        f"{run.prompt_tokens} + {run.generated_tokens}",
        *(f"{seconds:.1f}" for seconds in (run.wall_seconds, run.prefill_seconds, run.decode_seconds)),
        f"{run.tokens_per_second:.1f}",
        f"{run.harness_share:.1%}",
    )


def _method(label: str, params: Mapping[str, Any]) -> str:
    """The method with the parameters that someone set."""
    from velox_eval.methods import METHODS

    base, _, variant = label.partition(":")
    if base not in METHODS:  # the installed package's: its defaults are its own
        return label
    defaults = {p.name: p.default for p in METHODS[base].variant(variant or "adapted").parameters}
    changed = [f"{name}={value}" for name, value in params.items() if value != defaults[name]]
    return " ".join([label, *changed])


class _Times:
    """Rows of times, each with its spread or without."""

    def __init__(self, spreads: bool) -> None:
        self.spreads = spreads

    def decode(self, times: DecodeTimes) -> tuple[str, ...]:
        """One method's steps."""
        return (
            _method(times.method, times.params),
            str(times.budget),
            str(times.batch),
            self._spread(times.step_ms, 1),
            self._spread(times.cache_ms, 1),
            self._spread(times.pinned_ms, 1),
            self._ratio(times.over_pinned),
            f"{times.tokens_per_second:.1f}",
        )

    def beside(self, times: DecodeTimes) -> tuple[str, ...]:
        """The same steps beside slower caches."""
        return (
            _method(times.method, times.params),
            str(times.budget),
            str(times.batch),
            self._spread(times.step_ms, 1),
            "-" if times.context is None else str(times.context),
            self._spread(times.full_ms, 1),
            self._ratio(times.full_over),
            self._spread(times.veloxquant_ms, 1),
            self._ratio(times.veloxquant_over),
        )

    def prefill(self, times: PrefillTimes) -> tuple[str, ...]:
        """One method's prompt."""
        return (
            _method(times.method, times.params),
            str(times.budget),
            str(times.prompt_tokens),
            self._spread(times.seconds, 2),
            f"{times.tokens_per_second:.0f}",
            self._spread(times.full_seconds, 2),
            self._ratio(times.over_full),
            self._spread(times.veloxquant_seconds, 2),
            self._ratio(times.veloxquant_over),
        )

    def _spread(self, spread: Spread | None, digits: int) -> str:
        if spread is None:
            return "-"
        return f"{spread.median:.{digits}f}" + self._range(spread, digits)

    def _ratio(self, ratio: Ratio | None) -> str:
        return "-" if ratio is None else f"{ratio.value:.2f}" + self._range(ratio, 2)

    def _range(self, of: Spread | Ratio, digits: int) -> str:
        return f" ({of.low:.{digits}f} to {of.high:.{digits}f})" if self.spreads else ""


def totals(lines: Sequence[Line]) -> str:
    """Returns how many figures were met, in words."""
    judged = [line for line in lines if line.met is not None]
    missing = sum(line.value is None for line in lines)
    text = f"{sum(bool(line.met) for line in judged)} of {len(judged)} figures met"
    return text + (f", {missing} not measured" if missing else "")
