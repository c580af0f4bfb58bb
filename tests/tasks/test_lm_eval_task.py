"""lm-eval's tasks in our runner: names that cannot run are refused in a line, its files for our tasks score as ours."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from tests.lm_eval_backend.conftest import yaml_tasks as yaml_tasks
from velox_eval.engine.requests import Generate, LogLikelihood
from velox_eval.errors import ConfigError, DataError
from velox_eval.judges import get_judge
from velox_eval.records.schema import Likelihoods
from velox_eval.tasks import TaskOptions, get_task
from velox_eval.tasks.definition import task_files

RULES = get_judge("rules")


def test_an_answer_is_scored_by_the_tasks_own_metrics(yaml_tasks: Path) -> None:
    task = get_task("lm_eval/tiny_gen", TaskOptions(data=str(yaml_tasks), limit=3))
    data = task.load()
    assert (len(data.samples), data.total, data.source) == (3, 5, "data")
    assert data.incomplete == "3 of 5 samples"
    request = task.request(data.samples[0])
    assert isinstance(request, Generate)
    assert (request.prompt, request.max_tokens, request.stop) == ("Count on: 0, 1, 2,", 6, ("\n",))
    assert (request.chat, request.cut_left) == (False, True)
    assert task.score(data.samples[0], " 3", RULES).scores["exact_match"].num == 1
    assert task.score(data.samples[0], "3", RULES).scores["exact_match"].num == 0  # lm-eval's counts white space
    assert task.score(data.samples[0], "three", RULES).scores["exact_match"].num == 0
    talk = get_task("lm_eval/tiny_gen", TaskOptions(data=str(yaml_tasks), limit=1, variant="chat", max_tokens=3))
    [sample] = talk.load().samples
    asked = talk.request(sample)
    assert isinstance(asked, Generate)
    assert (asked.chat, asked.max_tokens) == (True, 3)
    again = get_task("lm_eval/tiny_gen", TaskOptions(data=str(yaml_tasks / "gen.yaml"), limit=3)).load()
    assert again.sha256 == data.sha256
    assert [sample.sample_id for sample in again.samples] == [sample.sample_id for sample in data.samples]


def test_options_of_a_question_are_scored_together(yaml_tasks: Path) -> None:
    task = get_task("lm_eval/tiny_mc", TaskOptions(data=str(yaml_tasks)))
    first, second = task.load().samples
    request = task.request(first)
    assert isinstance(request, LogLikelihood)
    assert request.pairs[2] == ("The capital of France is", " a city in the north")
    found = Likelihoods(logprobs=(-1.0, -2.0, -9.0), greedy=(True, False, False), tokens=(1, 1, 5))
    scored = [task.score_likelihoods(sample, found) for sample in (first, second)]
    assert scored[0].scores["acc"].num == 1
    assert scored[1].scores["acc"].num == 0
    assert scored[0].scores["acc_norm"].num == 1
    assert task.info.primary == "acc"
    odds = [math.exp(value) for value in found.logprobs]
    shares = [value / sum(odds) for value in odds]
    errors = [sum((share - (place == right)) ** 2 for place, share in enumerate(shares)) for right in (0, 1)]
    together = task.aggregated([item.details for item in scored])
    assert together == {"brier_score": pytest.approx(sum(errors) / 2)}
    with pytest.raises(DataError, match="asks 3 things"):
        task.score_likelihoods(first, Likelihoods(logprobs=(-1.0,), greedy=(True,), tokens=(1,)))


def test_perplexities_are_those_of_all_texts_together(yaml_tasks: Path) -> None:
    task = get_task("lm_eval/tiny_roll", TaskOptions(data=str(yaml_tasks), limit=2))
    samples = task.load().samples
    request = task.request(samples[0])
    assert isinstance(request, LogLikelihood)
    assert request.rolling
    scored = [
        task.score_likelihoods(sample, Likelihoods(logprobs=(value,), greedy=(False,), tokens=(9,)))
        for sample, value in zip(samples, (-10.0, -14.0), strict=True)
    ]
    words = [item.scores["word_perplexity_loglikelihood"] for item in scored]
    assert [(score.num, score.den) for score in words] == [(-10, 5), (-14, 5)]
    mean = sum(score.num for score in words) / sum(score.den for score in words)
    assert task.derived({"word_perplexity_loglikelihood": mean})["word_perplexity"] == pytest.approx(2.718281828**2.4)
    assert task.info.primary == "word_perplexity_loglikelihood"
    assert task.info.higher_is_better


def test_what_our_runner_cannot_run_is_refused_in_a_line(yaml_tasks: Path, tmp_path: Path) -> None:
    options = TaskOptions(data=str(yaml_tasks))
    for name, message in {
        "tiny_group": "group of 2 tasks of lm-eval; name one of them: tiny_gen, tiny_mc",
        "tiny_unsafe": "runs code that a model wrote: .*--confirm_run_unsafe_code",
        "tiny_several": "asks 3 answers a document",
    }.items():
        with pytest.raises(ConfigError, match=message):
            get_task(f"lm_eval/{name}", options)
    with pytest.raises(DataError, match="no such file or folder"):
        get_task("lm_eval/tiny_gen", TaskOptions(data=str(tmp_path / "none")))
    (tmp_path / "empty").mkdir()
    for place, message in {"empty": "holds no YAML file", "rows.jsonl": "is no YAML file"}.items():
        with pytest.raises(DataError, match=message):  # and not lm-eval's own task of that name
            get_task("lm_eval/arc_easy", TaskOptions(data=str((tmp_path if place == "empty" else yaml_tasks) / place)))
    (yaml_tasks / "rows.jsonl").unlink()
    with pytest.raises(DataError, match=r"tiny_gen cannot be loaded \(FileNotFoundError"):
        get_task("lm_eval/tiny_gen", options)
    with pytest.raises(ConfigError, match="variant='chatt'"):
        get_task("lm_eval/tiny_gen", TaskOptions(data=str(yaml_tasks), variant="chatt"))


def test_an_unknown_name_has_the_nearest_beside_it() -> None:
    with pytest.raises(ConfigError, match=r"no task 'hellaswg'; did you mean .*hellaswag"):
        get_task("lm_eval/hellaswg")


@pytest.mark.parametrize("name", ["longgenbench", "longwriter"])
def test_our_tasks_as_files_of_lm_eval_score_as_ours(name: str) -> None:
    plain = get_task(name, TaskOptions(limit=6))
    task = get_task(f"lm_eval/{name}", TaskOptions(data=str(task_files() / "lm_eval"), limit=6))
    data, theirs = plain.load(), task.load()
    assert theirs.total == get_task(name, TaskOptions(limit=10**6)).load().total
    answer = "A gym and a pool.\n#*# Floor 2: a garden of 200 roses\n#*# Week 2: run\n#*# Menu Week 3: soup " * 20
    for ours, sample in zip(data.samples, theirs.samples, strict=True):
        request = task.request(sample)
        assert isinstance(request, Generate)
        assert request.prompt == plain.request(ours).prompt
        expected = plain.score(ours, answer, RULES).scores
        for metric, score in task.score(sample, answer, RULES).scores.items():
            assert (score.num, score.den) == (expected[metric].num, expected[metric].den), metric
    assert task.info.primary == plain.info.primary
