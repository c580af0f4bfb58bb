"""`velox-eval compare`: which method, which budget, what is lost, what is gained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from velox_eval.compare.comparison import Comparison
    from velox_eval.compare.table import Grid
    from velox_eval.records.store import StoredRun

FORMATS = ("table", "md", "csv", "json")
READABLE = 100  # columns that the narrow table needs
WRAPPING = ("method", "verdict")  # columns of the narrow table that may wrap
WIDE = 400
TESTS = "Tests"
OUTPUT = "Output"


Runs = Annotated[list[str], typer.Argument(help="Run folders, run ids under --results, or folders of runs.")]
Baseline = Annotated[
    str, typer.Option(help="Method, arm (streaming_llm@128) or run id that all are compared with; none: no one.")
]
Score = Annotated[str | None, typer.Option(help="Another score than the task's primary one.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME,...", help="Conditions that may differ: prefill_step, judge, versions, ..."),
]
Margin = Annotated[
    float | None, typer.Option(help="A loss that counts as none, in units of the score.", rich_help_panel=TESTS)
]
Alpha = Annotated[float, typer.Option(help="Level of the tests.", rich_help_panel=TESTS)]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Take unfinished runs on the samples they have.")]
Results = Annotated[Path, typer.Option(help="Folder in which run ids are looked up.")]


def compare(
    runs: Runs,
    baseline: Baseline = "full",
    score: Score = None,
    allow: Allow = None,
    margin: Margin = None,
    alpha: Alpha = 0.05,
    unfinished: Unfinished = False,
    results: Results = Path("results"),
    format_: Annotated[
        str | None,
        typer.Option("--format", help="table, md, csv or json. (default: by FILE's ending)", rich_help_panel=OUTPUT),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file.", rich_help_panel=OUTPUT)
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="All columns.", rich_help_panel=OUTPUT)] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Also draw, as SVG and PNG, into this folder.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Compare finished runs with a baseline, sample by sample, and say what these samples can tell.

    Runs that are named are compared or refused. Of a folder, runs that may be compared make a table each, and what
    cannot be compared is listed; of several runs of one method at one budget the newest counts.
    """
    from velox_eval.records.output import check_file, check_folder

    form = _format(format_, output)
    if output is not None:
        check_file(output)
    if plots is not None:
        from velox_eval.runs.figures import require_matplotlib

        require_matplotlib()
        check_folder(plots)
    found, by_id = compared(runs, results, baseline, score, allow, margin, alpha, unfinished)
    if form == "table":
        show(found, output, wide=wide)
    else:
        _write(_text(found, form), output)
    if plots is not None:
        from velox_eval.cli.console import err, plain
        from velox_eval.compare.plot_files import write_plots

        paths = write_plots(found, by_id, plots)
        err().print(f"plots: {len(paths)} files in {plain(str(plots))}", soft_wrap=True)


def compared(
    runs: list[str],
    results: Path,
    baseline: str,
    score: str | None,
    allow: list[str] | None,
    margin: float | None,
    alpha: float,
    unfinished: bool,
) -> tuple[Comparison, dict[str, StoredRun]]:
    """Returns the comparison that was asked for, and the runs by id."""
    from velox_eval.compare.decide import compare as compare_runs
    from velox_eval.compare.decide import is_results_folder, load_runs

    folders = [path for path in runs if is_results_folder(path)]
    loaded = load_runs(runs, results)
    found = compare_runs(
        loaded,
        baseline,
        allow=[name for text in allow or [] for name in text.split(",")],
        score=score,
        margin=margin,
        alpha=alpha,
        split=bool(folders),
        repeats=not folders,
        unfinished=unfinished,
    )
    return found, {run.header.run_id: run for run in loaded}


def _format(asked: str | None, output: Path | None) -> str:
    from velox_eval.errors import ConfigError, unknown_name

    if asked is not None and asked not in FORMATS:
        raise ConfigError(unknown_name("format", asked, FORMATS))
    ending = output.suffix.removeprefix(".") if output else ""
    return asked or (ending if ending in FORMATS else "table")


def _text(found: Comparison, form: str) -> str:
    from velox_eval.compare import table

    makers = {"md": table.markdown, "csv": table.csv_text, "json": table.json_text}
    return makers[form](found)


def _write(text: str, output: Path | None) -> None:
    from velox_eval.records.output import write_text

    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)


def show(found: Comparison, output: Path | None = None, *, wide: bool = False) -> None:
    """Prints the tables, or writes them as plain text."""
    import io

    from rich.console import Console

    from velox_eval.cli.console import out

    if output is None:
        console = out()
        console.width = WIDE if wide else console.width if console.is_terminal else max(READABLE, console.width)
        _print(found, console, wide=wide)
        return
    text = io.StringIO()
    _print(found, Console(file=text, width=WIDE if wide else READABLE, highlight=False, markup=False), wide=wide)
    _write(text.getvalue(), output)


def _print(found: Comparison, console: Console, *, wide: bool) -> None:
    from velox_eval.cli.console import plain
    from velox_eval.compare.table import grid, memory_grid, notes

    for section in found.sections:
        better = "higher" if section.higher_is_better else "lower"
        console.print(plain(f"{section.title}\nscore: {section.score} ({better} is better)"), style="bold")
        _print_grid(grid(section, wide=wide), console, wide=wide)
        if section.equal_memory:
            console.print("at equal memory", style="bold")
            _print_grid(memory_grid(section), console, wide=wide)
    for note in notes(found):
        console.print(plain(f"- {note}"), soft_wrap=wide)
    console.print()
    for rule in found.rules:
        console.print(rule, style="dim", soft_wrap=wide)


def _print_grid(table: Grid, console: Console, *, wide: bool) -> None:
    """Columns two apart where there is room, else one; what does not fit even so wraps in WRAPPING."""
    from rich import box
    from rich.table import Table

    from velox_eval.cli.console import plain

    lines = [cell.split("\n") for row in (table.titles, *table.rows) for cell in row]
    count = len(table.titles)
    needed = sum(max(len(line) for cell in lines[place::count] for line in cell) for place in range(count))
    gap = 1 if wide or needed + 2 * count - 1 <= console.width else 0
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for title in table.titles:
        shown.add_column(title, no_wrap=wide or title not in WRAPPING, overflow="fold")
    for row in table.rows:
        shown.add_row(*(plain(cell) for cell in row))
    console.print(shown)
    console.print()
