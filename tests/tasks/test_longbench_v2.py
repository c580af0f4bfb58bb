"""LongBench v2: prompts, reading of answers, accuracies by group, bad data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, DataError
from velox_eval.judges import get_judge
from velox_eval.records.score import Score, pooled
from velox_eval.tasks import TaskData, TaskOptions, get_task
from velox_eval.tasks.base import Task

TEMPLATE = "T: $DOC$\nQ: $Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n"


def make_question(**changes: Any) -> dict[str, Any]:
    row = {
        "_id": "q1",
        "domain": "Notes",
        "sub_domain": "Town",
        "difficulty": "easy",
        "length": "short",
        "question": " Who? ",
        "choice_A": "one",
        "choice_B": "two",
        "choice_C": "three",
        "choice_D": "four",
        "answer": "B",
        "context": "  A text with $Q$ in it.\n",
    }
    return {**row, **changes}


def write(folder: Path, *rows: dict[str, Any], template: str | None = TEMPLATE) -> Path:
    (folder / "data.json").write_text(json.dumps(rows))
    (folder / "prompts").mkdir(exist_ok=True)
    if template is not None:
        (folder / "prompts" / "0shot.txt").write_text(template)
    return folder


def task_of(path: Path, **options: Any) -> tuple[Task, TaskData]:
    task = get_task("longbench_v2", TaskOptions(data=str(path), **options))
    return task, task.load()


def test_the_prompt_and_its_limits(tmp_path: Path) -> None:
    """Fields are stripped, and a $Q$ in the text stays what it is."""
    task, data = task_of(write(tmp_path, make_question()))
    asked = task.request(data.samples[0])
    assert isinstance(asked, Generate)
    assert asked.prompt == "T: A text with $Q$ in it.\nQ: Who?\n(A) one\n(B) two\n(C) three\n(D) four\n"
    assert asked.context is not None
    assert asked.prompt[slice(*asked.context)] == "A text with $Q$ in it."
    assert (asked.chat, asked.max_tokens, asked.cut_middle, asked.stop) == (True, 128, 120000, ())
    assert data.incomplete == "1 of 503 rows"
    file_task, file_data = task_of(tmp_path / "data.json", max_tokens=9, max_prompt_tokens=99)
    asked = file_task.request(file_data.samples[0])
    assert isinstance(asked, Generate)
    assert (asked.max_tokens, asked.cut_middle) == (9, 99)
    assert file_data.sha256 == data.sha256


def test_without_context(tmp_path: Path) -> None:
    place = write(tmp_path, make_question())
    (place / "prompts" / "0shot_no_context.txt").write_text(TEMPLATE.replace("T: $DOC$\n", ""))
    task, data = task_of(place, variant="no_context")
    asked = task.request(data.samples[0])
    assert isinstance(asked, Generate)
    assert asked.prompt.startswith("Q: Who?\n")
    assert asked.context is None


def test_accuracies(tmp_path: Path) -> None:
    groups = [("easy", "short"), ("easy", "medium"), ("hard", "short"), ("hard", "short")]
    rows = [make_question(_id=str(i), difficulty=d, length=n) for i, (d, n) in enumerate(groups)]
    task, data = task_of(write(tmp_path, *rows))
    replies = ["The correct answer is (B)", "**The correct answer is B**", "The correct answer is (C)", "B"]
    pools: dict[str, list[Score]] = {}
    for sample, reply in zip(data.samples, replies, strict=True):
        scored = task.score(sample, reply, get_judge("rules"))
        for name, score in scored.scores.items():
            pools.setdefault(name, []).append(score)
    got = {name: pooled(items) for name, items in pools.items()}
    assert got == {
        "accuracy": 0.5,
        "accuracy_easy": 1,
        "accuracy_hard": 0,
        "accuracy_short": 1 / 3,
        "accuracy_medium": 1,
        "accuracy_long": None,
        "accuracy_compensated": 0.5625,
        "unread": 0.25,
    }
    assert task.score(data.samples[3], "B", get_judge("rules")).details["choice"] is None
    assert {sample.stratum for sample in data.samples} == {"easy short", "easy medium", "hard short"}
    assert task.unanswered(data.samples[0])["accuracy"] == Score(num=0)


def test_a_think_trace_is_no_answer(tmp_path: Path) -> None:
    task, data = task_of(write(tmp_path, make_question()))
    judge = get_judge("rules")
    cut = task.score(data.samples[0], "<think>The correct answer is (B)", judge)
    assert (cut.scores["accuracy"].num, cut.details["choice"]) == (0, None)
    done = task.score(data.samples[0], "The correct answer is (A)? no</think> The correct answer is (B)", judge)
    assert done.scores["accuracy"].num == 1


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"answer": "E"}, "answer", "is 'E'; it must be one of A, B, C, D"),
        ({"answer": 2}, "answer", "expected a string, got '2'"),
        ({"difficulty": "medium"}, "difficulty", "must be one of easy, hard"),
        ({"length": 4000}, "length", "expected a string"),
        ({"context": ""}, "context", "is empty"),
        ({"choice_C": None}, "choice_C", "expected a string, got null"),
        ({"_id": "q1"}, "_id", '"q1" is on'),
    ],
)
def test_a_bad_value_names_file_line_and_field(
    tmp_path: Path, changes: dict[str, Any], field: str, problem: str
) -> None:
    place = write(tmp_path, make_question(), make_question(**{"_id": "q2", **changes}))
    with pytest.raises(DataError) as raised:
        task_of(place)
    assert str(raised.value).startswith(f"{place / 'data.json'}, line 1, field {field!r}: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("field", [name for name in make_question() if name != "sub_domain"])
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    row = make_question(_id="q2")
    del row[field]
    with pytest.raises(DataError, match=f"line 1, field '{field}': is missing"):
        task_of(write(tmp_path, make_question(), row))


def test_missing_and_bad_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.json: no such file; get data\.json from https://huggingface\.co"):
        task_of(tmp_path)
    with pytest.raises(DataError, match=r"prompts/0shot\.txt: no such file.*github\.com/THUDM/LongBench"):
        task_of(write(tmp_path, make_question(), template=None))
    with pytest.raises(DataError, match=r"0shot\.txt: has no \$C_D\$"):
        task_of(write(tmp_path, make_question(), template=TEMPLATE.replace("$C_D$", "four")))
    (tmp_path / "prompts" / "0shot.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"0shot\.txt, line \d: not UTF-8"):
        task_of(tmp_path)


def test_bundled_questions_have_their_answer_in_the_text() -> None:
    task = get_task("longbench_v2", TaskOptions(limit=100))
    data = task.load()
    assert data.incomplete is None
    assert {sample.stratum.split()[1] for sample in data.samples} == {"short", "medium", "long"}
    for sample in data.samples:
        right = f"The correct answer is ({sample.data['answer']})"
        assert task.score(sample, right, get_judge("rules")).scores["accuracy"].num == 1
        (option,) = [
            line[4:] for line in sample.data["prompt"].splitlines() if line.startswith(f"({sample.data['answer']}) ")
        ]
        assert option.lower() in sample.data["prompt"].split("\n\nQuestion:")[0].lower()
    with pytest.raises(ConfigError, match="variant=no_context is for source=official"):
        get_task("longbench_v2", TaskOptions(variant="no_context"))
    with pytest.raises(ConfigError, match="unknown variant 'cot'"):
        get_task("longbench_v2", TaskOptions(source="official", variant="cot"))
