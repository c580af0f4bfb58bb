"""`velox-eval tasks`: the benchmarks that can be run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from velox_eval.tasks.base import TaskInfo


def tasks(
    name: Annotated[str | None, typer.Argument(help="Show this task only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the tasks."""
    from velox_eval.cli.console import out, print_json
    from velox_eval.errors import ConfigError, unknown_name
    from velox_eval.tasks import LM_EVAL, TASKS, task_info

    if name is not None and name.startswith(LM_EVAL):
        raise ConfigError(f"{name} is described by lm-eval: velox-eval lm-eval ls tasks")
    if name is not None and name not in TASKS:
        raise ConfigError(unknown_name("task", name, TASKS))
    infos = [task_info(key) for key in ([name] if name is not None else sorted(TASKS))]
    if as_json:
        documents = [asdict(info) for info in infos]
        print_json(documents[0] if name is not None else documents)
        return
    console = out()
    if name is None:
        _overview(console, infos)
    else:
        _detail(console, infos[0])


def _overview(console: Console, infos: list[TaskInfo]) -> None:
    from rich.table import Table

    table = Table("task", "version", "primary score", "sources", "what")
    for info in infos:
        table.add_row(info.name, str(info.version), info.primary, ", ".join((*info.sources, "data")), info.summary)
    console.print(table)
    console.print("lm_eval/NAME is lm-eval's task NAME (velox-eval lm-eval ls tasks lists them)", soft_wrap=True)


def _detail(console: Console, info: TaskInfo) -> None:
    from rich.padding import Padding

    console.print(f"{info.name} (version {info.version})", style="bold")
    for title, text in (
        ("what", info.summary),
        ("paper", info.paper),
        ("primary", info.primary),
        ("accuracy", info.accuracy),
        ("sources", ", ".join((*info.sources, "data (--data PATH)"))),
    ):
        console.print(Padding(f"{title + ':':<10}{text}", (0, 0, 0, 2)))
    console.print(Padding("changes of scoring:", (0, 0, 0, 2)))
    for line in info.changelog:
        console.print(Padding(line, (0, 0, 0, 4)))
