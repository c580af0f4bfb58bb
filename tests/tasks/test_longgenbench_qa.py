"""LongGenBench of Liu et al.: bundled questions, the authors' folder, a file of questions; scores; bad data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.conftest import Writer
from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, DataError
from velox_eval.judges import RuleJudge
from velox_eval.metrics.longgenbench_qa import is_right
from velox_eval.tasks import Task, TaskOptions, get_task, task_info
from velox_eval.tasks.qa_questions import KINDS, questions

SETTINGS = task_info("longgenbench_qa").settings["official"]


def make(path: Path | None = None, **options: Any) -> Task:
    return get_task("longgenbench_qa", TaskOptions(data=None if path is None else str(path), **options))


def row(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {"question": f"How much is {number} and 1?", "answer": f"So it is.\n#### {number + 1}", **changes}


@pytest.mark.parametrize("kind", KINDS)
def test_made_questions_have_the_answer_their_steps_come_to(kind: str) -> None:
    made = questions(kind, 7, 300)
    assert made == questions(kind, 7, 300)
    assert made[:20] != questions(kind, 8, 20)
    assert made[:20] != questions(kind, 7, 20, "another stream")
    assert len({question.text for question in made}) == 300
    for question in made:
        assert is_right(question.solution, question.answer, "letter" if kind == "choice" else "number")
        for left, sign, right, result in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", question.steps):
            a, b = int(left), int(right)
            assert int(result) == {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
            assert sign != "/" or a % b == 0
        if kind == "choice":
            options = re.findall(r"\(([A-D])\) (\S+)", question.text)
            assert [letter for letter, _ in options] == list("ABCD")
            assert len({option for _, option in options}) == 4
            assert dict(options)[question.answer] in question.steps
    if kind == "choice":
        assert {question.answer for question in made} == set("ABCD")


def test_a_default_run_asks_both_kinds_by_number_after_the_examples() -> None:
    task = make()
    data = task.load()
    assert [sample.stratum for sample in data.samples] == ["arithmetic", "choice"] * 2
    assert data.incomplete == f"first 4 of {data.total} samples"
    for sample in data.samples:
        request = task.request(sample)
        assert isinstance(request, Generate)
        assert request.chat
        assert re.findall(r"^Question_(\d+):$", request.prompt, re.MULTILINE) == [str(n) for n in [*range(1, 13)]]
        assert re.findall(r"^Answer_(\d+):$", request.prompt, re.MULTILINE) == ["1", "2", "3", "4"]
        assert "the first is Answer_5, the last Answer_12" in request.prompt
        assert list(sample.data["solutions"]) == [str(n) for n in range(5, 13)]


def test_entries_variant_and_seed_choose_the_questions() -> None:
    assert len(make(entries=35, variant="arithmetic").load().samples[1].data["solutions"]) == 35
    assert {sample.stratum for sample in make(variant="choice", limit=20).load().samples} == {"choice"}
    assert make(data_seed=1).load().sha256 != make().load().sha256
    few, many = make(entries=4), make(entries=16)
    assert many.request(many.load().samples[0]).max_tokens == 4 * few.request(few.load().samples[0]).max_tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "gsm8k"}, "source=bundled 'gsm8k' .known: arithmetic, choice"),
        ({"source": "official", "variant": "choice"}, "known: gsm8k, mmlu"),
        ({"source": "official", "data_seed": 2}, "data_seed=2 is for source=bundled"),
        ({"entries": 0}, "entries=0 must be at least 1"),
        ({"entries": 201}, "entries=201 must be at most 200"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_task("longgenbench_qa", TaskOptions(**options))


def test_right_answers_score_one_whatever_their_order() -> None:
    task = make()
    for sample in task.load().samples:
        solutions = dict(sample.data["solutions"])
        text = "\n\n".join(f"Answer_{n}:\nThe answer is {solutions[n]}." for n in reversed(solutions))
        scored = task.score(sample, text, RuleJudge())
        assert {name: score.value for name, score in scored.scores.items()} == {
            "accuracy": 1,
            "accuracy_answered": 1,
            "answered": 1,
        }
        assert task.curves([scored.details])["accuracy_by_entry"].count(None) == 2  # eight questions, ten tenths


def test_a_left_out_answer_is_wrong_and_shifts_nothing() -> None:
    task = make()
    sample = task.load().samples[0]
    solutions = dict(sample.data["solutions"])
    text = "\n".join(f"Answer_{n}: {solution}" for n, solution in solutions.items() if n != "6") + "\nAnswer_99: 1"
    scored = task.score(sample, text, RuleJudge())
    assert (scored.scores["accuracy"].num, scored.scores["accuracy"].den) == (7, 8)
    assert scored.scores["accuracy_answered"].value == 1
    assert scored.details["questions"][1] == [6, False, False]
    assert scored.details["other_numbers"] == [99]
    failed = task.unanswered(sample)
    assert (failed["accuracy"].num, failed["accuracy"].den) == (0, 8)


def test_answers_in_a_think_trace_count_nothing() -> None:
    task = make()
    sample = task.load().samples[0]
    text = "<think>Answer_5: 0</think>Answer_5: " + sample.data["solutions"]["5"]
    scored = task.score(sample, text, RuleJudge())
    assert (scored.scores["accuracy"].num, scored.details["thinking"]) == (1, "finished")
    cut = task.score(sample, "<think>Answer_5: " + sample.data["solutions"]["5"], RuleJudge())
    assert (cut.scores["answered"].num, cut.details["thinking"]) == (0, "cut off before an answer")


def test_a_file_of_questions_gets_our_examples_and_says_so(write_rows: Writer) -> None:
    task = make(write_rows(*(row(number) for number in range(7))), entries=3)
    data = task.load()
    assert [list(sample.data["solutions"].values()) for sample in data.samples] == [
        ["1", "2", "3"],
        ["4", "5", "6"],
        ["7"],
    ]
    assert data.notes == (
        "worked examples of ours: rows.jsonl has none (a folder with " + SETTINGS["gsm8k"]["examples"] + " has)",
    )
    assert "Question_5:\nHow much is 0 and 1?" in task.request(data.samples[0]).prompt
    assert task.request(data.samples[0]).max_tokens == 4096


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"question": None}, "question", "expected a string, got null"),
        ({"question": ""}, "question", "is empty"),
        ({"question": "why " * 2_500_000}, "question", "has 10,000,000 characters; at most 100,000"),
        ({"answer": 3}, "answer", "expected a string, got '3'"),
        ({"answer": "#### many"}, "answer", "comes to no number: 'many'"),
        ({"id": 4}, "id", "4 is on"),
    ],
)
def test_bad_rows_name_file_line_and_field(
    write_rows: Writer, changes: dict[str, Any], field: str, problem: str
) -> None:
    path = write_rows(row(id=4), row(**changes))
    with pytest.raises(DataError) as raised:
        make(path).load()
    assert str(raised.value).startswith(f"{path}, line 2, field {field!r}: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("field", ["question", "answer"])
def test_a_missing_field_is_named(write_rows: Writer, field: str) -> None:
    bad = row()
    del bad[field]
    with pytest.raises(DataError, match=f"line 2, field '{field}': is missing"):
        make(write_rows(row(), bad)).load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{"question": ["a", "b"], "answer": ["1", "2"]}', "laid out by column"),
        (b'{"question": "a", "answer": "1"}\n{"question": "\xff"}', "line 2: not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        make(path).load()
    assert str(path) in str(raised.value)
    path.unlink()
    with pytest.raises(DataError, match=r"no such file; give JSONL of .*, or a folder as https://github.com/\S+/data$"):
        make(path).load()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder laid out as the authors' `data`, in our own words."""
    for kind in ("gsm8k", "mmlu"):
        (tmp_path / SETTINGS[kind]["examples"]).parent.mkdir(parents=True)
    (tmp_path / SETTINGS["gsm8k"]["examples"]).write_text("Question_1:\nOne and one?\n\nAnswer_1:\nThe answer is 2.")
    (tmp_path / SETTINGS["gsm8k"]["rows"]).parent.mkdir()
    (tmp_path / SETTINGS["gsm8k"]["rows"]).write_text("\n".join(json.dumps(row(n)) for n in range(40)))
    examples = "About it.\n\nQ: Which?\n(A) a (B) b (C) c (D) d\nA: So. The answer is (A)."
    (tmp_path / SETTINGS["mmlu"]["examples"]).write_text(json.dumps({"birds": examples, "fish": examples}))
    (tmp_path / SETTINGS["mmlu"]["rows"]).mkdir(parents=True)
    (tmp_path / SETTINGS["mmlu"]["rows"] / "birds_test.csv").write_text("Which?,a,b,c,d,B\n")
    return tmp_path


def test_the_authors_folder_is_read(folder: Path) -> None:
    numbers = make(folder).load()
    assert [len(sample.data["solutions"]) for sample in numbers.samples] == [35, 5]
    assert "9" in numbers.samples[0].data["solutions"]
    letters = make(folder, variant="mmlu").load()
    assert letters.samples[0].data["solutions"] == {"6": "B"}
    assert letters.incomplete == "1 of 2 subjects"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "MMLU/test/birds_test.csv",
            b"Which?,a,b,c,d\n",
            "line 1: has 5 columns; expected 6: question, A, B, C, D, answer",
        ),
        (
            "MMLU/test/birds_test.csv",
            b"Which?,a,b,c,d,B\nWhy?,a,b,c,d,E\n",
            "line 2, field 'answer': is 'E'; one of A, B",
        ),
        ("MMLU/test/birds_test.csv", b",a,b,c,d,B\n", "line 1, field 'question': is empty"),
        ("MMLU/test/birds_test.csv", b'"Which?,a,b,c,d,B\n', "line 1: broken CSV"),
        ("MMLU/test/birds_test.csv", b"W" * 10_000_000 + b",a,b,c,d,B\n", "line 1: broken CSV: field larger than"),
        ("MMLU/test/birds_test.csv", b"Wh\xff?,a,b,c,d,B\n", "line 1: not UTF-8"),
        ("MMLU/test/birds_test.csv", b"", "holds no rows"),
        ("MMLU/test/cats_test.csv", b"Which?,a,b,c,d,B\n", "field 'cats': is missing"),
        ("LongGenBench_MMLU_prompt/LongGenBench_prompt.json", b'{"birds": "no examples"}', "field 'birds': is no list"),
        ("LongGenBench_MMLU_prompt/LongGenBench_prompt.json", b'{"birds": 3}', "field 'birds': expected a string"),
        ("LongGenBench_MMLU_prompt/LongGenBench_prompt.json", b'{"a": "b"}\n{"c": "d"}', "expected one object"),
    ],
)
def test_bad_files_of_the_folder_are_named(folder: Path, file: str, content: bytes, message: str) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(DataError) as raised:
        make(folder, variant="mmlu").load()
    named = "LongGenBench_MMLU_prompt/LongGenBench_prompt.json" if "cats" in file else file  # cats has no examples
    assert str(raised.value).startswith(f"{folder / named}")
    assert message in str(raised.value)


def test_what_the_folder_lacks_is_named_with_its_place(folder: Path) -> None:
    (folder / "MMLU" / "test" / "birds_test.csv").unlink()
    with pytest.raises(
        DataError, match=r"MMLU/test: holds no SUBJECT_test.csv; get MMLU/test from https://github.com/"
    ):
        make(folder, variant="mmlu").load()
    (folder / "GSM8K" / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"GSM8K/test.jsonl: no such file; get https://.*grade-school-math"):
        make(folder).load()
    (folder / SETTINGS["gsm8k"]["examples"]).write_text(" \n")
    with pytest.raises(DataError, match=r"LongGenBench_prompt.txt: is empty"):
        make(folder).load()
    with pytest.raises(DataError, match="no such file; give JSONL"):
        make(folder / "none.jsonl").load()


def test_the_authors_own_files_fit(shared_dir: Path, tmp_path: Path) -> None:
    """Their examples and tables, the development rows standing in for the test rows that are not here."""
    theirs = shared_dir / "data" / "longgenbench_liu"
    for name in ("LongGenBench_GSM8K_prompt", "LongGenBench_MMLU_prompt"):
        (tmp_path / name).symlink_to(theirs / name)
    (tmp_path / "MMLU" / "test").mkdir(parents=True)
    for path in (theirs / "MMLU" / "dev").glob("*.csv"):
        (tmp_path / "MMLU" / "test" / path.name.replace("_dev", "_test")).symlink_to(path)
    data = make(tmp_path, variant="mmlu").load()
    assert (len(data.samples), data.incomplete) == (57, None)
    assert all(set(sample.data["solutions"]) == {"6", "7", "8", "9", "10"} for sample in data.samples)
    (tmp_path / "GSM8K").mkdir()
    (tmp_path / "GSM8K" / "test.jsonl").write_text(json.dumps(row()))
    (sample,) = make(tmp_path).load().samples
    assert list(sample.data["solutions"]) == ["9"]
    assert sample.data["prompt"].count("Answer_8:") == 1
