"""Suites are TOML files that say what to run. Their field `kind` says which command reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from velox_eval.errors import ConfigError, DataError, unknown_name
from velox_eval.tasks.definition import read_toml, task_files

Kind = Literal["speed", "sweep"]
COMMANDS: dict[Kind, str] = {"speed": "velox-eval bench --suite", "sweep": "velox-eval sweep"}


def suite_names(kind: Kind) -> dict[str, str]:
    """Returns name -> summary of the suites of one kind that come with velox-eval."""
    tables = {path.stem: read_toml(path) for path in sorted((task_files() / "suites").glob("*.toml"))}
    return {name: str(table.get("summary", "")) for name, table in tables.items() if table.get("kind") == kind}


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in what a TOML file holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def read_suite_file(name: str, kind: Kind) -> tuple[Path, dict[str, Any]]:
    """Returns file and table of a suite: tasks/suites/<name>.toml, or the file `name` where it ends with .toml.

    Raises ConfigError for neither, DataError for a file that is no TOML or of another kind.
    """
    if name.endswith(".toml"):
        path = Path(name).expanduser()
        if not path.exists():
            raise ConfigError(f"{path}: there is no such suite file")
    else:
        known = suite_names(kind)
        if name not in known:
            raise ConfigError(f"{unknown_name('suite', name, known)}; a file's name ends with .toml")
        path = task_files() / "suites" / f"{name}.toml"
    table = read_toml(path)
    if any("\0" in text for text in _texts(table)):
        raise DataError(f"{path}: a text holds the character \\u0000, which no name or path may")
    found = table.pop("kind", None)
    if found != kind:
        reader = next((f" (`{COMMANDS[other]}` reads {other!r})" for other in COMMANDS if other == found), "")
        raise DataError(f"{path}: kind={found!r} must be {kind!r} for `{COMMANDS[kind]}`{reader}")
    return path, table
