"""Reads the rows of data files, local or official, and says exactly where a bad one is.

Local files are read without `datasets` and without any network. Official ones go through `datasets`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from zipfile import BadZipFile

from velox_eval.engine.model_store import cache_directory
from velox_eval.errors import DataError
from velox_eval.tasks.base import Sample

RAW_BASE_VARIABLE = "VELOX_EVAL_RAW_BASE"
_RAW_BASE = "https://raw.githubusercontent.com"
HUB_BASE_VARIABLE = "HF_ENDPOINT"  # what datasets itself goes by
_HUB_BASE = "https://huggingface.co"
T = TypeVar("T")
_OFF = {"", "0", "false", "no", "off"}


@dataclass(frozen=True)
class Row:
    """One object of a data file; `where` is its place for messages: `file.jsonl, line 12`."""

    where: str
    value: Mapping[str, Any]

    def fail(self, field: str, problem: str) -> NoReturn:
        """Raises DataError naming file, line and field."""
        raise DataError(f"{self.where}, field {field!r}: {problem}")

    def text(self, field: str, *, empty: bool = False, most: int | None = None) -> str:
        """Returns a string field of at most `most` characters.

        Raises DataError when it is missing, no string, too long, or empty unless allowed.
        """
        value = self.need(field)
        if not isinstance(value, str):
            self.fail(field, f"expected a string, got {describe(value)}")
        if most is not None and len(value) > most:
            self.fail(field, f"has {len(value):,} characters; at most {most:,} are taken")
        if not value.strip() and not empty:
            self.fail(field, "is empty")
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(field, "holds half of a surrogate pair, which is no text")
        return value

    def texts(self, field: str) -> list[str]:
        """Returns a field that is a list of at least one string. Raises DataError otherwise."""
        value = self.need(field)
        if not isinstance(value, list) or not value:
            self.fail(field, f"expected a list of at least one string, got {describe(value)}")
        return [Row(self.where, {field: item}).text(field, empty=True) for item in value]

    def whole(self, field: str, *, least: int) -> int:
        """Returns an integer field of at least `least`. Raises DataError otherwise."""
        value = self.need(field)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(field, f"expected a whole number, got {describe(value)}")
        if value < least:
            self.fail(field, f"is {str(value)[:40]}; it must be at least {least}")
        return value

    def need(self, field: str) -> Any:
        """Returns a field's value. Raises DataError when the row has no such field."""
        if field not in self.value:
            self.fail(field, f"is missing (fields here: {', '.join(self.value) or 'none'})")
        return self.value[field]


def describe(value: Any) -> str:
    """Returns a short description of a JSON value for messages."""
    names = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return names.get(type(value)) or f"{str(value)[:40]!r}"


def read_rows(path: Path, *, get: str) -> list[Row]:
    """Returns the rows of a JSON array or JSONL file, told apart by content.

    `get` says how to get the file, for the message when it is missing. Raises DataError naming file and line
    for a missing, empty or undecodable file, broken JSON, an object that names one key twice, a row that is no
    object, and JSON laid out by column.
    """
    if path.suffix == ".py":
        raise DataError(f"{path}: is a loading script; give the data itself, a JSON array or JSONL file")
    return parse_rows(read_text(path, get=get, kind="a JSON array or JSONL file"), str(path))


def read_text(path: Path, *, get: str, kind: str) -> str:
    """Returns the text of a file without its byte order mark; `get` and `kind` are for messages.

    Raises DataError for a missing file, and one that cannot be read or is no UTF-8, naming the line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {get}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {kind} is needed") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 text (byte {error.start})") from None


def parse_rows(text: str, name: str) -> list[Row]:
    """Returns the rows of JSON text (array or JSONL); `name` is its name in messages. Raises as `read_rows`."""
    start = text.lstrip()[:1]
    if not start:
        raise DataError(f"{name}: is empty; a JSON array or JSONL of objects is needed")
    pairs = list(_array_items(text, name) if start == "[" else _line_items(text, name))
    if not pairs:
        raise DataError(f"{name}: holds no rows")
    rows = []
    for line, value in pairs:
        if not isinstance(value, dict):
            raise DataError(f"{name}, line {line}: expected an object, got {describe(value)}")
        rows.append(Row(f"{name}, line {line}", value))
    _refuse_columns(rows, name)
    return rows


def _refuse_columns(rows: Sequence[Row], name: str) -> None:
    values = list(rows[0].value.values())
    if len(rows) == 1 and values and all(isinstance(value, list) for value in values):
        raise DataError(f"{name}: is laid out by column (field -> list of values); write one object for each row")


def _line_items(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Objects one a line; or the one object the whole text is (a pretty-printed row or table)."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        _load(lines[0][1])
    except json.JSONDecodeError:
        try:
            yield lines[0][0], _load(text)
            return
        except (json.JSONDecodeError, _BadValue):
            pass  # not one object either: the loop below says which line is broken
    except _BadValue:
        pass
    for number, line in lines:
        try:
            yield number, _load(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}, line {number}: broken JSON: {error.msg}") from None
        except _BadValue as error:
            raise DataError(f"{name}, line {number}: {error}") from None


def _array_items(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Items of a top-level array with the line each starts on."""
    decoder = json.JSONDecoder(**_HOOKS)
    position = _skip_blank(text, 0) + 1
    line, counted, separator = 1, 0, True
    while True:
        position = _skip_blank(text, position)
        line += text.count("\n", counted, position)
        counted = position
        mark = text[position : position + 1]
        if mark == "]":
            break
        if not separator:
            raise DataError(f"{name}, line {line}: broken JSON: expected ',' or ']' between rows")
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}, line {error.lineno}: broken JSON: {error.msg}") from None
        except _BadValue as error:
            raise DataError(f"{name}, line {line}: {error}") from None
        except RecursionError:
            raise DataError(f"{name}, line {line}: {_TOO_DEEP}") from None
        yield line, value
        position = _skip_blank(text, position)
        separator = text[position : position + 1] == ","
        position += separator
    if text[position + 1 :].strip():
        raise DataError(f"{name}, line {line}: more text after the end of the array")


def _skip_blank(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


class _BadValue(Exception):
    """JSON that parses and is still unusable."""


def _load(text: str) -> Any:
    try:
        return json.loads(text, **_HOOKS)
    except RecursionError:
        raise _BadValue(_TOO_DEEP) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise _BadValue(f"the key {key!r} is given twice in one object")
        table[key] = value
    return table


def _no_constant(name: str) -> Any:
    raise _BadValue(f"{name} is no JSON value")


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # longer than Python reads
        raise _BadValue(f"a number of {len(digits):,} digits is too long") from None


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _BadValue(f"the number {text[:40]} is too large")
    return value


_TOO_DEEP = "nested too deeply"
_HOOKS: Mapping[str, Any] = {
    "object_pairs_hook": _unique,
    "parse_constant": _no_constant,
    "parse_int": _whole,
    "parse_float": _real,
}


def refuse_repeated(rows: Iterable[Row], field: str) -> None:
    """Raises DataError when two rows hold one value in `field`; rows without it are none of its business."""
    first: dict[str, str] = {}
    for row in rows:
        if field not in row.value:
            continue
        value = json.dumps(row.value[field])
        if value in first:
            row.fail(field, f"{value[:100]} is on {first[value]} too")
        first[value] = row.where


def content_sha256(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the SHA-256 of rows by content: key order and layout of the file do not matter, row order does."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=True, allow_nan=False).encode() + b"\n")
    return digest.hexdigest()


def samples_sha256(samples: Iterable[Sample]) -> str:
    """Returns the SHA-256 of samples by id and content, in order: what a record knows a task's data by."""
    return content_sha256({"sample_id": sample.sample_id, **sample.data} for sample in samples)


def github_page(repository: str, revision: str) -> str:
    """Returns where a person finds a repository's files at a pinned revision, for messages."""
    return f"https://github.com/{repository}/tree/{revision}"


def hub_page(repository: str, revision: str) -> str:
    """Returns where a person finds a data set repository's files at a pinned revision, for messages."""
    return f"{_HUB_BASE}/datasets/{repository}/tree/{revision}"


def github_raw_url(repository: str, revision: str, file: str) -> str:
    """Returns the raw URL of a repository's file at a pinned revision.

    $VELOX_EVAL_RAW_BASE replaces https://raw.githubusercontent.com (a mirror with the same paths).
    """
    base = os.environ.get(RAW_BASE_VARIABLE) or _RAW_BASE
    return f"{base.rstrip('/')}/{repository}/{revision}/{file}"


def hub_url(repository: str, revision: str, file: str) -> str:
    """Returns the URL of a data set repository's file at a pinned revision; $HF_ENDPOINT replaces the hub's address."""
    base = os.environ.get(HUB_BASE_VARIABLE) or _HUB_BASE
    return f"{base.rstrip('/')}/datasets/{repository}/resolve/{revision}/{file}"


def read_official(url: str, *, instead: str | None = None) -> list[Row]:
    """Returns the rows of a JSON or JSONL file at `url`. Raises as `official`, and as `read_rows` for its content."""
    return official(url, lambda text: parse_rows(text, url), instead=instead)


def official(url: str, parse: Callable[[str], T], *, instead: str | None = None) -> T:
    """Returns what `parse` makes of the text of a file at `url`, a pinned revision, read through `datasets`.

    `zip://MEMBER::URL` is one file of an archive. A file once fetched and parsed is kept in the cache directory and
    read from there, offline too; what a replaced base URL serves is never kept. Raises DataError naming the URL and
    what to do `instead` (default: give the file with `--data`) when it cannot be fetched (offline mode set, no
    network, no such file).
    """
    if not url.rsplit("::", 1)[-1].startswith((_RAW_BASE + "/", _HUB_BASE + "/")):
        return parse(_fetch(url, instead))
    name = url.split("::")[0].rsplit("/", 1)[-1]
    kept = cache_directory() / "official" / hashlib.sha256(url.encode()).hexdigest()[:16] / name
    if kept.is_file():
        return parse(kept.read_text(encoding="utf-8"))
    text = _fetch(url, instead)
    parsed = parse(text)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=kept.parent, delete=False) as part:
        part.write(text)
    os.replace(part.name, kept)
    return parsed


def _fetch(url: str, instead: str | None) -> str:
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").strip().lower() not in _OFF:
            raise DataError(_how_to_get(url, instead, f"{variable} is set"))
    import datasets
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the transport's, not always an OSError

    datasets.disable_progress_bars()
    # As one text document: the JSON builder may turn the check tables, whose keys differ from row to row, into
    # structs filled with nulls. A cache of its own: the shared one serves old content for a URL without ETag.
    with tempfile.TemporaryDirectory(prefix="velox-eval-") as cache:
        try:
            table = datasets.load_dataset(
                "text", data_files={"test": url}, split="test", sample_by="document", cache_dir=cache
            )
            return str(table[0]["text"])
        except (OSError, RuntimeError, ValueError, HTTPError, BadZipFile, datasets.exceptions.DatasetsError) as error:
            raise DataError(_how_to_get(url, instead, f"{type(error).__name__}: {_first_line(error)}")) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _how_to_get(url: str, instead: str | None, reason: str) -> str:
    address = url.rsplit("::", 1)[-1]
    file = address.rsplit("/", 1)[-1]
    if instead is None:
        archive = address != url
        instead = "unpack it and give its folder with --data" if archive else f"give its place with --data PATH/{file}"
    return f"cannot fetch {url} ({reason}); download {file} from there and {instead}"
