"""The real model: English text, official prompts, bytes from arrays, budgets that change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.methods.matrix import CASES, Case
from velox_eval.engine.calibration import calibrate
from velox_eval.engine.engine import Engine
from velox_eval.engine.requests import Generate, Generation
from velox_eval.methods import resolve
from velox_eval.tasks.calibration_text import calibration_text

pytestmark = pytest.mark.model

ONE_EACH = list({case.method: case for case in reversed(CASES)}.values())  # the tiny model runs every setting

LAYERS, ROW = 30, 3 * 64 * 4 * 2  # SmolLM2-135M: 3 KV heads of 64 dims, float32, key and value


def generate(real_model: Any, method: Any, requests: list[Generate], **options: Any) -> list[Generation]:
    """Answers in request order; all must succeed."""
    got = {answer.sample_id: answer for answer in Engine(real_model, method, **options).generate(requests)}
    answers = [got[request.sample_id] for request in requests]
    assert all(isinstance(answer, Generation) for answer in answers), answers
    return answers  # type: ignore[return-value]


@pytest.fixture(scope="module")
def official(shared_dir: Path) -> list[Generate]:
    """The first two official LongGenBench prompts."""
    rows = json.loads((shared_dir / "data/longgenbench_wu/Dataset_short.json").read_text(encoding="utf-8"))
    return [Generate(str(i), row["prompt"], 24, ("*** finished",)) for i, row in enumerate(rows[:2])]


def test_bytes_on_official_prompts(real_model: Any, official: list[Generate]) -> None:
    """morphkv peaks at budget + prefill_step rows and ends at budget rows; full holds every token."""
    morph = generate(real_model, resolve("morphkv", budget=256), official, batch_size=2)
    full = generate(real_model, resolve("full"), official, batch_size=2)
    for short, whole in zip(morph, full, strict=True):
        assert short.prompt_tokens > 512
        assert short.cache.peak_cache_bytes == (256 + 256) * ROW * LAYERS
        assert short.cache.end_cache_bytes == 256 * ROW * LAYERS
        assert short.cache.kept_tokens == (256,) * LAYERS
        assert short.cache.method_fired
        seen = whole.prompt_tokens + len(whole.tokens) - 1
        assert whole.cache.tokens_seen == seen
        assert whole.cache.end_cache_bytes == whole.cache.full_cache_bytes == seen * ROW * LAYERS
        assert whole.cache.peak_cache_bytes == seen * ROW * LAYERS
        assert not whole.cache.method_fired
        assert short.cache.allocated_cache_bytes >= short.cache.peak_cache_bytes
        assert len(re.findall(r"[a-z]{3,}", whole.text)) >= 8


@pytest.fixture(scope="module")
def calibrated_model(real_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The real model with the directions that some methods need, in a cache directory of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VELOX_EVAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        calibrate(real_model, calibration_text())
        yield real_model


def test_answers_a_question_in_english(real_model: Any) -> None:
    (answer,) = generate(real_model, resolve("full"), [Generate("q", "What is the capital of France?", 20, chat=True)])
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "eos"


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda case: case.id)
def test_an_ample_budget_equals_full(calibrated_model: Any, case: Case) -> None:
    """Token-identical to `full` through the real model, two sequences at once."""
    work = [
        Generate("a", "The history of the lighthouse begins with", 10),
        Generate("b", "Floors of a tower. Floor 1: the lobby. Floor 2: a library. Floor 3:", 10),
    ]
    full = generate(calibrated_model, resolve("full"), work, batch_size=2)
    budget = None if case.method == "full" else 60
    other = generate(calibrated_model, resolve(case.method, case.params, budget=budget), work, batch_size=2)
    assert [answer.tokens for answer in other] == [answer.tokens for answer in full]


def test_answers_do_not_depend_on_the_batch(real_model: Any) -> None:
    """Pinned prompts, greedy, evicting: the same tokens alone and together, in another order."""
    prompts = ("A diary of one week. Monday:", "The city is laid out in blocks. Block 1 is", "Soup, salad and")
    work = [Generate(prompt, prompt * 3, 16) for prompt in prompts]
    method = resolve("morphkv", {"window": 4}, budget=16)
    alone = generate(real_model, method, work)
    together = generate(real_model, method, work[::-1], batch_size=3)[::-1]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert all(answer.cache.method_fired for answer in alone)
