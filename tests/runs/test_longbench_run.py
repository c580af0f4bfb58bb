"""LongBench end to end on the tiny model: records, truncation, think traces, failures, scoring again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.test_longbench import TEMPLATES, make_row
from velox_eval.errors import DataError
from velox_eval.records.store import load_run
from velox_eval.runs.plan import RunOptions
from velox_eval.runs.rescore import rescore
from velox_eval.runs.runner import run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two data sets: two rows that fit the tiny model's context of 4096 bytes and one that does not."""
    rows = {
        "hotpotqa": [make_row(), make_row(_id="a2", context="x" * 9000)],
        "samsum": [make_row("samsum", context="Dialogue: A: hi\nSummary: A greets.")],
    }
    for name, items in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items))
    (tmp_path / "dataset2prompt.json").write_text(json.dumps(TEMPLATES))
    return tmp_path


def options(place: Path, tiny_model_dir: Path, **changes: Any) -> RunOptions:
    fields: dict[str, Any] = {
        "task": "longbench",
        "model": str(tiny_model_dir),
        "method": "morphkv",
        "data": str(place),
        "budget": 32,
        "results": place / "results",
    }
    return RunOptions(**(fields | changes))


def test_records_hold_what_was_cut_and_scored(place: Path, tiny_model_dir: Path) -> None:
    result = run(options(place, tiny_model_dir))
    assert result.header.status == "success"
    short, long, dialogue = result.samples
    assert (short.cut_tokens, dialogue.cut_tokens) == (0, 0)
    prompt = TEMPLATES["hotpotqa"].format(context="x" * 9000, input="Who?")
    template = len("user: \nassistant:")
    half = (4096 - 32 - template) // 2
    assert long.prompt_tokens == 2 * half + template
    assert long.cut_tokens == len(prompt) - 2 * half
    for record, most in zip(result.samples, (32, 32, 128), strict=True):
        assert record.generated_tokens is not None
        assert record.generated_tokens <= most
    assert dialogue.response
    assert "\n" not in dialogue.response
    assert dialogue.prompt_tokens == len(
        TEMPLATES["samsum"].format(context="Dialogue: A: hi\nSummary: A greets.", input="Who?")
    )
    summary = result.header.summary
    assert summary is not None
    assert summary.n_prompt_cut == 1
    assert set(summary.scores) == {"score", "accuracy", "score_hotpotqa", "score_samsum"}
    assert summary.primary_value == summary.scores["score"].value
    assert summary.derived["average_en"] is None
    assert result.header.data.incomplete is not None
    assert "19 of 21 data sets are missing" in result.header.data.incomplete
    text = (result.path / "run.json").read_text() + (result.path / "samples.jsonl").read_text()
    assert "NaN" not in text


def test_scoring_again_gives_the_same(place: Path, tiny_model_dir: Path) -> None:
    first = run(options(place, tiny_model_dir, max_prompt_tokens=60, limit=2))
    assert [record.cut_tokens for record in first.samples] == [0, 0]
    assert {record.stratum for record in first.samples} == {"hotpotqa", "samsum"}
    again = rescore(first.path, results=place / "again")
    assert [record.scores for record in again.samples] == [record.scores for record in first.samples]
    assert load_run(again.path).header.summary is not None


def test_bad_data_leaves_nothing_written(place: Path, tiny_model_dir: Path) -> None:
    (place / "samsum.jsonl").write_text(json.dumps(make_row("samsum", answers="one")))
    with pytest.raises(DataError, match=r"samsum\.jsonl, line 1, field 'answers'"):
        run(options(place, tiny_model_dir))
    assert not (place / "results").exists()


def test_a_method_that_must_not_see_the_question_is_on_record(place: Path, tiny_model_dir: Path) -> None:
    """U14: what KVzip compresses is the context alone, and the record says that the question plays no part."""
    result = run(options(place, tiny_model_dir, method="kvzip:paper", variant="hotpotqa", limit=1, budget=60))
    assert result.header.status == "success", result.samples[0].error
    assert result.header.method.query_aware is False
    assert run(
        options(place, tiny_model_dir, method="snapkv:paper", variant="hotpotqa", limit=1, budget=60)
    ).header.method.query_aware


@pytest.mark.model
class TestRealModel:
    def test_multi_news(self, shared_dir: Path, tmp_path: Path) -> None:
        """The authors' rows and prompts, two of 200 with prompts of 700 tokens at most."""
        place = shared_dir / "data" / "longbench"
        asked = RunOptions(
            task="longbench",
            method="morphkv",
            data=str(place),
            variant="multi_news",
            limit=2,
            max_tokens=16,
            max_prompt_tokens=700,
            budget=128,
            results=tmp_path,
        )
        result = run(asked)
        assert result.header.status == "success"
        assert result.header.data.total == 200
        assert result.header.data.incomplete == "2 of 200 samples"
        for record in result.samples:
            assert record.prompt_tokens is not None
            assert record.cut_tokens is not None
            assert record.prompt_tokens <= 700 + 40  # the chat template's
            assert record.scores["score_multi_news"].value is not None
            assert record.method_fired
            assert record.response

    def test_minilongbench(self, shared_dir: Path, tmp_path: Path) -> None:
        """A finished prompt of each of five kinds of score."""
        pytest.importorskip("jieba", reason="extra longbench")
        asked = RunOptions(
            task="longbench",
            method="snapkv",
            data=str(shared_dir / "data" / "minilongbench"),
            variant="trec,samsum,passage_retrieval_zh,lcc,multifieldqa_zh",
            limit=5,
            max_tokens=8,
            max_prompt_tokens=400,
            budget=128,
            results=tmp_path,
        )
        result = run(asked)
        assert result.header.status == "success"
        assert result.header.data.total == 8 + 15 + 15 + 26 + 15
        assert [record.stratum for record in result.samples] == (asked.variant or "").split(",")
        assert all(record.cut_tokens for record in result.samples)
        summary = result.header.summary
        assert summary is not None
        assert summary.n_prompt_cut == 5
        assert all(f"score_{record.stratum}" in summary.scores for record in result.samples)


def test_all_minilongbench_rows_load(shared_dir: Path) -> None:
    """237 rows in 21 files, every one with its metric's kind of answer; a right answer scores in every data set."""
    pytest.importorskip("jieba", reason="extra longbench")
    from velox_eval.judges import get_judge
    from velox_eval.tasks import TaskOptions, get_task

    task = get_task("longbench", TaskOptions(data=str(shared_dir / "data" / "minilongbench")))
    data = task.load()
    assert (len(data.samples), len({sample.stratum for sample in data.samples})) == (237, 21)
    assert data.incomplete is not None
    assert data.incomplete.startswith("narrativeqa has 6 of 200 rows; ")
    judge = get_judge("rules")
    for sample in data.samples:
        scored = task.score(sample, sample.data["answers"][0], judge).scores[f"score_{sample.stratum}"]
        assert scored.value is not None
        assert scored.value > (20 if sample.stratum in ("trec", "lsht", "lcc", "repobench-p") else 99)
