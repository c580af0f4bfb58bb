"""Answers from a file: which sample a row answers, what the run says of itself, what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velox_eval.errors import ConfigError, DataError
from velox_eval.judges import DIMENSIONS
from velox_eval.records.config import text_sha256
from velox_eval.records.schema import RunRow
from velox_eval.records.store import RunStore, load_run
from velox_eval.runs.recorder import RunResult
from velox_eval.runs.rescore import rescore
from velox_eval.runs.responses import ResponseOptions, score_responses
from velox_eval.tasks import TaskOptions, get_task

PROMPTS = ("Write about rain in 10 words.", "Write about snow in 10 words.", "Write about fog in 10 words. ")
ANSWERS = ("rain " * 10, "snow " * 20, "")
SCORES = (100.0, 200 / 3, 0.0)

Score = Callable[..., RunResult]


def rows(*indices: int, **more: Any) -> list[dict[str, Any]]:
    """Rows that answer the prompts of these indices (all of them)."""
    return [{"prompt": PROMPTS[i], "response": ANSWERS[i], **more} for i in indices or range(len(PROMPTS))]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three prompts of ten words each."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text, "type": "weather", "length": 10}) for text in PROMPTS))
    return path


@pytest.fixture
def score(tmp_path: Path, data: Path) -> Score:
    """Writes rows (or the bytes given) and scores them as answers to the prompts."""

    def call(content: list[dict[str, Any]] | bytes, **changes: Any) -> RunResult:
        path = tmp_path / "answers.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else "\n".join(map(json.dumps, content)).encode())
        fields = {"responses": str(path), "task": "longwriter", "data": str(data), "results": tmp_path / "results"}
        return score_responses(ResponseOptions(**(fields | changes)))

    return call


def values(result: RunResult, name: str = "s_l") -> list[float | None]:
    return [record.scores[name].value for record in result.samples]


def test_rows_are_matched_by_prompt_in_any_order(score: Score) -> None:
    result = score(rows(2, 0, 1))
    assert values(result) == pytest.approx(SCORES)
    assert [record.response for record in result.samples] == list(ANSWERS)
    assert [record.response_sha256 for record in result.samples] == [text_sha256(text) for text in ANSWERS]
    assert [record.prompt_sha256 for record in result.samples] == [text_sha256(text) for text in PROMPTS]
    assert result.header.responses.matched_by == "prompt"
    assert result.header.summary.primary_value == pytest.approx(sum(SCORES) / 3)


def test_white_space_at_a_prompts_end_does_not_matter_and_nothing_else_is_forgiven(score: Score) -> None:
    assert values(score([{**row, "prompt": row["prompt"].rstrip() + "\n"} for row in rows()])) == pytest.approx(SCORES)
    with pytest.raises(DataError, match=r"answers.jsonl, line 2, field 'prompt': is of no sample of prompts.jsonl"):
        score([rows(0)[0], {**rows(1)[0], "prompt": PROMPTS[1].lower()}, rows(2)[0]])


def test_rows_are_matched_by_the_prompts_hash(score: Score) -> None:
    hashed = [{"prompt_sha256": text_sha256(PROMPTS[i]), "response": ANSWERS[i]} for i in (1, 2, 0)]
    result = score(hashed)
    assert values(result) == pytest.approx(SCORES)
    with pytest.raises(DataError, match="line 3, field 'prompt_sha256': is of no sample"):
        score([*hashed[:2], {**hashed[2], "prompt_sha256": "0" * 64}])


def test_rows_are_matched_by_id_and_their_prompts_checked(score: Score, data: Path) -> None:
    ids = [sample.sample_id for sample in get_task("longwriter", TaskOptions(data=str(data))).load().samples]
    named = [{"sample_id": ids[i], "response": ANSWERS[i]} for i in (2, 1, 0)]
    result = score(named)
    assert values(result) == pytest.approx(SCORES)
    assert result.header.responses.matched_by == "id"
    other = [{"key": row["sample_id"], "text": row["response"]} for row in named]
    assert values(score(other, fields={"id": "key", "response": "text"})) == pytest.approx(SCORES)
    with pytest.raises(DataError, match=r"line 1, field 'sample_id': 'x' is no sample of prompts.jsonl \(all 3\)"):
        score([{**named[0], "sample_id": "x"}, *named[1:]])
    with pytest.raises(DataError, match=f"line 2, field 'prompt': is not the prompt of sample '{ids[1]}'"):
        score([named[0], {**named[1], "prompt": PROMPTS[0]}, named[2]])


def test_rows_are_taken_in_order_only_when_asked_and_their_prompts_checked(score: Score) -> None:
    bare = [{"response": text} for text in ANSWERS]
    with pytest.raises(DataError, match=r"line 1, field 'prompt': is missing, and so is 'sample_id'.*--match order"):
        score(bare)
    result = score(bare, match="order")
    assert values(result) == pytest.approx(SCORES)
    assert result.header.responses.matched_by == "order"
    with pytest.raises(DataError, match="line 1, field 'prompt': is not the prompt of sample"):
        score(rows(1, 0, 2), match="order")
    with pytest.raises(DataError, match="is of row 2, and the task has 3 samples"):
        score(bare[:2], match="order", allow_missing=True)


def test_samples_that_share_a_prompt_take_its_rows_in_order(score: Score, data: Path) -> None:
    row = {"prompt": PROMPTS[0], "type": "weather", "length": 10}
    data.write_text("\n".join(json.dumps(item) for item in (row, {**row, "length": 20})))
    twice = [{"prompt": PROMPTS[0], "response": "rain " * count} for count in (10, 20)]
    assert values(score(twice)) == [100, 100]
    with pytest.raises(DataError, match=r"line 3, field 'prompt': sample .* has its answer on .*line 2 already"):
        score([*twice, twice[0]])


def test_a_second_row_for_a_sample_is_named(score: Score) -> None:
    with pytest.raises(DataError, match=r"line 4, field 'prompt': sample .* has its answer on .*line 1 already"):
        score([*rows(), *rows(0)])


def test_missing_rows_are_named_or_left_out_when_allowed(score: Score, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"answers.jsonl: 2 of 3 samples have no row: 0000-\w+, 0002-\w+; --allow-missing"
    ):
        score(rows(1))
    assert not (tmp_path / "results").exists()
    result = score(rows(1), allow_missing=True)
    assert result.header.data.incomplete == "1 of 3 samples have a response"
    assert (result.header.summary.n, result.header.summary.primary_value) == (1, pytest.approx(SCORES[1]))
    again = rescore(result.path, results=tmp_path / "results")
    assert again.header.summary.n == 1


def test_a_row_beyond_the_limit_says_what_was_read(score: Score) -> None:
    with pytest.raises(DataError, match=r"line 3, field 'prompt': is of no sample of prompts.jsonl \(first 2 of 3"):
        score(rows(), limit=2)


def test_the_run_says_that_its_answers_are_foreign(score: Score, tmp_path: Path) -> None:
    result = score(rows(), name="SnapKV", model="llama-3.1-8b")
    stored = load_run(result.path)
    assert stored.samples == list(result.samples)
    header = stored.header
    about = header.responses
    assert about.sha256 == hashlib.sha256((tmp_path / "answers.jsonl").read_bytes()).hexdigest()
    assert (about.file, about.rows, about.rated_by) == ("answers.jsonl", 3, None)
    assert about.fields == {"response": "response", "prompt": "prompt"}
    assert (header.config.method, header.method.name, header.method.variant) == (*["responses/SnapKV"] * 2, "foreign")
    assert header.method.evicts is None
    assert "answers read from answers.jsonl" in header.method.differs
    assert header.model.name == "llama-3.1-8b"
    assert header.model.content_sha256 == "unknown, claimed to be llama-3.1-8b"
    assert {header.model.device, header.model.route, header.model.dtype} == {"unknown"}
    assert set(header.identity.versions) == {"velox-eval"}
    assert header.summary.n_not_fired is None
    assert header.summary.peak_cache_bytes is None
    assert header.summary.cost.decode_tokens == 0
    (record,) = [record for record in stored.samples if record.response == ANSWERS[1]]
    assert (record.generated_tokens, record.finish_reason, record.truncated, record.peak_cache_bytes) == (None,) * 4
    assert record.repetition_rate == pytest.approx(1 - 1 / 17)
    assert record.late_repetition_rate == pytest.approx(1 - 1 / 7)
    (row,) = RunStore(tmp_path / "results").rows()
    assert isinstance(row, RunRow)
    assert (row.responses, row.method, row.model, row.budget) == (
        "answers.jsonl",
        "responses/SnapKV",
        "llama-3.1-8b",
        None,
    )


def test_the_same_file_is_shown_again_and_another_is_another_run(score: Score) -> None:
    first = score(rows(), name="a")
    assert score(rows(), name="a").state == "finished"
    assert score(rows(2, 1, 0), name="a").path == first.path  # the same answers to the same samples
    assert score(rows(), name="b").path != first.path
    changed = [{**row, "response": row["response"] + "!"} for row in rows()]
    assert score(changed, name="a").path != first.path
    assert score(rows(), name="a", again=True).path != first.path


def test_stored_ratings_are_read_and_named(score: Score, tmp_path: Path) -> None:
    points = dict.fromkeys(DIMENSIONS, 3)
    ratings: list[Any] = [points, {**points, "Clarity": 7}, json.dumps({**points, "Analysis": "good {so}"})]
    rated = [{**row, "scores": item} for row, item in zip(rows(), ratings, strict=True)]
    result = score(rated, fields={"ratings": "scores"}, rated_by="mistral-large")
    assert [record.scores["s_q"].value if "s_q" in record.scores else None for record in result.samples] == [
        50,
        None,
        50,
    ]
    assert "Clarity is 7" in result.samples[1].unscored["s_q"]
    assert result.header.summary.n_unscored == 1
    assert result.header.identity.judge == "rules@2+stored:mistral-large"
    assert result.header.responses.rated_by == "mistral-large"
    unnamed = score(rated, fields={"ratings": "scores"})
    assert unnamed.header.identity.judge == "rules@2+stored:unknown"
    anew = rescore(result.path, results=tmp_path / "results")
    assert "s_q" not in anew.header.summary.scores
    assert (anew.header.identity.judge, anew.header.responses.rated_by) == ("rules@2", None)


def test_a_stored_run_of_ours_can_be_read_as_a_file(score: Score, data: Path, tmp_path: Path) -> None:
    first = score(rows())
    options = {"task": "longwriter", "data": str(data), "results": tmp_path / "other"}
    second = score_responses(ResponseOptions(responses=str(first.path / "samples.jsonl"), **options))
    assert second.header.responses.matched_by == "id"
    assert values(second) == pytest.approx(SCORES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "answers.jsonl: is empty"),
        (b'{"prompt": ["a"], "response": ["b"]}', "laid out by column"),
        (b'{"prompt": "a", "response": "b"}\n{"prompt": "\xff"}', "line 2: not UTF-8 text"),
        (b'{"prompt": "a"', "line 1: broken JSON"),
        (b"[1]", "line 1: expected an object"),
    ],
)
def test_a_bad_file_is_named_and_nothing_written(score: Score, tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        score(content)
    assert str(tmp_path / "answers.jsonl") in str(raised.value)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"response": None}, {}, "field 'response': expected a string, got null"),
        ({"response": ["a"]}, {}, "field 'response': expected a string, got a list"),
        ({"response": "go " * 3_500_000}, {}, "field 'response': has 10,500,000 characters; at most 5,000,000"),
        ({"response": "\ud800"}, {}, "field 'response': holds half of a surrogate pair"),
        ({"prompt": 3}, {}, "field 'prompt': expected a string, got '3'"),
        ({"scores": 5}, {"fields": {"ratings": "scores"}}, "field 'scores': expected an object of points"),
        ({}, {"fields": {"ratings": "scores"}}, "field 'scores': is missing"),
        ({}, {"fields": {"response": "text"}}, "field 'text': is missing"),
    ],
)
def test_a_bad_row_is_named_and_nothing_written(
    score: Score, tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    good = [{**row, "scores": dict.fromkeys(DIMENSIONS, 3), "text": "fine"} for row in rows()]
    del good[1]["scores"], good[1]["text"]
    with pytest.raises(DataError, match=message) as raised:
        score([good[0], {**good[1], **changes}, good[2]], **options)
    assert str(raised.value).startswith(f"{tmp_path / 'answers.jsonl'}, line 2, ")
    assert not (tmp_path / "results").exists()


def test_a_missing_file_is_named(score: Score, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: no such file"):
        score(rows(), responses=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": {"respnse": "text"}}, "did you mean 'response'"),
        ({"match": "hash"}, "unknown --match 'hash'"),
        ({"rated_by": "someone"}, "say where: --field ratings=FIELD"),
        ({"name": "a/b"}, "name='a/b': letters"),
        ({"name": "\x1b[31m"}, "letters, digits"),
        ({"model": ""}, "model=''"),
        ({"task": "fidelity", "data": None}, "has no answers to score"),
        ({"task": "longwritr"}, "did you mean 'longwriter'"),
        ({"judge": "rule"}, "did you mean 'rules'"),
    ],
)
def test_options_that_cannot_work_are_refused(
    score: Score, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        score(rows(), **options)
    assert not (tmp_path / "results").exists()


def test_other_tasks_answers_are_scored_too(tmp_path: Path) -> None:
    task = get_task("longgenbench_qa")
    samples = task.load().samples
    path = tmp_path / "qa.json"
    written = [
        {"prompt": task.request(sample).prompt, "out": f"Answer_5: {sample.data['solutions']['5']}"}
        for sample in samples
    ]
    path.write_text(json.dumps(written))
    options = ResponseOptions(str(path), "longgenbench_qa", fields={"response": "out"}, results=tmp_path / "results")
    summary = score_responses(options).header.summary
    assert summary.primary_value == pytest.approx(1 / 8)
    assert summary.scores["accuracy_answered"].value == 1


PUBLISHED = {
    "full": ("hopf_False_type_max_fused", 73.78, 66.46, 0.886),
    "SnapKV": ("type_snapkv", 73.78, 67.71, 0.886),
    "H2O": ("type_h2o_masked", 72.09, 68.47, 0.62),
    "MorphKV": ("type_sum_fused_win_fix", 76.02, 69.51, 0.676),
}


def test_published_answers_score_as_published(shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "data"
    runs = {}
    for name, (file, s_l, s_q, repetition) in PUBLISHED.items():
        (path,) = (folder / "longwriter_morphkv_outputs" / "llama3.1-8b-instruct").glob(f"*{file}*_judge.jsonl")
        options = ResponseOptions(
            str(path),
            "longwriter",
            data=str(folder / "longwriter" / "longbench_write_en.jsonl"),
            fields={"ratings": "scores"},
            rated_by="mistral-large",
            model="llama-3.1-8b",
            name=name,
            results=tmp_path,
        )
        runs[name] = score_responses(options)
        scores = runs[name].header.summary.scores
        assert scores["s_l"].value == pytest.approx(s_l, abs=0.005)
        assert scores["s_q"].value == pytest.approx(s_q, abs=0.005)
        assert scores["long_repetition"].value == pytest.approx(repetition, abs=0.002)
    full, snapkv = ([record.response_sha256 for record in runs[name].samples] for name in ("full", "SnapKV"))
    assert full == snapkv
    assert runs["full"].header.identity.requests_sha256 == runs["SnapKV"].header.identity.requests_sha256
    assert runs["full"].header.config_hash != runs["SnapKV"].header.config_hash
