"""A model as a judge on this side of the wall: batches, prompts it has no room for, and nobody's time but its own."""

from __future__ import annotations

import time

import pytest

from velox_eval.engine.engine import Engine
from velox_eval.engine.judge_model import load_judge_model
from velox_eval.engine.models import load_model
from velox_eval.engine.requests import Generate, Generation
from velox_eval.errors import JudgeError
from velox_eval.judges import get_judge
from velox_eval.methods import resolve


def test_every_prompt_gets_its_reply_and_one_too_long_says_so(tiny_model_dir):
    model = load_judge_model(str(tiny_model_dir))
    prompts = [f"Is {number} even?" for number in range(10)]
    prompts[3] = "x" * 5000  # beyond the model's context of 4096
    replies = dict(model.generate(prompts, 6))
    assert sorted(replies) == list(range(10))
    assert replies[3].text is None
    assert "no room in the model's context" in replies[3].reason
    alone = dict(model.generate([prompts[7]], 6))
    assert alone[0] == replies[7]


def test_a_judge_of_it_reads_what_it_says_and_cannot_read_too_much(tiny_model_dir):
    judge = get_judge(f"mlx:{tiny_model_dir}", load_model=load_judge_model)
    judge.prepare()
    short, long = judge.contains_all([("Week 1: we rest.", "rest"), ("x" * 5000, "rest")])
    assert "starts with neither" in short.reason or "no words" in short.reason
    assert "the judge cannot read this" in long.reason
    assert judge.rates
    assert judge.rate("Write.", "Written.").values is None


def test_a_model_that_is_not_there_is_a_judges_error():
    with pytest.raises(JudgeError, match="judge mlx:/no/such/model: "):
        get_judge("mlx:/no/such/model", load_model=load_judge_model).prepare()


def test_what_happens_between_two_answers_is_in_no_answers_time(tiny_model_dir):
    """The second answer is in flight while the first one is judged for half a second."""
    engine = Engine(load_model(str(tiny_model_dir)), resolve("full"), batch_size=2)
    requests = [Generate("short", "a", 3), Generate("long", "b", 12)]
    found: dict[str, Generation] = {}
    for outcome in engine.generate(requests):
        assert isinstance(outcome, Generation)
        found[outcome.sample_id] = outcome
        if outcome.sample_id == "short":
            peak = engine.report().mlx_peak_bytes
            time.sleep(0.5)
    assert len(found["long"].tokens) == 12
    assert found["long"].decode_seconds < 0.5
    assert engine.report().mlx_peak_bytes >= peak > 0
