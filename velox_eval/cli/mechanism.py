"""`velox-eval mechanism`: the geometry studies of MorphKV and KVzip, with controls, in a minute and without a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from velox_eval.mechanism.document import Mechanism
    from velox_eval.mechanism.tables import Table

BROKEN = 1  # exit code when a check does not hold


def mechanism(
    study: Annotated[str, typer.Argument(help="morphkv, kvzip or all.")] = "all",
    methods: Annotated[
        str, typer.Option(help="More arms: all, or methods separated by commas; documents: theirs alone.")
    ] = "documents",
    seeds: Annotated[int, typer.Option(min=1, help="Data seeds; tests need 20 or so.")] = 24,
    model: Annotated[
        str | None, typer.Option(help="Also record this model's attention and what methods keep of it.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Rows kept on the model.")] = 64,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for results.json, mechanism.md and mechanism.svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Show what each rule keeps where relevance is known, and which claims survive the controls.

    Exits with 1 when a mechanism does not work any more.
    """
    from velox_eval.cli.console import err, plain, print_json
    from velox_eval.mechanism.document import document
    from velox_eval.mechanism.run import check_output, run_mechanism, write

    if output is not None:
        check_output(output)
    loaded = None
    if model is not None:
        from velox_eval.engine.models import load_model

        loaded = load_model(model)

    def told(name: str) -> None:
        if err().is_terminal:
            err().print(plain(f"{name} ..."), end="\r\x1b[K", soft_wrap=True)

    found = run_mechanism(
        study,
        methods=methods,
        seeds=seeds,
        loaded=loaded,
        budget=budget,
        command=("velox-eval", *sys.argv[1:]),
        told=told,
    )
    written = write(found, output) if output is not None else []
    if as_json:
        print_json(document(found))
    else:
        _show(found, written)
    for check in found.failed:
        err().print(plain(f"broken: {check.name}"), soft_wrap=True)
    if found.failed:
        raise typer.Exit(BROKEN)


def _show(found: Mechanism, written: list[Path]) -> None:
    from velox_eval.cli.console import out, plain
    from velox_eval.mechanism import tables

    console = out()
    for table in (tables.matrix(found.study), tables.figures(found)):
        _print(console, table)
    for says, verdict, left in tables.claims(found).rows:
        console.print(plain(f"{verdict}: {says}"), style="bold")
        console.print(plain(f"    {left}"))
    if found.real is not None:
        _print(console, tables.recall(found.real))
        for one in found.real.refused:
            console.print(plain(f"{one.method} could not run: {one.reason}"), soft_wrap=True)
    console.print(f"{len(found.checks) - len(found.failed)} of {len(found.checks)} checks hold")
    for path in written:
        console.print(plain(f"written: {path}"), soft_wrap=True)


def _print(console: Console, table: Table) -> None:
    from rich.table import Table as Drawn

    from velox_eval.cli.console import plain

    drawn = Drawn(title=plain(table.title), title_justify="left")
    for at, column in enumerate(table.columns):
        drawn.add_column(plain(column), justify="left" if at == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(plain(cell) for cell in row))
    console.print(drawn)
