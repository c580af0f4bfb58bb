"""`velox-eval page`: a comparison as one HTML file, with plots and the answers side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velox_eval.cli.compare import Allow, Alpha, Baseline, Margin, Results, Runs, Score, Unfinished, compared


def page(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    baseline: Baseline = "full",
    score: Score = None,
    allow: Allow = None,
    margin: Margin = None,
    alpha: Alpha = 0.05,
    unfinished: Unfinished = False,
    results: Results = Path("results"),
) -> None:
    """Write what compare shows as a page: the table, plots, answers side by side, and the command of each run.

    One file that needs neither a server nor the network. Runs are taken or refused as by compare.
    """
    from velox_eval.cli.console import out, plain
    from velox_eval.compare.page import write_page
    from velox_eval.records.output import check_file
    from velox_eval.records.sizes import human_bytes
    from velox_eval.runs.figures import require_matplotlib

    require_matplotlib()
    check_file(output)
    found, by_id = compared(runs, results, baseline, score, allow, margin, alpha, unfinished)
    write_page(output, found, by_id)
    rows = len(found.arms())
    out().print(f"page: {plain(str(output))} ({rows} rows, {human_bytes(output.stat().st_size)})", soft_wrap=True)
