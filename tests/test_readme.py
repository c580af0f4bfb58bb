"""The README's commands parse, and its method table is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from typer.main import get_command

from velox_eval.cli import app
from velox_eval.methods import METHODS

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("velox-eval ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    """Every option exists and takes what it is given; nothing runs."""
    command: click.Command = get_command(app)
    arguments = shlex.split(line)[1:]
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        name = arguments.pop(0)
        assert name in command.commands, name
        command = command.commands[name]
    command.make_context(command.name, arguments)


def test_scripts_exist() -> None:
    root = Path(__file__).resolve().parent.parent
    scripts = {line for block in BLOCKS for line in block.split() if line.startswith("scripts/")}
    assert scripts >= {"scripts/run", "scripts/test"}
    assert all((root / script).stat().st_mode & 0o111 for script in scripts)


def test_every_method_is_in_the_table() -> None:
    table = README.split("\n## Methods\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)$", table, flags=re.MULTILINE))
    for name, spec in METHODS.items():
        assert name in rows, name
        assert ("paper" in rows[name].split("|")[2]) == ("paper" in spec.variants), name
        for number in re.findall(r"arXiv:\d{4}\.\d{5}", spec.paper):
            assert number in rows[name], name
