"""How a sweep shows itself: the plan, a bar a run, what came of every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velox_eval.cli.progress import TerminalObserver
from velox_eval.pipelines.matrix import PlannedRun, SweepPlan
from velox_eval.pipelines.sweep import Spread, SweepObserver, SweepResult, SweepRun


class SweepTerminal(TerminalObserver, SweepObserver):
    """Draws one bar a run, with its number in the sweep."""

    def run_begins(self, run: PlannedRun, number: int, total: int) -> None:
        """Puts the run's number before its bar."""
        self.title = f"{number}/{total} {run.label}"

    def run_ended(self, run: SweepRun) -> None:
        """Says at once why a run failed."""
        if run.error is not None and not run.cancelled:
            self.note(f"{run.planned.label}: {run.error}")


class MatrixTerminal(TerminalObserver, SweepObserver):
    """Draws one bar over the samples of all runs, which go on side by side."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._runs = self._ended = 0

    def sweep_begins(self, runs: int, samples: int) -> None:
        """Opens the bar."""
        self._runs = runs
        self._retitle()
        super().started(samples, 0)

    def started(self, samples: int, done: int) -> None:
        """Advances the bar by what one run has on record."""
        self.advance(done)

    def run_ended(self, run: SweepRun) -> None:
        """Counts the run; says at once why it failed."""
        self._ended += 1
        self._retitle()
        if run.error is not None and not run.cancelled:
            self.note(f"{run.planned.label}: {run.error}")

    def ended(self) -> None:
        """One run's end leaves the bar open."""

    def sweep_ended(self) -> None:
        """Closes the bar."""
        super().ended()

    def _retitle(self) -> None:
        self.retitle(f"{self._ended}/{self._runs} runs")


def show_plan(plan: SweepPlan, results: Path) -> None:
    """Prints the runs and what they will take on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from velox_eval.cli.console import out, plain

    console = out()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"suite {plan.suite.name}", title_justify="left")
    for column in ("run", "samples", "tokens, most", "minutes", "in results"):
        table.add_column(column, justify="left" if column in ("run", "in results") else "right", overflow="fold")
    for run in plan.runs:
        minutes = "" if run.state == "finished" else f"{run.seconds / 60:.1f}"
        table.add_row(plain(run.label), str(run.samples), f"{run.tokens:,}", minutes, run.state)
    console.print(table)
    for line in plan_lines(plan, results):
        console.print(plain(line), soft_wrap=True)


def plan_lines(plan: SweepPlan, results: Path) -> list[str]:
    """Returns the plan in sentences: totals, what the estimate is from, what is left out."""
    todo = [run for run in plan.runs if run.state != "finished"]
    finished = len(plan.runs) - len(todo)
    count = f"{len(plan.runs)} runs" + (f", {finished} of them finished in {results}" if finished else "")
    samples, tokens = sum(run.samples for run in todo), sum(run.tokens for run in todo)
    lines = [f"{count}; to do: {samples:,} samples, {tokens:,} tokens at most"]
    if todo:
        bases = sorted({run.basis for run in todo})
        lines.append(f"about {minutes(plan.seconds)} if every answer runs to its limit ({'; '.join(bases)})")
    if plan.repeated:
        lines.append(f"{plan.repeated} more are the same as one of these and are not repeated")
    lines += [f"left out: {label}: {reason}" for label, reason in plan.impossible]
    return [*lines, *plan.notes]


def minutes(seconds: float) -> str:
    """Returns a time people read: seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def plan_document(plan: SweepPlan) -> dict[str, Any]:
    """Returns the plan, JSON-able."""
    return {
        "suite": plan.suite.model_dump(mode="json"),
        "suite_sha256": plan.suite.sha256,
        "expected_seconds": plan.seconds,
        "repeated": plan.repeated,
        "impossible": [{"label": label, "reason": reason} for label, reason in plan.impossible],
        "notes": list(plan.notes),
        "runs": [_planned_document(run) for run in plan.runs],
    }


def _planned_document(run: PlannedRun) -> dict[str, Any]:
    names = ("label", "samples", "prompt_tokens", "tokens", "state", "seconds", "basis")
    return {**{name: getattr(run, name) for name in names}, "command": list(run.options.command)}


def run_document(run: SweepRun) -> dict[str, Any]:
    """Returns what came of one run, JSON-able."""
    header = run.header
    return {
        "label": run.planned.label,
        "state": run.state,
        "error": run.error,
        "run_id": header.run_id if header else None,
        "status": header.status if header else None,
        "path": str(run.path) if run.path else None,
        "summary": header.summary.model_dump(mode="json") if header and header.summary else None,
    }


def show_result(result: SweepResult) -> None:
    """Prints where every run's records are, and where a cluster's time went, on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from velox_eval.cli.console import out, plain

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("run", "status", "seconds", "records"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for run in result.runs:
        if run.header is None:
            table.add_row(plain(run.planned.label), "failed", "", "")
            continue
        seconds = run.header.summary.cost.wall_seconds if run.header.summary else 0.0
        status = "shown" if run.state == "finished" else run.header.status
        table.add_row(*(plain(cell) for cell in (run.planned.label, status, f"{seconds:.1f}", run.header.run_id)))
    out().print(table)
    if result.spread is not None:
        out().print(plain(spread_line(result.spread)), soft_wrap=True)


def spread_line(spread: Spread) -> str:
    """Returns where a cluster's time went, in a sentence."""
    share = spread.scheduling_share
    scheduling = "" if share is None else f", {share:.1%} of {spread.order_seconds:.0f} s under way in scheduling"
    again = f", {spread.retried} orders sent again" if spread.retried else ""
    return (
        f"{spread.workers} workers, {spread.wall_seconds:.0f} s: {spread.engine_seconds:.0f} s in their engines, "
        f"{spread.worker_seconds - spread.engine_seconds:.0f} s of loading{scheduling}{again}"
    )
