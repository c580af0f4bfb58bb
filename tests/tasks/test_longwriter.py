"""LongWriter: prompts from everywhere, token limits, scores with and without a judge that rates, bad data."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.conftest import Writer
from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, DataError
from velox_eval.judges import DIMENSIONS, RuleJudge
from velox_eval.judges.stored import StoredRatings
from velox_eval.tasks import Task, TaskData, TaskOptions, get_task


def row(**changes: Any) -> dict[str, Any]:
    return {"prompt": "Write about rain in 100 words.", "type": "nature", "length": 100, **changes}


def make(path: Path | None = None, **options: Any) -> Task:
    return get_task("longwriter", TaskOptions(data=None if path is None else str(path), **options))


def load(path: Path, **options: Any) -> TaskData:
    return make(path, **options).load()


def points(*values: int) -> dict[str, int]:
    return dict(zip(DIMENSIONS, values, strict=True))


def test_the_bundled_prompts_ask_for_100_to_4000_words_in_two_languages() -> None:
    whole = make(limit=100).load()
    lengths = [sample.data["length"] for sample in whole.samples]
    assert (min(lengths), max(lengths), whole.total) == (100, 4000, len(lengths))
    assert whole.incomplete is None
    english, chinese = make(variant="en", limit=100).load(), make(variant="zh", limit=100).load()
    assert len(english.samples) + len(chinese.samples) == whole.total
    assert all("\u4e00" <= sample.data["prompt"][0] <= "\u9fff" for sample in chinese.samples)
    assert all(sample.data["prompt"].isascii() for sample in english.samples)
    for sample in whole.samples:
        assert (
            f"{sample.data['length']:,}" in sample.data["prompt"] or str(sample.data["length"]) in sample.data["prompt"]
        )


def test_a_default_run_is_short_and_says_so() -> None:
    task = make()
    data = task.load()
    requests = [task.request(sample) for sample in data.samples]
    assert data.incomplete == f"first {len(data.samples)} of {data.total} samples"
    assert all(isinstance(request, Generate) and request.chat and not request.stop for request in requests)
    assert sum(request.max_tokens for request in requests) <= 2000
    assert len({sample.stratum for sample in data.samples}) == len(data.samples)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, [32768, 32768]),
        ({"variant": "morphkv"}, [1000, 32768]),
        ({"variant": "morphkv", "max_tokens": 50}, [50, 50]),
        ({"max_tokens": 50}, [50, 50]),
    ],
)
def test_token_limits_are_the_papers_or_morphkvs_or_the_users(
    write_rows: Writer, options: dict[str, Any], limits: list[int]
) -> None:
    task = make(write_rows(row(length=500), row(length=20000)), **options)
    assert [task.request(sample).max_tokens for sample in task.load().samples] == limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "ruler"}, "unknown variant of longwriter with source=bundled 'ruler' .known: all, en, zh"),
        ({"source": "official", "variant": "eng"}, "did you mean 'en'"),
        ({"data": "x.jsonl", "variant": "zh"}, "source=data 'zh'"),
        ({"entries": 3}, "no option 'entries'"),
        ({"data_seed": 3}, "no data_seed"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_task("longwriter", TaskOptions(**options))


def test_scores_without_a_judge_that_rates_leave_quality_out() -> None:
    task = make()
    sample = task.load().samples[0]
    scored = task.score(sample, "word " * 200, RuleJudge())
    assert sample.data["length"] == 100
    assert scored.scores["s_l"].value == pytest.approx(200 / 3)
    assert scored.scores["length_following"].value == pytest.approx(2 / 3)
    assert scored.scores["official_words"].value == 200
    assert scored.scores["long_repetition"].value is None
    assert not any(name.startswith("s_q") for name in scored.scores)
    assert scored.unscored == {}
    assert scored.details["s_q"] == "left out: judge rules@2 does not rate texts"


def test_an_empty_answer_scores_zero() -> None:
    task = make()
    scored = task.score(task.load().samples[0], "", RuleJudge())
    assert scored.scores["s_l"].value == 0
    assert scored.scores["official_words"].value == 0


@pytest.mark.parametrize(
    ("response", "words", "note"),
    [
        ("<think>a plan of many words</think>\n" + "word " * 100, 100, "finished"),
        ("<think>a plan that never", 0, "cut off before an answer"),
        ("word " * 100, 100, None),
    ],
)
def test_a_think_trace_is_no_part_of_the_text(response: str, words: int, note: str | None) -> None:
    task = make()
    scored = task.score(task.load().samples[0], response, RuleJudge())
    assert scored.scores["official_words"].value == words
    assert scored.scores["s_l"].value == words
    assert scored.details.get("thinking") == note


def test_quality_comes_from_a_judge_that_rates() -> None:
    task = make()
    sample = task.load().samples[0]
    reply = f"Here it is:\n```json\n{json.dumps({'Analysis': 'fine', **points(5, 4, 3, 2, 1, 3)})}\n```"
    for stored in (reply, points(5, 4, 3, 2, 1, 3)):
        scored = task.score(sample, "word", StoredRatings(RuleJudge(), stored, "someone"))
        assert scored.scores["s_q"].value == 50
        assert scored.scores["s_q_breadth_and_depth"].value == 0
        assert scored.details["ratings"] == points(5, 4, 3, 2, 1, 3)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (dict.fromkeys(DIMENSIONS[:5], 3), "lacks Reading Experience"),
        (points(5, 4, 3, 2, 1, 7), "Reading Experience is 7,"),
        (points(5, 4, 3, 2, 1, 3) | {"Clarity": "3"}, 'Clarity is "3",'),
        (points(5, 4, 3, 2, 1, 3) | {"Clarity": 3.5}, "Clarity is 3.5,"),
        ("I would say 5", "no JSON object"),
    ],
)
def test_a_rating_that_cannot_be_read_is_unscored_with_the_reason(stored: Any, reason: str) -> None:
    task = make()
    scored = task.score(task.load().samples[0], "word", StoredRatings(RuleJudge(), stored, "someone"))
    assert list(scored.unscored) == ["s_q"]
    assert reason in scored.unscored["s_q"]
    assert not any(name.startswith("s_q") for name in scored.scores)
    assert scored.scores["s_l"].value == 0
    assert scored.details["ratings"] is None


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"prompt": None}, "prompt", "expected a string, got null"),
        ({"prompt": " "}, "prompt", "is empty"),
        ({"prompt": "word " * 2_000_000}, "prompt", "has 10,000,000 characters; at most 1,000,000 are taken"),
        ({"type": 3}, "type", "expected a string"),
        ({"length": "100"}, "length", "expected a whole number, got '100'"),
        ({"length": 0}, "length", "must be at least 1"),
        ({"length": 10**9}, "length", "must be at most 1000000"),
        ({"id": "one"}, "id", "is on"),
        ({"id": 3}, "id", "expected a string"),
    ],
)
def test_bad_rows_name_file_line_and_field(
    write_rows: Writer, changes: dict[str, Any], field: str, problem: str
) -> None:
    path = write_rows(row(id="one"), row(**changes))
    with pytest.raises(DataError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}, line 2, field {field!r}: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("field", ["prompt", "type", "length"])
def test_a_missing_field_is_named(write_rows: Writer, field: str) -> None:
    bad = row()
    del bad[field]
    with pytest.raises(DataError, match=f"line 2, field '{field}': is missing"):
        load(write_rows(row(), bad))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{"prompt": ["a", "b"], "type": ["c", "d"], "length": [1, 2]}', "laid out by column"),
        (b'{"prompt": "a", "type": "b", "length": 1}\n{"prompt": "\xff"}', "line 2: not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_the_same_file_gives_the_same_samples_without_a_network(
    write_rows: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    lines = load(write_rows(row(), row(length=200)))
    array = load(write_rows(row(), row(length=200), name="rows.json"))
    assert lines.samples == array.samples
    assert lines.sha256 == array.sha256 != load(write_rows(row(), row(length=201))).sha256
    with pytest.raises(DataError, match="no such file"):
        load(Path("none.jsonl"))


def test_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"longbench_write\.jsonl .*https://github.com/THUDM/LongWriter"):
        load(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("file", "rows"), [("longbench_write", 120), ("longbench_write_en", 60), ("longwrite_ruler", 48)]
)
def test_the_authors_files_are_read(shared_dir: Path, file: str, rows: int) -> None:
    data = load(shared_dir / "data" / "longwriter" / f"{file}.jsonl")
    assert (len(data.samples), data.total, data.incomplete) == (rows, rows, None)
    assert len({sample.sample_id for sample in data.samples}) == rows
    if file == "longbench_write":
        assert Counter(sample.stratum for sample in data.samples)["Literature and Creative Writing"] == 31
