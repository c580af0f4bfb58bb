"""The command line: the only place that prints or exits. Commands import what they need when they run."""

from __future__ import annotations

import errno
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from velox_eval.cli import (
    advise,
    bench,
    calibrate,
    compare,
    doctor,
    inspect,
    lm_eval,
    mechanism,
    methods,
    models,
    nightly,
    page,
    plan,
    run,
    schema,
    score,
    sweep,
    tasks,
)
from velox_eval.cli.console import CANCELLED, interrupted, plain
from velox_eval.errors import VeloxEvalError


class Commands(TyperGroup):
    """The commands; Ctrl-C ends each of them with one line and the same exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            interrupted()


app = typer.Typer(
    name="velox-eval",
    cls=Commands,
    help="Run benchmarks on real language models under KV-cache eviction, and compare what each method keeps.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("run")(run.run)
app.command("score")(score.score)
app.command("sweep")(sweep.sweep)
app.command("nightly")(nightly.nightly)
app.command("compare")(compare.compare)
app.command("page")(page.page)
app.command("plan")(plan.plan)
app.command("advise")(advise.advise)
app.command("inspect")(inspect.inspect)
app.command("lm-eval", context_settings=lm_eval.PASSED_ON, add_help_option=False)(lm_eval.lm_eval)
app.command("methods")(methods.methods)
app.command("tasks")(tasks.tasks)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(models.app, name="models")
app.command("mechanism")(mechanism.mechanism)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.command("schema")(schema.schema)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LONGEST = 200  # characters of a path in a message
USER_ERROR = 2  # also what typer exits with for an unknown option


def main() -> None:
    """Runs the command line; an error a user can act on is one line on stderr and exit code 2.

    So is what a disk refuses at a place that has no better words for it: a name that is too long, no space left.
    """
    try:
        app()
    except VeloxEvalError as error:
        print(f"velox-eval: error: {plain(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        where = "standard output" if error.filename is None else str(error.filename)[:LONGEST]
        print(f"velox-eval: error: cannot use {plain(where)}: {error.strerror}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:  # before a command began, or the second one
        sys.exit(CANCELLED)
