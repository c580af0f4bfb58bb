"""LongBench: prompts, requests, scores and completeness, on files of the authors' form and on ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, DataError
from velox_eval.judges import get_judge
from velox_eval.records.score import Score, pooled
from velox_eval.tasks import TaskData, TaskOptions, get_task, task_info
from velox_eval.tasks.base import Task

TEMPLATES = {
    "hotpotqa": "Read.\n{context}\nNow: {input}\nAnswer:",
    "lcc": "Go on:\n{context}Next:\n",
    "trec": "{context}\n{input}",
    "samsum": "{context}\n\n{input}",
    "passage_count": "{context} {{braces}} {input}",
    "gov_report": "{context}",
    "qasper": "{input}|{context}",
    "multifieldqa_zh": "{context}{input}",
}


def make_row(dataset: str = "hotpotqa", **changes: Any) -> dict[str, Any]:
    row = {
        "input": "Who?",
        "context": "A long text.",
        "answers": ["Bob Dylan", "Dylan"],
        "length": 5000,
        "dataset": dataset,
        "language": "en",
        "all_classes": None,
        "_id": "a1",
    }
    return {**row, **changes}


Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes data/NAME.jsonl for each data set and config/dataset2prompt.json; returns the folder."""

    def write(templates: dict[str, Any] | None = None, **rows: list[dict[str, Any]]) -> Path:
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "config").mkdir(exist_ok=True)
        for name, items in rows.items():
            lines = [json.dumps({**row, "_id": row.get("_id", "a") + f"-{i}"}) for i, row in enumerate(items)]
            (tmp_path / "data" / f"{name.replace('__', '-')}.jsonl").write_text("\n".join(lines) + "\n")
        text = json.dumps(TEMPLATES if templates is None else templates)
        (tmp_path / "config" / "dataset2prompt.json").write_text(text)
        return tmp_path

    return write


def task_of(path: Path, **options: Any) -> tuple[Task, TaskData]:
    task = get_task("longbench", TaskOptions(data=str(path), **options))
    return task, task.load()


def request(task: Task, data: TaskData, index: int = 0) -> Generate:
    made = task.request(data.samples[index])
    assert isinstance(made, Generate)
    return made


def scores(task: Task, data: TaskData, *responses: str) -> dict[str, float | None]:
    """The pooled scores of one answer a sample."""
    judge = get_judge("rules")
    all_scores: dict[str, list[Score]] = {}
    for sample, response in zip(data.samples, responses, strict=True):
        for name, score in task.score(sample, response, judge).scores.items():
            all_scores.setdefault(name, []).append(score)
    return {name: pooled(items) for name, items in all_scores.items()}


def test_the_prompt_is_the_template_and_the_context_is_marked(folder: Folder) -> None:
    task, data = task_of(folder(hotpotqa=[make_row()], passage_count=[make_row("passage_count", answers=["3"])]))
    first = request(task, data)
    assert first.prompt == "Read.\nA long text.\nNow: Who?\nAnswer:"
    assert first.context is not None
    assert first.prompt[slice(*first.context)] == "A long text."
    assert request(task, data, 1).prompt == "A long text. {braces} Who?"


def test_a_field_in_the_text_is_no_field_of_the_template(folder: Folder) -> None:
    row = make_row(context="see {input} and {0.__class__}", input="{context}")
    task, data = task_of(folder(hotpotqa=[row]))
    assert request(task, data).prompt == "Read.\nsee {input} and {0.__class__}\nNow: {context}\nAnswer:"


def test_limits_and_rules_are_the_authors() -> None:
    """dataset2maxlen.json, dataset2metric of eval.py and the lists in pred.py, as read from there."""
    sets = task_info("longbench").settings["datasets"]
    limits = {
        32: "hotpotqa 2wikimqa musique triviaqa passage_count passage_retrieval_en passage_retrieval_zh",
        64: "multifieldqa_en multifieldqa_zh trec lsht lcc repobench-p",
        128: "narrativeqa qasper dureader samsum",
        512: "gov_report qmsum multi_news vcsum",
    }
    assert {name: most for most, names in limits.items() for name in names.split()} == {
        name: one["max_tokens"] for name, one in sets.items()
    }
    metrics = {
        "qa_f1": "narrativeqa qasper multifieldqa_en hotpotqa 2wikimqa musique triviaqa",
        "qa_f1_zh": "multifieldqa_zh",
        "rouge_zh": "dureader vcsum",
        "rouge_l": "gov_report qmsum multi_news samsum",
        "classification": "trec lsht",
        "retrieval": "passage_retrieval_en",
        "retrieval_zh": "passage_retrieval_zh",
        "count": "passage_count",
        "code_sim": "lcc repobench-p",
    }
    assert {name: metric for metric, names in metrics.items() for name in names.split()} == {
        name: one["metric"] for name, one in sets.items()
    }
    raw = {name for name, one in sets.items() if not one.get("chat", True)}
    assert raw == {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    assert {name for name, one in sets.items() if one.get("first_line")} == {"trec", "triviaqa", "samsum", "lsht"}
    in_e = "qasper multifieldqa_en hotpotqa 2wikimqa gov_report multi_news trec triviaqa samsum passage_count "
    in_e += "passage_retrieval_en lcc repobench-p"
    assert {name for name, one in sets.items() if one.get("e")} == set(in_e.split())
    assert sum(one["rows"] for one in sets.values()) == 4750
    assert len(sets) == 21


def test_limits_match_the_official_files(shared_dir: Path) -> None:
    """Where a copy of the authors' config is at hand: limits by name, a template for each name."""
    sets = task_info("longbench").settings["datasets"]
    config = shared_dir / "data" / "longbench" / "config"
    assert json.loads((config / "dataset2maxlen.json").read_text()) == {
        name: one["max_tokens"] for name, one in sets.items()
    }
    assert set(json.loads((config / "dataset2prompt.json").read_text())) == set(sets)


def test_samsum_stops_at_one_real_newline_and_is_greedy(folder: Folder) -> None:
    task, data = task_of(folder(samsum=[make_row("samsum")], hotpotqa=[make_row()]))
    by_set = {sample.stratum: task.request(sample) for sample in data.samples}
    samsum, hotpotqa = by_set["samsum"], by_set["hotpotqa"]
    assert isinstance(samsum, Generate)
    assert isinstance(hotpotqa, Generate)
    assert samsum.stop == ("\n",)
    assert len(samsum.stop[0]) == 1
    assert samsum.never_empty
    assert not samsum.chat
    assert (hotpotqa.stop, hotpotqa.never_empty, hotpotqa.chat) == ((), False, True)
    assert (samsum.max_tokens, hotpotqa.max_tokens) == (128, 32)
    assert "\\n" not in samsum.prompt + hotpotqa.prompt


def test_the_longest_prompt_is_the_authors_or_as_asked(folder: Folder) -> None:
    place = folder(hotpotqa=[make_row()])
    assert request(*task_of(place)).cut_middle == 31500
    assert request(*task_of(place, max_prompt_tokens=500)).cut_middle == 500
    assert request(*task_of(place, max_tokens=7)).max_tokens == 7
    with pytest.raises(ConfigError, match="max_prompt_tokens=1"):
        task_of(place, max_prompt_tokens=1)


def test_each_data_set_weighs_the_same(folder: Folder) -> None:
    """Three rows right in one set, one row wrong in the other: the mean over rows is 75, over data sets 50."""
    place = folder(hotpotqa=[make_row()] * 3, passage_count=[make_row("passage_count", answers=["3"])])
    task, data = task_of(place)
    got = scores(task, data, "Bob Dylan", "dylan", "Bob Dylan!", "4")
    assert got["score"] == pytest.approx(50, abs=1e-9)
    assert got["accuracy"] == pytest.approx(0.5, abs=1e-9)
    assert got["score_hotpotqa"] == 100
    assert got["score_passage_count"] == 0
    missed = [task.unanswered(sample)["score"] for sample in data.samples]
    assert sum(score.den for score in missed) == pytest.approx(4)
    assert pooled(missed) == 0


def test_first_lines_and_best_answers(folder: Folder) -> None:
    classes = {"answers": ["Other location"], "all_classes": ["location", "Other", "Other location"]}
    place = folder(trec=[make_row("trec", **classes)], samsum=[make_row("samsum")], hotpotqa=[make_row()])
    task, data = task_of(place)
    by_set = dict(zip((sample.stratum for sample in data.samples), data.samples, strict=True))
    judge = get_judge("rules")

    def value(name: str, response: str, score: str = "") -> float:
        scored = task.score(by_set[name], response, judge).scores[score or f"score_{name}"].value
        assert scored is not None
        return scored

    assert value("trec", "Other location\nQuestion: x\nType: Food") == 50
    assert value("trec", "Other location", "score_trec_intended") == 100
    assert value("trec", "\n\nOther location") == 50
    assert value("samsum", "Dylan\nBob") == pytest.approx(100, abs=1e-5)
    assert value("hotpotqa", "Dylan\nBob") == 100  # every line counts here
    assert value("hotpotqa", "") == 0


def test_a_think_trace_is_no_answer(folder: Folder) -> None:
    task, data = task_of(folder(hotpotqa=[make_row()]))
    judge = get_judge("rules")
    cut = task.score(data.samples[0], "<think>Bob Dylan", judge)
    assert cut.scores["score"].num == 0
    assert cut.details["thinking"] == "cut off before an answer"
    done = task.score(data.samples[0], "<think>perhaps Elvis</think>Bob Dylan", judge)
    assert done.scores["score_hotpotqa"].value == 100
    assert done.details["thinking"] == "finished"
    assert "thinking" not in task.score(data.samples[0], "Bob Dylan", judge).details


def test_buckets_of_longbench_e_go_by_the_rows_own_length(folder: Folder) -> None:
    """5,000 words of 30,000 characters are 4-8k; nothing is in 8k+, which is null over no samples."""
    rows = [make_row(length=n, context="word " * 6000) for n in (3999, 4000, 5000, 7999)]
    task, data = task_of(folder(hotpotqa_e=rows), variant="hotpotqa_e")
    got = scores(task, data, "Bob Dylan", "Bob Dylan", "no", "no")
    assert got["score_hotpotqa_e_0-4k"] == 100
    assert got["score_hotpotqa_e_4-8k"] == pytest.approx(100 / 3)
    assert got["score_hotpotqa_e_8k+"] is None
    assert got["score_hotpotqa_e"] == 50
    derived = task.derived(got)
    assert derived["score_0-4k"] == 100
    assert derived["score_8k+"] is None
    assert derived["average_en"] is None
    assert request(task, data).max_tokens == 32


def test_what_is_missing_is_said(folder: Folder) -> None:
    place = folder(hotpotqa=[make_row()] * 3, lcc=[make_row("lcc", input="")] * 2)
    task, data = task_of(place)
    assert data.incomplete is not None
    assert data.incomplete.startswith("19 of 21 data sets are missing: narrativeqa, qasper,")
    assert "hotpotqa has 3 of 200 rows; lcc has 2 of 500 rows" in data.incomplete
    got = scores(task, data, "Dylan", "", "", "", "")
    assert task.derived(got)["average_en"] is None
    assert task.derived(got)["multi_doc_qa_en"] is None
    _, limited = task_of(place, limit=3)
    assert [sample.stratum for sample in limited.samples] == ["hotpotqa", "hotpotqa", "lcc"]
    assert limited.total == 5
    assert limited.incomplete is not None
    assert limited.incomplete.endswith("3 of 5 samples")
    assert [sample.stratum for sample in task_of(place, limit=1)[1].samples] == ["hotpotqa"]
    _, one = task_of(place, variant="hotpotqa")
    assert one.incomplete == "hotpotqa has 3 of 200 rows"


def test_the_authors_tables(folder: Folder) -> None:
    """By kind over data sets, by language over kinds; code is in both languages' tables."""
    task, _ = task_of(folder(hotpotqa=[make_row()]))
    sets = task_info("longbench").settings["datasets"]
    values: dict[str, float | None] = {f"score_{name}": 10.0 * len(one["kind"]) for name, one in sets.items()}
    values["score_hotpotqa"] = 0.0
    derived = task.derived(values)
    multi = 10.0 * len("multi_doc_qa")
    assert derived["multi_doc_qa_en"] == pytest.approx(multi * 2 / 3)
    assert derived["multi_doc_qa_zh"] == multi
    kinds = ["single_doc_qa", "multi_doc_qa", "summarization", "few_shot", "synthetic", "code"]
    expected = sum(10.0 * len(kind) for kind in kinds) / 6
    assert derived["average_zh"] == pytest.approx(expected)
    assert derived["average_en"] == pytest.approx(expected - multi / 3 / 6)
    del values["score_lcc"]
    assert task.derived(values)["average_zh"] is None


def test_sets_by_name_and_by_group(folder: Folder) -> None:
    place = folder(hotpotqa=[make_row()], lcc=[make_row("lcc")], hotpotqa_e=[make_row()])
    assert [s.stratum for s in task_of(place, variant="lcc, hotpotqa")[1].samples] == ["lcc", "hotpotqa"]
    assert [s.stratum for s in task_of(place, variant="e")[1].samples] == ["hotpotqa_e"]
    assert [s.stratum for s in task_of(place, variant="all")[1].samples] == ["hotpotqa", "lcc"]
    with pytest.raises(ConfigError, match="unknown variant 'hotpotq'; did you mean 'hotpotqa"):
        task_of(place, variant="hotpotq")
    with pytest.raises(ConfigError, match="twice"):
        task_of(place, variant="lcc,lcc")
    with pytest.raises(DataError, match=r"no data set of gov_report, \.\.\. as NAME\.jsonl; get data\.zip"):
        task_of(place, variant="gov_report")


def test_one_file_says_its_data_set(folder: Folder, tmp_path: Path) -> None:
    place = folder(hotpotqa=[make_row()])
    data = task_of(place / "data" / "hotpotqa.jsonl")[1]
    assert [sample.stratum for sample in data.samples] == ["hotpotqa"]
    assert data.incomplete == "hotpotqa has 1 of 200 rows"
    other = tmp_path / "data" / "mine.jsonl"
    other.write_text(json.dumps(make_row("lcc")))
    assert task_of(other)[1].samples[0].stratum == "lcc"
    other.write_text(json.dumps(make_row("no such set")))
    with pytest.raises(ConfigError, match="--variant NAME"):
        task_of(other)
    with pytest.raises(DataError, match=r"line 1, field 'dataset': is 'no such set' in a file of lcc"):
        task_of(other, variant="lcc")
    with pytest.raises(ConfigError, match="one file"):
        task_of(other, variant="lcc,hotpotqa")


def test_finished_prompts_need_no_templates(tmp_path: Path) -> None:
    rows = {"0": {"origin_prompt": "Q: one?", "prediction": "x", "gold": ["one"], "time": 1.0}}
    rows["1"] = {**rows["0"], "origin_prompt": "Q: two?"}
    (tmp_path / "MiniLongBench_hotpotqa.json").write_text(json.dumps(rows, indent=1))
    gold = {"all_classes": ["Date", "Food"], "answers": ["Date"]}
    (tmp_path / "MiniLongBench_trec.json").write_text(json.dumps({"0": {"origin_prompt": "T", "gold": gold}}))
    task, data = task_of(tmp_path)
    assert [sample.stratum for sample in data.samples] == ["hotpotqa", "hotpotqa", "trec"]
    assert [request(task, data, i).prompt for i in range(3)] == ["Q: one?", "Q: two?", "T"]
    got = scores(task, data, "one", "two", "Date")
    assert (got["score_hotpotqa"], got["score_trec"], got["score"]) == (50, 100, 75)
    (tmp_path / "MiniLongBench_trec.json").write_text(json.dumps({"0": {"origin_prompt": "T", "gold": ["Date"]}}))
    with pytest.raises(DataError, match=r"key '0', field 'gold': expected an object with answers and all_classes"):
        task_of(tmp_path)


@pytest.mark.parametrize(
    ("dataset", "changes", "field", "problem"),
    [
        ("hotpotqa", {"context": None}, "context", "expected a string, got null"),
        ("hotpotqa", {"context": " "}, "context", "is empty"),
        ("hotpotqa", {"input": 3}, "input", "expected a string, got '3'"),
        ("hotpotqa", {"answers": "Bob"}, "answers", "expected a list of at least one string, got 'Bob'"),
        ("hotpotqa", {"answers": []}, "answers", "expected a list of at least one string, got a list"),
        ("hotpotqa", {"answers": ["x", 3]}, "answers", "expected a string, got '3'"),
        ("hotpotqa", {"answers": ["\ud800"]}, "answers", "surrogate"),
        ("hotpotqa", {"length": "long"}, "length", "expected a whole number, got 'long'"),
        ("hotpotqa", {"length": -1}, "length", "is -1; it must be at least 0"),
        ("hotpotqa", {"dataset": "lcc"}, "dataset", "is 'lcc' in a file of hotpotqa"),
        ("trec", {"all_classes": None}, "all_classes", "expected a list of at least one string, got null"),
        ("passage_count", {"answers": ["twelve"]}, "answers", "'twelve' names no number for count"),
        ("passage_count", {"answers": ["3 of 4"]}, "answers", "names no number for count"),
    ],
)
def test_a_bad_value_names_file_line_and_field(
    folder: Folder, dataset: str, changes: dict[str, Any], field: str, problem: str
) -> None:
    good = make_row(dataset, answers=["3"], all_classes=["3"])
    place = folder(**{dataset: [good, {**good, **changes}]})
    with pytest.raises(DataError) as raised:
        task_of(place)
    path = place / "data" / f"{dataset}.jsonl"
    assert str(raised.value).startswith(f"{path}, line 2, field {field!r}: ")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("field", ["input", "context", "answers", "length", "dataset", "_id"])
def test_a_missing_field_is_named(folder: Folder, field: str) -> None:
    place = folder(hotpotqa=[make_row()])
    row = {**make_row(), "_id": "b"}
    del row[field]
    path = place / "data" / "hotpotqa.jsonl"
    path.write_text(path.read_text() + json.dumps(row))
    with pytest.raises(DataError, match=f"line 2, field '{field}': is missing"):
        task_of(place)


def test_an_id_given_twice_names_both_places(folder: Folder) -> None:
    place = folder(hotpotqa=[make_row()])
    path = place / "data" / "hotpotqa.jsonl"
    path.write_text(f"{json.dumps(make_row())}\n{json.dumps(make_row(input='What?'))}\n")
    with pytest.raises(DataError, match=r"line 2, field '_id': \"a1\" is on .*line 1 too"):
        task_of(place)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{"input": ["a"], "context": ["b"]}', "laid out by column"),
        (b'{"input": "caf\xe9"}', "line 1: not UTF-8 text"),
        (b'{"input": "a"\n', "line 1: broken JSON"),
    ],
)
def test_a_bad_file_is_named(folder: Folder, content: bytes, message: str) -> None:
    place = folder(hotpotqa=[make_row()])
    (place / "data" / "hotpotqa.jsonl").write_bytes(content)
    with pytest.raises(DataError) as raised:
        task_of(place)
    assert str(raised.value).startswith(str(place / "data" / "hotpotqa.jsonl"))
    assert message in str(raised.value)


def test_a_row_of_ten_megabytes_is_read(folder: Folder) -> None:
    task, data = task_of(folder(hotpotqa=[make_row(context="word " * 2_000_000)]))
    assert len(request(task, data).prompt) > 10_000_000


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"lcc": "{context}"}, "field 'hotpotqa': is missing"),
        ({"hotpotqa": 3}, "field 'hotpotqa': expected a string"),
        ({"hotpotqa": "{context.__class__}"}, "not {context.__class__}"),
        ({"hotpotqa": "{answers}"}, "not {answers}"),
        ({"hotpotqa": "{context!r}"}, "a prompt may have {context} and {input}"),
        ({"hotpotqa": "{context"}, "is no prompt with {context} and {input}"),
        ({"hotpotqa": "{}"}, "a prompt may have {context} and {input}"),
    ],
)
def test_a_bad_template_is_named(folder: Folder, templates: dict[str, Any], message: str) -> None:
    place = folder(templates, hotpotqa=[make_row()])
    with pytest.raises(DataError) as raised:
        task_of(place)
    assert str(place / "config" / "dataset2prompt.json") in str(raised.value)
    assert message in str(raised.value)


def test_missing_files_and_scripts_say_what_to_get(folder: Folder, tmp_path: Path) -> None:
    place = folder(hotpotqa=[make_row()])
    (place / "config" / "dataset2prompt.json").unlink()
    with pytest.raises(DataError, match=r"dataset2prompt\.json: no such file.*github\.com/THUDM/LongBench"):
        task_of(place)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"get data\.zip from https://huggingface\.co/datasets/THUDM/LongBench"):
        task_of(empty)
    (empty / "LongBench.py").write_text("import datasets")
    with pytest.raises(DataError, match=r"LongBench\.py is a loading script"):
        task_of(empty)
    with pytest.raises(DataError, match="is a loading script"):
        task_of(empty / "LongBench.py")
    with pytest.raises(DataError, match="no such file"):
        task_of(tmp_path / "none.jsonl")


class TestBundled:
    @pytest.fixture(autouse=True)
    def _jieba(self) -> None:
        pytest.importorskip("jieba", reason="extra longbench")

    def load(self, **options: Any) -> tuple[Task, TaskData]:
        task = get_task("longbench", TaskOptions(**options))
        return task, task.load()

    def test_one_sample_of_each_set_by_default(self) -> None:
        task, data = self.load()
        sets = task_info("longbench").settings["bundled_datasets"]
        assert [sample.stratum for sample in data.samples] == list(sets)
        assert data.source == "bundled"
        assert data.incomplete == f"{len(sets)} of {data.total} samples"
        assert {one["metric"] for one in sets.values()} >= {
            *("qa_f1", "qa_f1_zh", "rouge_l", "classification", "count", "retrieval", "retrieval_zh", "code_sim")
        }
        assert all(isinstance(task.request(sample), Generate) for sample in data.samples)

    def test_the_right_answer_scores_full_marks_in_every_set(self) -> None:
        task, data = self.load(limit=1000)
        assert data.incomplete is None
        judge = get_judge("rules")
        for sample in data.samples:
            value = task.score(sample, sample.data["answers"][0], judge).scores[f"score_{sample.stratum}"].value
            assert value == pytest.approx(100, abs=1e-5), sample.sample_id

    def test_the_answer_is_in_the_prompt(self) -> None:
        _, data = self.load(limit=1000, variant="notes_qa,notes_qa_zh,notes_find,notes_find_zh")
        for sample in data.samples:
            if sample.stratum in ("notes_find", "notes_find_zh"):
                assert sample.data["answers"][0] in sample.data["prompt"]
            else:
                assert any(answer in sample.data["prompt"].lower() for answer in map(str.lower, sample.data["answers"]))

    def test_seeds(self) -> None:
        assert self.load(data_seed=3)[1] == self.load(data_seed=3)[1]
        assert self.load(data_seed=3)[1].sha256 != self.load()[1].sha256
        with pytest.raises(ConfigError, match="data_seed=1 is for source=bundled"):
            get_task("longbench", TaskOptions(source="official", data_seed=1))
        with pytest.raises(ConfigError, match="unknown variant 'e'"):
            get_task("longbench", TaskOptions(variant="e"))
