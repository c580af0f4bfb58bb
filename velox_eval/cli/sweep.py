"""`velox-eval sweep`: a matrix of runs, then one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from velox_eval.compare.comparison import Comparison
    from velox_eval.pipelines.cluster_connect import ClusterOptions
    from velox_eval.pipelines.matrix import SweepPlan
    from velox_eval.pipelines.suite import Suite
    from velox_eval.pipelines.sweep import SweepResult

FAILED_RUNS = 1
CLUSTER = "Several machines"


def sweep(
    suite: Annotated[str, typer.Argument(help="A suite's name (see --list), or a TOML file of yours.")] = "",
    list_suites: Annotated[bool, typer.Option("--list", help="List the suites that come with velox-eval.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and what it will take; run nothing.")
    ] = False,
    model: Annotated[list[str] | None, typer.Option(help="Instead of the suite's models; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(help="Instead of the tasks' limits: samples of each run.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    again: Annotated[bool, typer.Option("--again", help="Start every run anew.")] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Work on this Dask scheduler's workers: tcp://HOST:PORT.", rich_help_panel=CLUSTER),
    ] = None,
    local_workers: Annotated[
        int | None, typer.Option(help="Work in so many processes on this machine.", rich_help_panel=CLUSTER)
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Certificate authority of a tls:// scheduler.", rich_help_panel=CLUSTER)
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="This machine's certificate.", rich_help_panel=CLUSTER)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.", rich_help_panel=CLUSTER)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run methods x parameters x budgets x tasks x models x seeds, and compare what came of it.

    The same command resumes: runs that are finished are shown, not repeated. A run that fails does not stop the
    others. Exit code: 0 all runs done, 1 some failed, 2 it cannot run as asked, 130 interrupted.
    """
    from velox_eval.cli.compare import show as show_comparison
    from velox_eval.cli.console import print_json
    from velox_eval.cli.sweep_view import (
        MatrixTerminal,
        SweepTerminal,
        plan_document,
        run_document,
        show_plan,
        show_result,
    )
    from velox_eval.engine.models import check_name
    from velox_eval.errors import ConfigError
    from velox_eval.pipelines.matrix import plan_sweep
    from velox_eval.pipelines.suite import read_suite
    from velox_eval.pipelines.sweep import sweep as run_sweep

    if list_suites:
        _list(as_json=as_json)
        return
    if not suite:
        raise ConfigError("no suite named: velox-eval sweep SUITE; --list shows those that come with velox-eval")
    cluster = _cluster(scheduler, local_workers, tls_ca, tls_cert, tls_key)
    chosen = changed(read_suite(suite), model, limit)
    if cluster is None:  # else the workers' models count
        for name in chosen.models:
            check_name(name)
    plan = plan_sweep(chosen, results=results, again=again)
    if not as_json:
        show_plan(plan, results)
    if dry_run:
        if as_json:
            print_json(plan_document(plan))
        return
    if cluster is None:
        result = run_sweep(plan, SweepTerminal(quiet=quiet))
    else:
        from velox_eval.pipelines.cluster import sweep_on

        result = sweep_on(cluster, plan, MatrixTerminal(quiet=quiet))
    found = _compared(result)
    if as_json:
        compared = None if found is None else found.model_dump(mode="json")
        runs = [run_document(run) for run in result.runs]
        print_json({**plan_document(plan), "results": runs, "comparison": compared})
    else:
        show_result(result)
        if found is not None:
            show_comparison(found)
    finish(plan, result)


def _compared(result: SweepResult) -> Comparison | None:
    """The runs that are through, beside the full cache's where those are among them; None: no run is."""
    from velox_eval.compare.decide import compare
    from velox_eval.pipelines.suite import BASELINE
    from velox_eval.records.store import load_run

    runs = [load_run(path) for path in result.folders]
    baseline = BASELINE if any(run.header.method.name == BASELINE for run in runs) else None
    return compare(runs, baseline, split=True) if runs else None


def _cluster(
    scheduler: str | None, local_workers: int | None, ca: Path | None, cert: Path | None, key: Path | None
) -> ClusterOptions | None:
    """Returns where the work goes; None: this process. Raises ConfigError for options that do not go together."""
    from velox_eval.errors import ConfigError
    from velox_eval.pipelines.cluster_connect import ClusterOptions

    if scheduler is None and local_workers is None:
        if ca or cert or key:
            raise ConfigError("--tls-ca, --tls-cert and --tls-key are for --scheduler or --local-workers")
        return None
    return ClusterOptions(scheduler, local_workers, ca, cert, key)


def changed(suite: Suite, models: Sequence[str] | None, limit: int | None) -> Suite:
    """Returns the suite with other models and limits where they are given. Raises ConfigError for a bad limit."""
    from velox_eval.errors import ConfigError

    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit} must be at least 1")
    tasks = suite.task if limit is None else tuple(task.model_copy(update={"limit": limit}) for task in suite.task)
    return suite.model_copy(update={"task": tasks, "models": tuple(models) if models else suite.models})


def _list(*, as_json: bool) -> None:
    from velox_eval.cli.console import out, print_json
    from velox_eval.runs.suite_files import suite_names

    names = suite_names("sweep")
    if as_json:
        print_json(names)
        return
    for name, summary in names.items():
        out().print(f"{name:10} {summary}", soft_wrap=True)


def finish(plan: SweepPlan, result: SweepResult) -> None:
    """Names on stderr what failed and what is left, and exits with the code that says how it went."""
    from velox_eval.cli.console import err, interrupted, plain

    say = err().print
    for run in result.failed:
        say(plain(f"failed: {run.planned.label}: {run.error}"), soft_wrap=True)
    if result.interrupted:
        done = sum(run.header is not None and run.header.status == "success" for run in result.runs)
        interrupted(f"{done} of {len(plan.runs)} runs are done; the same command goes on.")
    if result.failed:
        say(f"velox-eval: {len(result.failed)} of {len(plan.runs)} runs failed; the same command tries them again")
        raise typer.Exit(FAILED_RUNS)
