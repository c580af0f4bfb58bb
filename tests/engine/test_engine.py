"""The engine on a tiny model: identity with `full`, batches, stops, limits, sampling, failures, what it reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.methods.matrix import CASES, Case
from velox_eval.caches.session import MethodSession
from velox_eval.engine.calibration import calibrate, find_directions
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Failure, Generate, Generation, Progress, Sampling
from velox_eval.errors import ConfigError
from velox_eval.methods import resolve
from velox_eval.mlx import mx
from velox_eval.tasks.calibration_text import calibration_text

PROMPTS = [
    "Write a diary of three weeks, one entry a week, and start each entry with its week.",
    "Short.",
    "A skyscraper of forty floors: name what is on each floor, from the lobby up to the observation deck.",
    "Menu for a week",
    "List the blocks of a city laid out as a grid, numbered from left to right and from top to bottom, with parks.",
]


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """The tiny model, calibrated for the methods that need it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VELOX_EVAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        loaded = load_model(str(tiny_model_dir))
        calibrate(loaded, calibration_text())
        yield loaded


def answers(loaded: LoadedModel, method: Any, requests: list[Generate], **options: Any) -> dict[str, Generation]:
    """Answers by sample id; all must succeed."""
    got = list(Engine(loaded, method, **options).generate(requests))
    assert all(isinstance(answer, Generation) for answer in got), got
    return {answer.sample_id: answer for answer in got if isinstance(answer, Generation)}


def requests(max_tokens: int = 24, **options: Any) -> list[Generate]:
    return [Generate(str(i), prompt, max_tokens, **options) for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("prefill_step", [16, 64, 2048])
def test_a_budget_at_the_final_length_equals_full(loaded: LoadedModel, case: Case, prefill_step: int) -> None:
    """Token-identical at every chunk size, also at lengths around multiples of 32 (U9)."""
    lengths = (31, 32, 33, 65)
    work = [Generate(str(n), ("word " * 20)[: n - 1] + "!", 12) for n in lengths]
    full = answers(loaded, resolve("full"), work, prefill_step=prefill_step)
    budget = None if case.method == "full" else 65 + 12
    other = answers(loaded, resolve(case.method, case.params, budget=budget), work, prefill_step=prefill_step)
    for n in lengths:
        assert other[str(n)].prompt_tokens == n
        assert other[str(n)].tokens == full[str(n)].tokens
        assert not other[str(n)].cache.method_fired


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_answers_do_not_depend_on_the_batch(loaded: LoadedModel, case: Case) -> None:
    """Tokens, bytes and rows are the same at batch 1, 3 and 8, in any order; sequences leave and join."""
    work = [dataclasses.replace(r, max_tokens=10 + 6 * i) for i, r in enumerate(requests())]
    method = resolve(case.method, case.params, budget=None if case.method == "full" else case.budget + 8)
    alone = answers(loaded, method, work)
    for batch_size, order in ((3, work), (8, work[::-1]), (2, work[2:] + work[:2])):
        together = answers(loaded, method, order, batch_size=batch_size)
        for sample_id, answer in alone.items():
            assert together[sample_id].tokens == answer.tokens
            for name in ("peak_cache_bytes", "end_cache_bytes", "full_cache_bytes", "kept_tokens", "evicted_tokens"):
                assert getattr(together[sample_id].cache, name) == getattr(answer.cache, name), name
            assert together[sample_id].cache.early_share == answer.cache.early_share


def test_two_runs_are_identical(loaded: LoadedModel) -> None:
    for sampling in (Sampling(), Sampling(temperature=0.9, top_p=0.9, seed=3)):
        runs = [answers(loaded, resolve("morphkv", budget=30), requests(), sampling=sampling) for _ in range(2)]
        assert {k: v.tokens for k, v in runs[0].items()} == {k: v.tokens for k, v in runs[1].items()}


def test_sampling_depends_on_seed_and_sample_only(loaded: LoadedModel) -> None:
    def drawn(seed: int, **options: Any) -> list[tuple[int, ...]]:
        sampling = Sampling(temperature=1.0, seed=seed)
        got = answers(loaded, resolve("full"), requests(), sampling=sampling, **options)
        return [got[str(i)].tokens for i in range(len(PROMPTS))]

    assert drawn(1) == drawn(1, batch_size=4)
    assert drawn(1) != drawn(2)
    same = [Generate(name, "one prompt", 16) for name in ("a", "b")]
    two = answers(loaded, resolve("full"), same, sampling=Sampling(temperature=1.0))
    assert two["a"].tokens != two["b"].tokens


def test_top_p_keeps_the_likely_tokens(loaded: LoadedModel) -> None:
    """A tiny nucleus is greedy decoding, at any temperature."""
    greedy = answers(loaded, resolve("full"), requests())
    nucleus = answers(loaded, resolve("full"), requests(), sampling=Sampling(temperature=2.0, top_p=1e-6))
    assert {k: v.tokens for k, v in greedy.items()} == {k: v.tokens for k, v in nucleus.items()}


def test_token_limits_are_honoured_exactly(loaded: LoadedModel) -> None:
    """U16: five tokens mean five, and the finish reason says so."""
    for limit in (1, 2, 5):
        (answer,) = Engine(loaded, resolve("full")).generate([Generate("a", "abc", limit)])
        assert isinstance(answer, Generation)
        assert len(answer.tokens) == limit
        assert (answer.finish_reason, answer.truncated, answer.beyond_context) == ("length", True, False)
        assert (answer.tokens_per_second is None) == (limit < 2)
        assert answer.cache.tokens_seen == 3 + limit - 1  # the last token is never fed


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(loaded: LoadedModel) -> None:
    whole = answers(loaded, resolve("full"), requests(30))["0"]
    for start, length in ((0, 1), (7, 3), (12, 6)):
        stop = whole.text[start : start + length]
        (cut,) = Engine(loaded, resolve("full")).generate([Generate("0", PROMPTS[0], 30, (stop, "never there"))])
        assert isinstance(cut, Generation)
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert (cut.finish_reason, cut.truncated) == ("stop", False)
        assert cut.tokens == whole.tokens[: len(cut.tokens)]
    for nothing in ((), ("",)):
        (full,) = Engine(loaded, resolve("full")).generate([Generate("0", PROMPTS[0], 30, nothing)])
        assert isinstance(full, Generation)
        assert full.text == whole.text


def test_the_end_token_ends_the_answer(loaded: LoadedModel) -> None:
    """Call the first token that is not the first one again the end token: what came before it stays."""
    whole = answers(loaded, resolve("full"), requests(30))["0"].tokens
    end = next(i for i, token in enumerate(whole) if token != whole[0])
    loaded.tokenizer.eos_token_ids.add(whole[end])
    try:
        cut = answers(loaded, resolve("full"), requests(30))["0"]
    finally:
        loaded.tokenizer.eos_token_ids.discard(whole[end])
    assert cut.finish_reason == "eos"
    assert cut.tokens == whole[: end + 1]
    assert cut.text == loaded.tokenizer.decode(list(whole[:end]))


def test_answers_never_run_past_the_context(loaded: LoadedModel) -> None:
    short = dataclasses.replace(loaded, context_length=100)
    prompt = "x" * 90
    (cut,) = Engine(short, resolve("full")).generate([Generate("a", prompt, 50)])
    assert isinstance(cut, Generation)
    assert (len(cut.tokens), cut.finish_reason, cut.beyond_context) == (10, "length", True)
    (exact,) = Engine(short, resolve("full")).generate([Generate("a", prompt, 10)])
    assert isinstance(exact, Generation)
    assert not exact.beyond_context


def test_one_bad_request_does_not_stop_the_others(loaded: LoadedModel) -> None:
    short = dataclasses.replace(loaded, context_length=100)
    work = [Generate("ok", "abc", 4), Generate("long", "x" * 100, 4), Generate("none", "", 4), Generate("ok2", "de", 4)]
    for batch_size in (1, 4):
        got = {
            answer.sample_id: answer for answer in Engine(short, resolve("full"), batch_size=batch_size).generate(work)
        }
        failed = {name: answer.error for name, answer in got.items() if isinstance(answer, Failure)}
        assert set(failed) == {"long", "none"}
        assert "context of 100" in failed["long"]
        assert "empty" in failed["none"]
        assert set(got) == {"ok", "long", "none", "ok2"}


def test_chat_templates_and_bos(loaded: LoadedModel) -> None:
    raw, chat, system, bos = Engine(loaded, resolve("full")).generate(
        [
            Generate("raw", "hello", 2),
            Generate("chat", "hello", 2, chat=True),
            Generate("system", "hello", 2, chat=True, system="terse"),
            Generate("bos", "<s>hello", 2),
        ]
    )
    lengths = [answer.prompt_tokens for answer in (raw, chat, system, bos) if isinstance(answer, Generation)]
    chatted = len("user: hello\nassistant:")
    assert lengths == [5, chatted, chatted + len("system: terse\n"), 6]


def test_reports_what_it_did(loaded: LoadedModel) -> None:
    seen: list[Progress] = []
    engine = Engine(loaded, resolve("sliding_window", budget=10), batch_size=3)
    got = list(engine.generate(requests(40), on_step=seen.append))
    report = engine.report()
    assert report.decode_tokens == sum(len(a.tokens) - 1 for a in got if isinstance(a, Generation))
    assert report.prefill_tokens == sum(a.prompt_tokens for a in got if isinstance(a, Generation))
    assert report.batch_sizes[-1] == 3
    assert report.eviction_layers == (0, 1)
    assert seen
    assert seen[0].in_flight <= 3
    assert seen[0].cache_bytes <= 3 * 2 * 10 * 128


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill_step": 0}, "prefill_step=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"evict_block": -2}, "evict_block=-2"),
    ],
)
def test_bad_options_are_refused(loaded: LoadedModel, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Engine(loaded, resolve("full"), **options)


def test_keep_gives_each_sample_its_own_budget(loaded: LoadedModel) -> None:
    work = [Generate("short", "x" * 30, 10), Generate("long", "x" * 70, 10)]
    got = answers(loaded, resolve("sliding_window", keep=0.5), work, batch_size=2)
    assert (got["short"].cache.budget, got["long"].cache.budget) == (20, 40)
    assert got["short"].cache.kept_tokens == (20, 20)
    assert got["long"].cache.kept_tokens == (40, 40)


# kvzip:paper needs a budget that holds what stands outside the context, which its own tests show.
@pytest.mark.parametrize("case", [c for c in CASES if c.method != "kvzip:paper"], ids=lambda case: case.id)
def test_the_smallest_legal_budget_gives_finite_logits(loaded: LoadedModel, case: Case) -> None:
    """A prompt in chunks and some decoding, at the least a method accepts."""
    budget = None if case.method == "full" else case.smallest
    method = resolve(case.method, case.params, budget=budget)
    session = MethodSession(loaded.model, method, budget=budget, directions=find_directions(loaded, method))
    with session, session.reading():
        for chunk in ([1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11]):
            logits = loaded.model(mx.array([chunk]), cache=session.caches)
            assert np.isfinite(np.array(logits)).all()
    session.after_prefill(list(range(1, 12)))
    with session:
        for token in range(20, 30):
            logits = loaded.model(mx.array([[token]]), cache=session.caches)
            assert np.isfinite(np.array(logits)).all()
