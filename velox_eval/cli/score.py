"""`velox-eval score`: a stored run, scored again without a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def score(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under --results.")],
    data: Annotated[str | None, typer.Option(help="Where the task's data is now, if it moved.")] = None,
    judge: Annotated[str | None, typer.Option(help="Another judge. (default: the run's)")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    again: Annotated[bool, typer.Option("--again", help="Score anew although that was done before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Score a stored run again, with today's scoring or another judge. The stored run stays as it is."""
    from velox_eval.cli.run import finish
    from velox_eval.records.store import find_run
    from velox_eval.runs.rescore import rescore

    command = ("velox-eval", *sys.argv[1:])
    result = rescore(find_run(run, results), results=results, data=data, judge=judge, again=again, command=command)
    finish(result, command, as_json=as_json)
