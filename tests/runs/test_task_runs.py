"""longwriter and longgenbench_qa through the whole harness: requests, chat template, answers, scores, summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from velox_eval.runs.plan import RunOptions
from velox_eval.runs.responses import ResponseOptions, score_responses
from velox_eval.runs.runner import run

TASKS = ("longwriter", "longgenbench_qa")


@pytest.mark.parametrize("task", TASKS)
def test_a_run_scores_every_sample_and_its_answers_score_the_same_from_a_file(
    task: str, options: Callable[..., RunOptions], tmp_path: Path
) -> None:
    result = run(options(task=task, data=None, limit=2, max_tokens=24, budget=64))
    header = result.header
    assert (header.status, header.summary.n_ok, header.summary.n_truncated) == ("success", 2, 2)
    assert header.summary.primary_value is not None
    assert all(record.generated_tokens == 24 and record.method_fired for record in result.samples)
    again = score_responses(
        ResponseOptions(str(result.path / "samples.jsonl"), task, limit=2, results=tmp_path / "again", name="copy")
    )
    assert [record.scores for record in again.samples] == [record.scores for record in result.samples]
    assert [record.response_sha256 for record in again.samples] == [r.response_sha256 for r in result.samples]
    assert again.header.data.sha256 == header.data.sha256


@pytest.mark.model
@pytest.mark.parametrize("task", TASKS)
def test_the_real_model_writes_something_that_scores(task: str, tmp_path: Path) -> None:
    """A story of some words; the example's format, from which at least one answer can be read."""
    limit, tokens = (1, 120) if task == "longwriter" else (2, 200)
    result = run(RunOptions("full", task, limit=limit, max_tokens=tokens, results=tmp_path))
    scores = result.header.summary.scores
    assert scores["official_words" if task == "longwriter" else "answered"].value > 0
