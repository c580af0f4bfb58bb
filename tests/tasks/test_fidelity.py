"""The task fidelity: its texts, its requests, runs of it end to end on the tiny model, and its records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from velox_eval.errors import ConfigError, DataError
from velox_eval.judges import get_judge
from velox_eval.records.schema import SampleRecord, TeacherForced
from velox_eval.records.store import RunStore, load_run
from velox_eval.runs.plan import RunOptions, make_plan
from velox_eval.runs.rescore import rescore
from velox_eval.runs.runner import run
from velox_eval.tasks import Sample, TaskOptions, get_task


@pytest.fixture
def options(tmp_path: Path, tiny_model_dir: Path) -> Any:
    """Two rows, one with a continuation; 40 tokens compared."""
    rows = [
        {
            "id": "mill",
            "prompt": "The mill stood by the river. " * 4,
            "continuation": " Nobody had seen the miller since.",
        },
        {"prompt": "Snow fell on the quay and on the boats beside it, all night long."},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**changes: Any) -> RunOptions:
        fields: dict[str, Any] = {
            "task": "fidelity",
            "model": str(tiny_model_dir),
            "data": str(path),
            "budget": 24,
            "max_tokens": 40,
            "results": tmp_path / "results",
        }
        return RunOptions(**(fields | changes))

    return make


def test_the_bundled_texts_are_compared_twice() -> None:
    task = get_task("fidelity")
    data = task.load()
    assert (data.source, len(data.samples), data.incomplete) == ("bundled", 12, None)
    for human, own in zip(data.samples[::2], data.samples[1::2], strict=True):
        assert (human.stratum, own.stratum) == ("human_text", "own_answer")
        assert human.data["prompt"] == own.data["prompt"]
        text, answer = task.request(human), task.request(own)
        assert text.continuation.startswith(" ")
        assert answer.continuation is None
        assert text.max_tokens == answer.max_tokens == 128
        words = len((text.prompt + text.continuation).split())
        assert 550 < words < 900
        assert 190 < len(text.prompt.split()) < 260
    assert len({sample.sample_id for sample in data.samples}) == 12


def test_lower_is_better() -> None:
    info = get_task("fidelity").info
    assert (info.primary, info.higher_is_better) == ("mean_kl", False)
    assert get_task("longgenbench").info.higher_is_better is True


def test_a_variant_takes_one_kind() -> None:
    for variant, kind in (("human_text", "human_text"), ("own_answer", "own_answer")):
        data = get_task("fidelity", TaskOptions(variant=variant, limit=5)).load()
        assert {sample.stratum for sample in data.samples} == {kind}
        assert len(data.samples) == 5
        assert data.incomplete == "5 of 12 samples"
    with pytest.raises(ConfigError, match="did you mean 'own_answer'"):
        get_task("fidelity", TaskOptions(variant="own_answers"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": 3}', "line 1, field 'prompt': expected a string"),
        ('{"text": "x"}', "field 'prompt': is missing"),
        ('{"prompt": "x", "continuation": " "}', "field 'continuation': is empty"),
        ('{"prompt": "x", "continuation": ["y"]}', "field 'continuation': expected a string"),
        ('{"prompt": "x", "id": 1}', "field 'id'"),
    ],
)
def test_bad_rows_are_refused_by_line_and_field(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content + "\n")
    with pytest.raises(DataError, match=message):
        get_task("fidelity", TaskOptions(data=str(path))).load()


def test_rows_without_a_continuation_have_an_own_answer_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "x"}\n')
    [sample] = get_task("fidelity", TaskOptions(data=str(path))).load().samples
    assert sample.stratum == "own_answer"
    with pytest.raises(DataError, match="no row has a continuation, which variant=human_text"):
        get_task("fidelity", TaskOptions(data=str(path), variant="human_text")).load()


def test_a_run_records_every_token(options: Any) -> None:
    result = run(options())
    assert result.header.status == "success"
    assert [record.stratum for record in result.samples] == ["human_text", "own_answer", "own_answer"]
    for record in result.samples:
        compared = record.teacher_forced
        assert compared is not None
        for field in (
            "response",
            "response_sha256",
            "generated_tokens",
            "finish_reason",
            "truncated",
            "repetition_rate",
        ):
            assert getattr(record, field) is None
        n = len(compared.tokens)
        assert n == (34 if record.stratum == "human_text" else 40)
        assert record.scores["mean_kl"].value == pytest.approx(math.fsum(compared.kl) / n)
        assert record.scores["mean_kl"].value > 0
        assert record.scores[f"mean_kl_{record.stratum}"] == record.scores["mean_kl"]
        assert record.accuracy == pytest.approx(sum(compared.agree) / n)
        assert record.kept_tokens == (24, 24)
        assert record.evicted_tokens == 2 * (record.prompt_tokens + n - 1 - 24)
        assert record.method_fired is True
        assert record.tokens_per_second > 0
    human = result.samples[0].teacher_forced
    assert human is not None
    assert human.text == " Nobody had seen the miller since."
    summary = result.header.summary
    assert summary is not None
    assert (summary.primary, summary.higher_is_better) == ("mean_kl", False)
    assert summary.primary_value == pytest.approx(summary.scores["mean_kl"].value)
    assert summary.derived["perplexity_ratio"] == pytest.approx(
        math.exp(summary.scores["nll_method"].value - summary.scores["nll_full"].value)
    )
    assert set(summary.curves) == {
        f"{name}_{axis}" for name in ("mean_kl", "top1_agreement") for axis in ("by_decile", "by_position")
    }
    assert (summary.n_truncated, summary.mean_generated_tokens, summary.repetition_rate) == (0, None, None)
    assert summary.kept_fraction is not None
    assert load_run(result.path).samples == list(result.samples)
    [row] = RunStore(options().results).rows()
    assert row.higher_is_better is False
    assert "NaN" not in (result.path / "samples.jsonl").read_text()


def test_the_full_cache_against_itself_is_exact(options: Any) -> None:
    summary = run(options(method="full", budget=None)).header.summary
    assert summary is not None
    assert summary.primary_value == 0
    assert summary.scores["top1_agreement"].value == 1
    assert summary.derived["perplexity_ratio"] == 1
    assert summary.scores["diverged"].value == 0


def test_a_finished_run_is_scored_again_without_a_model(options: Any, tmp_path: Path) -> None:
    first = run(options())
    again = rescore(first.path, results=tmp_path / "again")
    assert [record.scores for record in again.samples] == [record.scores for record in first.samples]
    assert again.header.summary is not None
    assert first.header.summary is not None
    assert again.header.summary.primary_value == first.header.summary.primary_value


def test_what_is_compared_is_part_of_the_runs_identity(options: Any, tmp_path: Path) -> None:
    plan = make_plan(options())
    assert plan.compares
    other = make_plan(options(max_tokens=39))
    assert plan.requests_sha256 != other.requests_sha256
    assert plan.requests_sha256 == make_plan(options(method="full", budget=None)).requests_sha256


def test_sampling_is_refused_before_a_model_is_loaded(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"temperature=0\.7: fidelity feeds fixed tokens"):
        make_plan(options(temperature=0.7, model="no such model"))


def test_a_comparison_that_failed_leaves_the_others(options: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 5000}) + "\n" + json.dumps({"prompt": "Snow fell. " * 5}) + "\n")
    result = run(options(data=str(path), max_error_share=1.0))
    bad, good = result.samples
    assert (bad.status, good.status) == ("error", "ok")
    assert "no room" in (bad.error or "")
    assert bad.scores == {}
    assert result.header.summary is not None
    assert result.header.summary.primary_value == good.scores["mean_kl"].value


def test_an_answer_alone_cannot_be_scored() -> None:
    task = get_task("fidelity")
    with pytest.raises(DataError, match="a text alone has none"):
        task.score(Sample("a", "own_answer", {}), "an answer", get_judge("rules"))
    compared = TeacherForced(
        text="x", tokens=(1,), kl=(0.0,), agree=(True,), full_logprob=(0.0,), method_logprob=(0.0,)
    )
    with pytest.raises(DataError, match="longgenbench scores answers"):
        get_task("longgenbench").score_comparison(Sample("a", "x", {}), compared)


def test_a_record_holds_an_answer_or_a_comparison_with_a_number_a_token() -> None:
    compared = {"text": "x", "tokens": [1, 2], "kl": [0.0], "agree": [True] * 2}
    with pytest.raises(ValueError, match="kl has 1 numbers for 2 tokens"):
        TeacherForced(**compared, full_logprob=[0.0] * 2, method_logprob=[0.0] * 2)  # type: ignore[arg-type]
    whole = TeacherForced(text="x", tokens=(1,), kl=(0.0,), agree=(True,), full_logprob=(0.0,), method_logprob=(0.0,))
    base: dict[str, Any] = {"sample_id": "a", "index": 0, "stratum": "s", "status": "ok", "prompt_sha256": "0"}
    assert SampleRecord(**base, teacher_forced=whole).answer is whole
    with pytest.raises(ValueError, match="without a response"):
        SampleRecord(**base)
    with pytest.raises(ValueError, match="more than one of response, comparison"):
        SampleRecord(**base, teacher_forced=whole, response="x")
