"""The options about judges that `run` and `score` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from velox_eval.runs.judging import JudgeOptions

_PANEL = "Judge"
JUDGE_HELP = "Judge of open answers: rules, mlx:MODEL or openai:MODEL@URL."

Repeats: Any = Annotated[
    int | None,
    typer.Option(
        "--judge-repeats",
        help="Ask each question so many times; the majority or mean decides. (default: 1, or the run's)",
        rich_help_panel=_PANEL,
    ),
]
Concurrency: Any = Annotated[
    int, typer.Option("--judge-concurrency", help="Requests to an address at a time.", rich_help_panel=_PANEL)
]
Timeout: Any = Annotated[
    float, typer.Option("--judge-timeout", help="Seconds a request may take.", rich_help_panel=_PANEL)
]
Cache: Any = Annotated[
    Path | None,
    typer.Option("--judge-cache", help="Folder of replies. (default: in the user's cache)", rich_help_panel=_PANEL),
]


def judge_options(repeats: int | None, concurrency: int, timeout: float, cache: Path | None) -> JudgeOptions:
    """Returns what was given as options of a judge."""
    from velox_eval.runs.judging import JudgeOptions

    return JudgeOptions(repeats=repeats, concurrency=concurrency, timeout=timeout, cache=cache)
