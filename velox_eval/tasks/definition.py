"""Reads task definitions (`tasks/<name>.toml`) and finds the folder they are in, installed or editable."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velox_eval.errors import DataError
from velox_eval.tasks.base import TaskInfo

_PACKAGE = Path(__file__).resolve().parents[1]
_FIELDS: Mapping[str, type] = {
    "name": str,
    "summary": str,
    "paper": str,
    "version": int,
    "primary": str,
    "accuracy": str,
    "sources": list,
    "changelog": list,
}


def task_files() -> Path:
    """Returns the folder of task definitions and prompt material: inside the wheel, else beside the package.

    Raises DataError when neither is there.
    """
    for folder in (_PACKAGE / "_task_files", _PACKAGE.parent / "tasks"):
        if folder.is_dir():
            return folder
    raise DataError(f"no task definitions in {_PACKAGE / '_task_files'}; reinstall velox-eval")


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the table of a TOML file. Raises DataError for one that cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable TOML file: {error}") from None


def read_definition(name: str, folder: Path | None = None) -> TaskInfo:
    """Returns the definition of task `name`, everything beyond the common fields in `settings`.

    `folder` is where `<name>.toml` is (default: `task_files()`). Raises DataError naming file and field.
    """
    path = (folder or task_files()) / f"{name}.toml"
    if not path.is_file():
        raise DataError(f"{path}: no definition of task {name!r}")
    table = read_toml(path)
    known: dict[str, Any] = {}
    for field, kind in _FIELDS.items():
        value = table.pop(field, None)
        if not isinstance(value, kind) or isinstance(value, bool) or not value:
            raise DataError(f"{path}: field {field!r} must be a non-empty {kind.__name__}, got {value!r}")
        known[field] = tuple(value) if isinstance(value, list) else value
    known["higher_is_better"] = table.pop("higher_is_better", True)
    if not isinstance(known["higher_is_better"], bool):
        raise DataError(f"{path}: field 'higher_is_better' must be true or false, got {known['higher_is_better']!r}")
    if known["name"] != name:
        raise DataError(f"{path}: field 'name' is {known['name']!r}; it must be the file's own name, {name!r}")
    return TaskInfo(**known, settings=table)
