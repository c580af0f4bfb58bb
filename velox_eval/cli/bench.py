"""`velox-eval bench`: what methods cost, in steps, prompts and whole runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from velox_eval.runs.bench import Report

PARTS = ("decode", "prefill", "run")


def bench(
    suite: Annotated[
        str | None, typer.Option(help="Measure a suite's rows instead: speed, or a TOML file of yours.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Repeatable. (default: every constant-size method)")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Rows; repeatable. (default: 512)")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Sequences that decode together; repeatable. (default: 8)")
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(help="Tokens of the prompt, and rows of the full cache; repeatable. (default: 4 x budget)"),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the methods; repeatable.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(PARTS)}; repeatable. (default: all of them)")
    ] = None,
    samples: Annotated[int, typer.Option(help="Bundled samples of the whole run.")] = 8,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer of the whole run.")] = 64,
    model: Annotated[str, typer.Option(help="Known name, mlx-lm directory or hub id.")] = "smollm2-135m",
    steps: Annotated[int, typer.Option(help="Decode steps timed together.")] = 8,
    repeats: Annotated[int, typer.Option(help="Times each decode step is timed.")] = 5,
    prefill_repeats: Annotated[int, typer.Option(help="Times each prompt is timed.")] = 3,
    prefill_step: Annotated[int, typer.Option(help="Prompt tokens a chunk.")] = 256,
    veloxquant: Annotated[bool, typer.Option(help="Time the installed package's own caches too.")] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a Markdown page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Time methods against plain caches of as many rows, the full cache, and the installed package.

    Everything is timed in turns in one process, on this machine; nothing else should run on it meanwhile.
    """
    from velox_eval.cli.console import err, plain
    from velox_eval.cli.run import parse_settings
    from velox_eval.errors import ConfigError
    from velox_eval.records.output import check_file, make_folder, write_text
    from velox_eval.runs.bench import BenchOptions
    from velox_eval.runs.bench import bench as measure
    from velox_eval.runs.bench_report import markdown
    from velox_eval.runs.bench_suite import asked_rows, read_suite

    if output is not None:
        make_folder(output.parent)
        check_file(output)
    if suite is not None:
        for name, given in (("method", method), ("budget", budget), ("batch", batch), ("context", context)):
            if given:
                raise ConfigError(f"--suite {suite} names its own methods and sizes: leave out --{name}")
        read = read_suite(suite)
        rows, remarks = read.rows, read.remarks
    else:
        remarks = ()
        rows = asked_rows(
            methods=method or [],
            budgets=budget or [],
            batches=batch or [],
            contexts=context or [],
            settings=parse_settings(settings or []),
            measures=only or PARTS,
            samples=samples,
            max_tokens=max_tokens,
        )
    options = BenchOptions(
        rows=rows,
        suite=suite,
        remarks=remarks,
        model=model,
        steps=steps,
        repeats=repeats,
        prefill_repeats=prefill_repeats,
        prefill_step=prefill_step,
        veloxquant=veloxquant,
        command=("velox-eval", *sys.argv[1:]),
    )
    console = err()
    report = measure(options, lambda text: None if quiet else console.print(plain(text), soft_wrap=True))
    if output is not None:
        write_text(output, markdown(report) + "\n")
    _show(report, as_json=as_json)


def _show(report: Report, *, as_json: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from velox_eval.cli.console import out, plain, print_json
    from velox_eval.runs.bench_report import document, sheets, totals

    if as_json:
        print_json(document(report))
        return
    console = out()
    for sheet in sheets(report):
        table = Table(title=sheet.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for column in sheet.columns:
            table.add_column(column, overflow="fold")
        for row in sheet.rows:
            table.add_row(*(plain(cell) for cell in row))
        console.print(table)
    for note in report.notes:
        console.print(plain(note), soft_wrap=True)
    if report.suite is not None:
        console.print(totals(report.lines))
