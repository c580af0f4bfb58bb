"""Sums of a run: who is in which denominator, and what is null when nothing can be said."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from velox_eval.engine.requests import CacheUse, Failure, Generate, Generation
from velox_eval.errors import JudgeError
from velox_eval.judges import RuleJudge
from velox_eval.records.config import Identity, build_config
from velox_eval.records.schema import Cost, DataInfo, MethodInfo, ModelInfo, RunHeader, Session
from velox_eval.records.score import Score
from velox_eval.runs.sample import sample_record
from velox_eval.runs.summary import summarise, total_cost
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions

INFO = TaskInfo("quiz", "right or wrong", 1, "accuracy", "accuracy", ("bundled",), ("1: first",), "-", {})


class Quiz(Task):
    """An answer is right, wrong, unclear (no score) or makes the judge fail; `asked` is what a sample weighs."""

    def load(self):
        return TaskData((), "bundled", "-", "0", 0)

    def request(self, sample):
        return Generate(sample.sample_id, "?", 10)

    def score(self, sample, response, judge):
        if response == "judge fails":
            raise JudgeError("the judge\ncannot be reached")
        if response == "unclear":
            return Scored({}, {"accuracy": "no verdict"})
        return Scored({"accuracy": Score(num=float(response == "right"))}, details={"said": response})

    def derived(self, pooled_scores):
        return {"percent": 100 * pooled_scores["accuracy"] if "accuracy" in pooled_scores else None}

    def curves(self, details):
        return {"answers": [float(len(details)), None]}


class CountedQuiz(Quiz):
    """Says what a failed sample was asked: two questions."""

    def unanswered(self, sample):
        return {"accuracy": Score(num=0, den=2)}


def generation(text, evicted=3, **changes):
    use = CacheUse(100, 120, 80, 160, 200, (4, 6), 10, evicted, 0.5, 5)
    fields = {"prompt_tokens": 4, "text": text, "tokens": (1, 2, 3), "finish_reason": "eos", "beyond_context": False}
    return Generation("s", **(fields | changes), prefill_seconds=0.5, decode_seconds=0.25, cache=use)


def records(outcomes, task):
    made = []
    for index, outcome in enumerate(outcomes):
        sample = Sample(f"s{index}", "quiz", {})
        outcome = generation(outcome) if isinstance(outcome, str) else outcome
        made.append(sample_record(task, sample, index, task.request(sample), outcome, RuleJudge()))
    return made


def header(evicts=True, sessions=()):
    return RunHeader(
        run_id="r-1",
        status="started",
        config=build_config(task={"name": "quiz"}, model="m", method="tova"),
        config_hash="0",
        identity=Identity(
            task_version=1,
            data_sha256="0",
            requests_sha256="0",
            model_sha256="0",
            device="cpu",
            route="-",
            judge="-",
            versions={},
        ),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        platform="-",
        python="-",
        data=DataInfo(source="bundled", origin="-", sha256="0", samples=1, total=1),
        model=ModelInfo(
            name="m", content_sha256="0", device="cpu", route="-", dtype="float32", context_length=None, n_layers=2
        ),
        method=MethodInfo(name="tova", variant="adapted", params={}, differs="-", capacity="-", evicts=evicts),
        sessions=sessions,
    )


def summary(outcomes, task_class=Quiz, **options):
    task = task_class(INFO, TaskOptions())
    return summarise(task, header(**options), records(outcomes, task))


@pytest.mark.parametrize("failure", ["judge fails", Failure("s9", "out of memory")])
def test_a_failed_sample_stays_in_the_denominator(failure):
    """10 samples, one failing, 8 right: 0.8 over all, 0.889 over the scored."""
    result = summary(["right"] * 8 + ["wrong", failure])
    assert (result.n, result.n_ok, result.n_error) == (10, 9, 1)
    assert result.accuracy == pytest.approx(0.8)
    assert result.accuracy_scored == pytest.approx(8 / 9)


def test_a_failed_sample_weighs_what_it_was_asked():
    result = summary(["right"] * 8 + ["wrong", "judge fails"], CountedQuiz)
    assert result.accuracy == result.primary_value == result.scores["accuracy"].value == pytest.approx(8 / 11)
    assert result.accuracy_scored == pytest.approx(8 / 9)
    assert result.derived == {"percent": pytest.approx(800 / 11)}


def test_an_unscored_sample_is_counted_and_never_filled_in():
    result = summary(["right", "unclear", "wrong"])
    assert (result.n, result.n_ok, result.n_unscored, result.n_error) == (3, 3, 1, 0)
    assert result.accuracy == result.accuracy_scored == 0.5
    assert result.scores["accuracy"].n == 2


def test_when_everything_failed_nothing_is_right():
    result = summary(["judge fails"] * 2)
    assert (result.accuracy, result.accuracy_scored) == (0.0, None)
    assert summary([Failure("s", "no")] * 2).peak_cache_bytes is None


def test_an_error_is_one_line_and_keeps_the_answer():
    [record] = records(["judge fails"], Quiz(INFO, TaskOptions()))
    assert (record.status, record.error) == ("error", "scoring failed: the judge cannot be reached")
    assert (record.response, record.peak_cache_bytes, record.scores) == ("judge fails", 100, {})


def test_the_interval_is_that_of_a_share():
    """p = 0.20 over 300 samples: standard error 0.0231, half-width 0.0453."""
    score = summary(["right"] * 60 + ["wrong"] * 240).scores["accuracy"]
    assert round(score.standard_error, 4) == 0.0231
    assert (score.high - score.low) / 2 == pytest.approx(0.0453, abs=1e-4)
    assert summary(["right"]).primary_low is None  # one sample has no spread


def test_a_method_that_did_not_fire_is_counted():
    quiet = generation("right", evicted=0)
    assert summary([quiet, "right"]).n_not_fired == 1
    assert summary([quiet, "right"], evicts=False).n_not_fired is None


def test_truncated_answers_are_counted():
    cut = generation("right", finish_reason="length", beyond_context=True)
    result = summary([cut, cut, "right"])
    assert (result.n_truncated, result.n_beyond_context) == (2, 2)


def test_kept_fraction_comes_from_rows_held():
    """Two removals of half each leave a quarter: 25 of 100 rows, whatever was configured."""
    use = CacheUse(1, 1, 1, 1, 4, (25, 25), 100, 150, None, 50)
    [record] = records([Generation("s", 90, "right", (1,), "eos", False, 1.0, 0.0, use)], Quiz(INFO, TaskOptions()))
    assert record.kept_fraction == 0.25
    assert record.tokens_per_second is None  # one token has no speed
    assert record.early_share is None


def test_bytes_repetition_and_curves():
    looping = generation("go on and on and on and on and on")
    other = generation("right", prompt_tokens=5)
    result = summary([looping, other])
    assert result.peak_cache_bytes == 100
    assert result.mean_peak_cache_bytes == 100.0
    assert 0 < result.repetition_rate < 1  # of the only answer with four words
    assert result.repetition_rate_20 is None
    assert result.curves == {"answers": [2.0, None]}


def session(**cost):
    return Session(started_at=datetime(2026, 1, 1, tzinfo=UTC), batch_sizes=(1, 2), cost=Cost(**cost) if cost else None)


def test_speed_is_over_all_sessions_that_ended():
    sessions = (
        session(decode_tokens=100, decode_seconds=2.0, prefill_tokens=500, prefill_seconds=1.0),
        session(),  # killed
        session(decode_tokens=300, decode_seconds=2.0, prefill_tokens=500, prefill_seconds=1.0),
    )
    result = summary(["right"], sessions=sessions)
    assert (result.decode_tokens_per_second, result.prefill_tokens_per_second) == (100.0, 500.0)
    assert result.batch_sizes == (1, 2)
    assert summary(["right"]).decode_tokens_per_second is None
    assert math.isclose(total_cost(sessions).decode_seconds, 4.0)
