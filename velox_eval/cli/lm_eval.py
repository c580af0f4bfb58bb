"""`velox-eval lm-eval`: lm-eval's command line with our model in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Everything but --results is lm-eval's to read, --help included.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def lm_eval(
    context: typer.Context,
    results: Annotated[Path, typer.Option(help="Folder of our records.")] = Path("results"),
) -> None:
    """lm-eval's own command line, with our model as `velox`; every task it evaluates also leaves a run of ours.

    Model arguments: pretrained, method, budget, keep, any parameter of the method, prefill_step, max_length, ...
    """
    from velox_eval.cli.console import err
    from velox_eval.cli.progress import TerminalObserver
    from velox_eval.tasks.lm_eval_loading import require_lm_eval

    require_lm_eval()
    from velox_eval.lm_eval_backend.launcher import launch

    for run in launch(context.args, results=results, observer=TerminalObserver(quiet=True)):
        err().print(f"{run.header.config.task.name}: {run.path}", soft_wrap=True)
