"""`velox-eval inspect`: a picture of what a method kept while one answer was written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer


def inspect(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id under --results.")],
    sample: Annotated[str | None, typer.Option(help="Index or id of the sample. (default: the first answered)")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="PNG or SVG to write. (default: inspect-<sample>.png in the run's folder)"),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Tokens between two looks at the caches.")] = 8,
    data: Annotated[str | None, typer.Option(help="Where the task's data is now, if it moved.")] = None,
    model: Annotated[str | None, typer.Option(help="Where the model is now, if it moved.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Draw which positions each layer and head kept over a stored answer, and the share of early tokens.

    Runs that sample again, one token at a time, under the run's method and settings: records do not hold positions.
    """
    from velox_eval.cli.console import out, plain, print_json
    from velox_eval.records.store import find_run
    from velox_eval.runs.figures import check_figure_path, require_matplotlib
    from velox_eval.runs.inspect import inspect_run
    from velox_eval.runs.kept_plot import draw

    require_matplotlib()
    if output is not None:
        check_figure_path(output)
    folder = find_run(run, results)
    inspection = inspect_run(folder, sample, every=every, data=data, model=model)
    path = output or folder / f"inspect-{_file_name(inspection.record.sample_id)}.png"
    draw(inspection, path)
    trace = inspection.trace
    shares = [trace.early_share(moment) for moment in range(len(trace.seen))]
    if as_json:
        document: dict[str, Any] = {
            "run_id": inspection.header.run_id,
            "sample_id": inspection.record.sample_id,
            "picture": str(path),
            "prompt_tokens": trace.prompt_tokens,
            "layers": list(trace.layers),
            "tokens_seen": list(trace.seen),
            "rows": [[int(layer.shape[1]) for layer in moment] for moment in trace.held],
            "early_share": shares,
        }
        print_json(document)
        return
    console = out()
    console.print(f"picture: {plain(str(path))}", soft_wrap=True)
    console.print(
        f"early-token share: {shares[0]:.1%} after the prompt ({trace.seen[0]} tokens), "
        f"{shares[-1]:.1%} at the end ({trace.seen[-1]} tokens); keeping everything gives 10%",
        soft_wrap=True,
    )


def _file_name(sample_id: str) -> str:
    """A sample's id, which comes from a data file, as a name that stays in its folder."""
    return re.sub(r"[^\w.+=-]+", "-", sample_id)[:80].strip("-.") or "sample"
