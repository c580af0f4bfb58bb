"""--data PATH: what is read, and the one line that says where bad data is bad."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.conftest import Writer, make_row
from velox_eval.errors import DataError
from velox_eval.tasks import TaskData, TaskOptions, get_task
from velox_eval.tasks.sources import read_rows


def load(path: Path, **options: Any) -> TaskData:
    return get_task("longgenbench", TaskOptions(data=str(path), **options)).load()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return


@pytest.mark.usefixtures("no_network")
def test_the_same_file_gives_the_same_samples_without_a_network(write_rows: Writer) -> None:
    path = write_rows(make_row(), make_row(number=9), make_row())
    first, second = load(path), load(path)
    assert first == second
    assert len({sample.sample_id for sample in first.samples}) == 3
    assert first.source == "data"
    assert first.origin == "rows.jsonl"
    assert first.incomplete is None


def test_samples_are_addressed_by_content(write_rows: Writer) -> None:
    rows = [make_row(), make_row(number=9)]
    array, lines = load(write_rows(*rows, name="rows.json")), load(write_rows(*rows))
    assert array.sha256 == lines.sha256
    assert array.samples == lines.samples
    answered = load(write_rows(*({**reversed_row(row), "response": "text"} for row in rows), name="answered.jsonl"))
    assert answered.sha256 == lines.sha256
    changed = load(write_rows(rows[0], make_row(number=10)))
    assert changed.sha256 != lines.sha256
    assert changed.samples[0].sample_id == lines.samples[0].sample_id
    assert changed.samples[1].sample_id != lines.samples[1].sample_id


def reversed_row(row: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(row.items()))


def test_a_limit_is_said_and_hashed(write_rows: Writer) -> None:
    path = write_rows(make_row(), make_row(number=9), make_row())
    part = load(path, limit=2)
    assert (len(part.samples), part.total, part.incomplete) == (2, 3, "first 2 of 3 samples")
    assert part.sha256 != load(path).sha256
    assert load(path, limit=99).incomplete is None


def test_a_byte_order_mark_blank_lines_and_windows_ends_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps(make_row()).encode() + b"\r\n\r\n")
    assert len(load(path).samples) == 1


def test_one_object_over_several_lines_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(make_row(), indent=2))
    assert load(path).samples[0].data == make_row()


def test_large_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_text(json.dumps([make_row(prompt="word " * 2_000_000 + "#*# Floor 1:"), make_row()]))
    assert len(load(path).samples[0].data["prompt"]) > 10_000_000


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"prompt": 3}, "prompt", "expected a string, got '3'"),
        ({"prompt": None}, "prompt", "expected a string, got null"),
        ({"prompt": " "}, "prompt", "is empty"),
        ({"prompt": "\ud800"}, "prompt", "surrogate"),
        ({"type": ["Floor"]}, "type", "expected a string, got a list"),
        ({"number": "4"}, "number", "expected a whole number, got '4'"),
        ({"number": 4.0}, "number", "expected a whole number"),
        ({"number": True}, "number", "expected a whole number, got true or false"),
        ({"number": 0}, "number", "is 0; it must be at least 1"),
        ({"checks_once": ["bakery"]}, "checks_once", "expected an object of entry -> description, got a list"),
        ({"checks_range": {"two": "bakery"}}, "checks_range", "entry 'two' is no whole number"),
        ({"checks_range": {"-1": "bakery"}}, "checks_range", "entry '-1' is no whole number"),
        ({"checks_range": {"1.0": "bakery"}}, "checks_range", "entry '1.0' is no whole number"),
        ({"checks_range": {"0": "bakery"}}, "checks_range", "entry 0 must be at least 1"),
        ({"checks_periodic": {"2": "spa", "02": "gym"}}, "checks_periodic", "entry 2 is given twice"),
        ({"checks_periodic": {"2": ""}}, "checks_periodic", "entry 2 needs a description"),
        ({"checks_periodic": {"2": None}}, "checks_periodic", "entry 2 needs a description, got null"),
    ],
)
def test_a_bad_value_names_file_line_and_field(
    write_rows: Writer, name: str, changes: dict[str, Any], field: str, problem: str
) -> None:
    path = write_rows(make_row(), make_row(**changes), name=name)
    with pytest.raises(DataError) as raised:
        load(path)
    line = 2 if name == "rows.jsonl" else 1
    assert str(raised.value).startswith(f"{path}, line {line}, field {field!r}: ")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("field", list(make_row()))
def test_a_missing_field_is_named(write_rows: Writer, field: str) -> None:
    row = make_row()
    del row[field]
    with pytest.raises(DataError, match=f"line 2, field '{field}': is missing"):
        load(write_rows(make_row(), row))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"[]", "holds no rows"),
        (b"[1, 2]", "line 1: expected an object, got '1'"),
        (b'{"a": 1}\n[2]\n', "line 2: expected an object, got a list"),
        (b'{"a": 1}\n{"a": \n', "line 2: broken JSON"),
        (b'[{"a": 1},\n {"a": }]', "line 2: broken JSON"),
        (b'[{"a": 1}\n {"a": 2}]', "line 2: broken JSON: expected ',' or ']'"),
        (b'[{"a": 1},\n', "line 2: broken JSON"),
        (b'[{"a": 1}] x', "more text after the end"),
        (b"just text", "line 1: broken JSON"),
        (b'{"a": 1, "a": 2}', "line 1: the key 'a' is given twice"),
        (b'[\n{"c": {"3": "x", "3": "y"}}]', "line 2: the key '3' is given twice"),
        (b'{"a": NaN}', "line 1: NaN is no JSON value"),
        (b'{"a": 1}\n{"a": "caf\xe9"}', "line 2: not UTF-8 text (byte 19)"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 1: nested too deeply"),
        (b'[\n{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]", "line 2: nested too deeply"),
        (b'{"a": 1}\n{"a": ' + b"9" * 5000 + b"}", "line 2: a number of 5,000 digits is too long"),
        (b'[{"a": ' + b"9" * 5000 + b"}]", "line 1: a number of 5,000 digits is too long"),
        (b'{"a": -1e999}', "line 1: the number -1e999 is too large"),
        (b'{"prompt": ["a", "b"], "number": [1, 2]}', "laid out by column"),
        (b'{"prompt": ["a"],\n "number": [1]}', "laid out by column"),
    ],
)
def test_a_bad_file_names_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        read_rows(path, get="get it")
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("no_network")
def test_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        load(tmp_path / "none.json")
    assert str(tmp_path / "none.json") in str(raised.value)
    assert "https://github.com/mozhu621/LongGenBench" in str(raised.value)
    assert "Dataset_short.json" in str(raised.value)


@pytest.mark.usefixtures("no_network")
def test_a_loading_script_and_a_directory_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "LongGenBench.py"
    script.write_text("import datasets")
    with pytest.raises(DataError, match="loading script"):
        load(script)
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path)
