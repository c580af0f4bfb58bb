"""`velox-eval nightly`: a suite run anew, held against its stored baseline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from velox_eval.pipelines.nightly import NightlyResult

REGRESSION = 1
JOB_PAGE = "GITHUB_STEP_SUMMARY"


def nightly(
    suite: Annotated[str, typer.Argument(help="A suite's name (see sweep --list), or a TOML file of yours.")],
    baseline: Annotated[Path, typer.Option(help="The stored night to compare with.")],
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Store this night as the baseline, whatever it shows.")
    ] = False,
    model: Annotated[list[str] | None, typer.Option(help="Instead of the suite's models; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(help="Instead of the tasks' limits: samples of each run.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the report. (default: RESULTS/nightly/SUITE)")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Level of the tests on scores.")] = 0.05,
    speed_tolerance: Annotated[
        float, typer.Option(help="Fall of the speed ratio that counts as none, at least.")
    ] = 0.20,
    repeats: Annotated[int, typer.Option(help="Times every decode step is timed.")] = 9,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run a suite anew and compare scores, failures, bytes and speed ratios with the stored baseline.

    Writes a Markdown summary (also to $GITHUB_STEP_SUMMARY when that is set), the HTML page, a line of history and the
    trend. Exit code: 0 nothing got worse, 1 something did, 2 it could not run or cannot be compared, 130 interrupted.
    """
    from velox_eval.cli.console import err, interrupted, out, plain
    from velox_eval.cli.sweep import changed
    from velox_eval.cli.sweep_view import SweepTerminal
    from velox_eval.pipelines.nightly import nightly as run_nightly
    from velox_eval.pipelines.nightly_report import check_report, markdown, write_night_report
    from velox_eval.pipelines.suite import read_suite
    from velox_eval.pipelines.sweep import SweepResult
    from velox_eval.records.output import check_file
    from velox_eval.runs.figures import require_matplotlib

    require_matplotlib()
    asked = changed(read_suite(suite), model, limit)
    folder = output or results / "nightly" / asked.name
    check_report(folder)
    if page := os.environ.get(JOB_PAGE):
        check_file(Path(page))
    result = run_nightly(
        asked,
        baseline,
        results=results,
        update=update_baseline,
        alpha=alpha,
        speed_tolerance=speed_tolerance,
        repeats=repeats,
        observer=SweepTerminal(quiet=quiet),
    )
    if isinstance(result, SweepResult):
        interrupted("Nothing was compared; the same command starts anew.")
    files = write_night_report(result, folder)
    text = markdown(result)
    out().print(plain(text), soft_wrap=True)
    _to_job_page(text)
    err().print(f"written: {', '.join(map(str, files))}", soft_wrap=True)
    if _red(result):
        raise typer.Exit(REGRESSION)


def _red(result: NightlyResult) -> bool:
    return bool(result.regressions) and not result.updated


def _to_job_page(text: str) -> None:
    from velox_eval.errors import ConfigError

    page = os.environ.get(JOB_PAGE)
    if not page:
        return
    try:
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{JOB_PAGE}={page}: cannot be written ({error.strerror or error})") from error
