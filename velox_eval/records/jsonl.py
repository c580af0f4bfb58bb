"""JSONL that survives being killed: every line is on disk before the next, and a half-written last one is known."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jsonlines

from velox_eval.errors import StoreError


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


dumps = partial(json.dumps, ensure_ascii=False, allow_nan=False)


def loads(text: str | bytes) -> Any:
    """Returns the value of JSON text. Raises ValueError for what is none: NaN, or nested too deeply to be read."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class Lines(NamedTuple):
    """What a file holds: whole rows, the byte length they take, and the half line after them (empty: none)."""

    rows: list[dict[str, Any]]
    length: int
    rest: bytes


def read(path: Path) -> Lines:
    """Returns the rows of `path` without touching it; a missing file has none.

    A last line that lacks only its line end is a row. Raises StoreError naming file and line for any other
    line that is not a JSON object, and for a file that cannot be read.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    length = data.rfind(b"\n") + 1
    rows: list[dict[str, Any]] = []
    reader = jsonlines.Reader(io.BytesIO(data[:length]), loads=loads)
    try:
        rows.extend(reader.iter(type=dict))
    except jsonlines.InvalidLineError as error:
        raise StoreError(f"{path}:{error.lineno}: not a JSON object ({error}); repair or remove that line") from error
    rest = data[length:]
    try:
        last = loads(rest)
    except ValueError:
        return Lines(rows, length, rest)
    if not isinstance(last, dict):
        return Lines(rows, length, rest)
    return Lines([*rows, last], len(data), b"")


def repair(path: Path) -> str | None:
    """Makes `path` end after its last whole row; returns what was done in one sentence, None if nothing."""
    lines = read(path)
    if not path.exists() or (not lines.rest and _ends_whole(path)):
        return None
    with path.open("r+b") as file:
        file.truncate(lines.length)
        if not lines.rest:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not lines.rest:
        return None
    return f"{path}: removed a half-written last line ({len(lines.rest)} bytes); its sample runs again"


def _ends_whole(path: Path) -> bool:
    data = path.read_bytes()
    return not data or data.endswith(b"\n")


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Adds one line and waits until it is on disk."""
    with path.open("a", encoding="utf-8") as file:
        jsonlines.Writer(file, dumps=dumps, flush=True).write(row)
        os.fsync(file.fileno())


def rewrite(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Puts `rows` in the place of the file's content, all or nothing."""
    text = io.StringIO()
    jsonlines.Writer(text, dumps=dumps).write_all(rows)
    replace(path, text.getvalue())


def replace(path: Path, text: str) -> None:
    """Puts `text` in the place of the file's content, all or nothing, on disk when it returns."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
