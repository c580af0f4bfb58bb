"""Log-likelihood under eviction: what plain caches and a hand-fed method give, whoever shares batch and context."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.caches.test_model_families import build
from tests.conftest import make_tiny_llama
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.session import MethodSession
from velox_eval.engine.engine import Engine
from velox_eval.engine.likelihood import Likelihood
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Failure, Generate, LogLikelihood, ScoredPairs
from velox_eval.engine.text import encode_windows
from velox_eval.errors import ConfigError
from velox_eval.methods import METHODS, resolve
from velox_eval.mlx import mx

CONTEXT = "A lamp stands by the door of the mill, and the miller reads by it until"
OPTIONS = (" the rain comes.", " nobody is left awake in the whole of the house by the river.", " x")
TEXT = "Rain came from the west and the wheel turned faster than before; nobody slept that night in the house."
STEP = 16
PARAMS: dict[str, dict[str, Any]] = {"snapkv": {"obs_window": 8}}  # the default does not fit a small budget


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path) -> LoadedModel:
    """The tiny llama with so much weight on attention that what is evicted shows in the logits."""
    model = make_tiny_llama()
    for layer in model.layers:
        layer.self_attn.o_proj.weight = layer.self_attn.o_proj.weight * 30
    model.model.norm.weight = model.model.norm.weight * 10
    return replace(load_model(str(tiny_model_dir)), model=model)


def measured(loaded: LoadedModel, method: str, requests: list[LogLikelihood], **how: Any) -> dict[str, Any]:
    """Outcomes by sample."""
    chosen = resolve(method, PARAMS.get(method), budget=how.pop("budget", None), keep=how.pop("keep", None))
    likelihood = Likelihood(loaded, chosen, prefill_step=STEP, **how)
    return {outcome.sample_id: outcome for outcome in likelihood.measure(requests)}


def question(name: str = "a", context: str = CONTEXT, options: tuple[str, ...] = OPTIONS) -> LogLikelihood:
    return LogLikelihood(name, tuple((context, option) for option in options))


def by_hand(loaded: LoadedModel, method: str, budget: int | None, before: list[int], after: list[int]) -> float:
    """The context in chunks, its last token and the continuation one at a time, in NumPy's float64."""
    model: Any = loaded.model
    total = 0.0
    chosen = resolve(method, PARAMS.get(method), budget=budget)
    with MethodSession(loaded.model, chosen, budget=budget) as session:
        caches = session.caches
        for start in range(0, len(before) - 1, STEP):
            model(mx.array([before[start : min(start + STEP, len(before) - 1)]]), cache=caches)
        logits = model(mx.array([before[-1:]]), cache=caches)[0, -1]
        session.after_prefill(before)
        for place, token in enumerate(after):
            row = np.array(logits, dtype=np.float64)
            total += row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
            if place + 1 < len(after):
                logits = model(mx.array([[token]]), cache=caches)[0, -1]
    return total


def tokens(loaded: LoadedModel, text: str) -> list[int]:
    return list(loaded.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("method", ["full", "morphkv", "tova", "kvzip", "snapkv", "streaming_llm:paper", "h2o:paper"])
def test_is_what_feeding_by_hand_gives(loaded: LoadedModel, method: str, batch: int) -> None:
    budget = None if method == "full" else 24
    outcome = measured(loaded, method, [question()], budget=budget, batch_size=batch)["a"]
    assert isinstance(outcome, ScoredPairs)
    before = tokens(loaded, CONTEXT)
    expected = [by_hand(loaded, method, budget, before, tokens(loaded, option)) for option in OPTIONS]
    np.testing.assert_allclose(outcome.logprobs, expected, rtol=1e-4, atol=1e-3)
    assert outcome.tokens == tuple(len(tokens(loaded, option)) for option in OPTIONS)
    assert outcome.prompt_tokens == len(before)
    assert outcome.cache.method_fired == (method != "full")


def test_full_is_one_forward_pass_of_the_model(loaded: LoadedModel) -> None:
    outcome = measured(loaded, "full", [question()])["a"]
    model: Any = loaded.model
    for option, logprob, greedy in zip(OPTIONS, outcome.logprobs, outcome.greedy, strict=True):
        before, after = tokens(loaded, CONTEXT), tokens(loaded, option)
        logits = np.array(model(mx.array([before + after]))[0], dtype=np.float64)[len(before) - 1 : -1]
        logs = logits - logits.max(-1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
        assert logprob == pytest.approx(logs[np.arange(len(after)), after].sum(), abs=1e-3)
        assert greedy == bool((logs.argmax(-1) == after).all())


@pytest.mark.parametrize("method", ["full", "morphkv"])
def test_the_models_own_answer_is_greedy_and_no_other(loaded: LoadedModel, method: str) -> None:
    chosen = resolve(method, budget=24)
    [answer] = Engine(loaded, chosen, prefill_step=STEP).generate([Generate("a", CONTEXT, 6)])
    own = answer.tokens  # type: ignore[union-attr]
    before = tuple(tokens(loaded, CONTEXT))
    other = (*own[:5], (own[5] + 1) % 256)
    request = LogLikelihood("a", ((before, own), (before, other)))
    outcome = measured(loaded, method, [request], budget=24)["a"]
    assert outcome.greedy == (True, False)
    assert outcome.logprobs[0] > outcome.logprobs[1]


@pytest.mark.parametrize("method", sorted(name for name in METHODS if name not in ("full", "qfilters")))
def test_an_ample_budget_gives_what_full_gives(loaded: LoadedModel, method: str) -> None:
    requests = [question(), LogLikelihood("b", (("", TEXT),), rolling=True)]
    full = measured(loaded, "full", requests)
    other = measured(loaded, method, requests, budget=600, batch_size=4)
    for name, outcome in other.items():
        np.testing.assert_allclose(outcome.logprobs, full[name].logprobs, rtol=1e-4, atol=1e-3)
        assert outcome.greedy == full[name].greedy
        assert not outcome.cache.method_fired


@pytest.mark.parametrize("method", ["full", "morphkv", "random", "veloxquant/morphkv"])
def test_outcomes_do_not_depend_on_who_is_scored_beside_them(loaded: LoadedModel, method: str) -> None:
    requests = [
        question(),
        question("b", TEXT[:50], (" one", " another one", " z", " a third that is longer")),
        question("again", CONTEXT, OPTIONS[:2]),
        LogLikelihood("text", (("", TEXT),), rolling=True),
        LogLikelihood("empty", (("", TEXT[:9]), ("", TEXT[:30]))),
    ]
    budget = None if method == "full" else 24
    alone = {r.sample_id: measured(loaded, method, [r], budget=budget)[r.sample_id] for r in requests}
    batches = [1] if method.startswith("veloxquant/") else [1, 3, 8]
    for batch in batches:
        for order in (requests, requests[::-1]):
            together = measured(loaded, method, order, budget=budget, batch_size=batch)
            assert together.keys() == alone.keys()
            for name, outcome in together.items():
                np.testing.assert_allclose(outcome.logprobs, alone[name].logprobs, rtol=1e-4, atol=1e-3)
                assert outcome.cache.kept_tokens == alone[name].cache.kept_tokens
                assert outcome.prompt_tokens == alone[name].prompt_tokens


@pytest.mark.parametrize("method", ["full", "morphkv"])
def test_a_context_that_is_shared_is_read_once(loaded: LoadedModel, method: str) -> None:
    likelihood = Likelihood(loaded, resolve(method, budget=24), prefill_step=STEP, batch_size=2)
    requests = [question("a"), question("b", options=(" other",)), question("c")]
    outcomes: list[Any] = list(likelihood.measure(requests))
    report, context = likelihood.report(), len(tokens(loaded, CONTEXT))
    continued = sum(n - 1 for outcome in outcomes for n in outcome.tokens)
    if method == "full":  # nothing is evicted over a continuation, so it is read like a prompt
        assert (report.prefill_tokens, report.decode_tokens) == (context + continued, 0)
        assert all(outcome.tokens_per_second is None for outcome in outcomes)
    else:
        assert (report.prefill_tokens, report.decode_tokens) == (context, continued)
        assert report.batch_sizes == (1, 2)
    assert report.prefill_seconds == pytest.approx(sum(outcome.prefill_seconds for outcome in outcomes))
    assert [outcome.prefill_seconds > 0 for outcome in outcomes if outcome.sample_id == "a"] == [True]


def test_an_empty_context_is_the_beginning_of_text(loaded: LoadedModel) -> None:
    bos = int(loaded.tokenizer.bos_token_id)
    given = LogLikelihood("given", (((bos,), tuple(tokens(loaded, TEXT))),))
    written = LogLikelihood("written", (("", f"<s>{TEXT}"),))
    outcomes = measured(loaded, "full", [LogLikelihood("empty", (("", TEXT),)), given, written])
    assert outcomes["empty"].logprobs == outcomes["given"].logprobs == outcomes["written"].logprobs
    assert outcomes["empty"].prompt_tokens == 1


def test_white_space_alone_is_an_empty_context_that_is_scored(loaded: LoadedModel) -> None:
    outcomes = measured(loaded, "full", [LogLikelihood("a", ((" \n", "abc"),)), LogLikelihood("b", (("", " \nabc"),))])
    assert outcomes["a"].logprobs == outcomes["b"].logprobs
    assert outcomes["a"].tokens == (5,)


def test_long_texts_are_scored_in_windows_that_do_not_overlap(loaded: LoadedModel) -> None:
    short = replace(loaded, context_length=40)
    outcome = measured(short, "full", [LogLikelihood("a", (("", TEXT), ("", TEXT[:20])), rolling=True)])["a"]
    assert outcome.tokens == (len(TEXT), 20)
    windows = encode_windows(loaded.tokenizer, TEXT, 40)
    assert [token for _, after in windows for token in after] == tokens(loaded, TEXT)
    assert max(len(before) + len(after) - 1 for before, after in windows) <= 40
    expected = sum(by_hand(loaded, "full", None, before, after) for before, after in windows)
    assert outcome.logprobs[0] == pytest.approx(expected, abs=2e-3)


def test_a_context_that_does_not_fit_loses_its_first_tokens(loaded: LoadedModel) -> None:
    short = replace(loaded, context_length=30)
    outcome = measured(short, "full", [question(options=(" abc", " a"))])["a"]
    kept = [30 - 4 + 1, 30 - 2 + 1]
    assert outcome.cut_tokens == 2 * len(CONTEXT) - sum(kept)
    assert outcome.beyond_context
    before = tokens(loaded, CONTEXT)
    assert outcome.logprobs[0] == pytest.approx(by_hand(loaded, "full", None, before[-27:], tokens(loaded, " abc")))
    assert outcome.logprobs[1] == pytest.approx(by_hand(loaded, "full", None, before[-29:], tokens(loaded, " a")))


def test_what_cannot_be_scored_fails_alone(loaded: LoadedModel) -> None:
    requests = [
        question("fine"),
        question("empty", options=(" a", "")),
        question("long", options=("x" * 5000,)),
        LogLikelihood("none", ()),
        LogLikelihood("blank", (("", ""),), rolling=True),
    ]
    outcomes = measured(loaded, "morphkv", requests, budget=24, batch_size=3)
    assert isinstance(outcomes["fine"], ScoredPairs)
    for name, word in {"empty": "no tokens", "long": "does not fit", "none": "nothing", "blank": "nothing"}.items():
        assert isinstance(outcomes[name], Failure)
        assert word in outcomes[name].error


def test_a_memory_limit_changes_nothing_but_who_waits(loaded: LoadedModel) -> None:
    requests = [question(), question("b", TEXT, OPTIONS)]
    free = measured(loaded, "morphkv", requests, budget=24, batch_size=8)
    engine = Engine(loaded, resolve("morphkv", budget=24), prefill_step=STEP, memory_limit=10**9)
    with attention_tap(loaded.model):
        engine.warm_up()
    needs = engine.prepare(Generate("a", CONTEXT, 60)).footprint
    assert needs is not None
    tight = max(needs.prefill_bytes, engine.admission.held_bytes([needs])) + 1000
    held = measured(loaded, "morphkv", requests, budget=24, batch_size=8, memory_limit=tight)
    for name, outcome in held.items():
        np.testing.assert_allclose(outcome.logprobs, free[name].logprobs, rtol=1e-4, atol=1e-3)
    refused = measured(loaded, "morphkv", requests, budget=24, memory_limit=1000)
    assert all(isinstance(outcome, Failure) and "memory_limit" in outcome.error for outcome in refused.values())


def test_a_share_is_of_context_and_longest_option(loaded: LoadedModel) -> None:
    outcome = measured(loaded, "sliding_window", [question()], keep=0.5)["a"]
    longest = max(len(option) for option in OPTIONS)
    assert outcome.cache.budget == (len(CONTEXT) + longest) // 2


def test_settings_that_cannot_work_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="one at a time"):
        Likelihood(loaded, resolve("veloxquant/morphkv"), batch_size=2)


@pytest.mark.parametrize("family", ["gemma3_text", "lfm2"])
def test_layers_with_caches_of_their_own_are_copied_as_they_are(loaded: LoadedModel, family: str) -> None:
    other = replace(loaded, model=build(family))
    before = list(range(3, 33))
    options = [[40, 41, 42, 43], [50, 51, 52], [60, 61, 62, 63, 64, 65, 66]]
    request = LogLikelihood("a", tuple((tuple(before), tuple(option)) for option in options))
    for method, budget in (("full", None), ("streaming_llm", 12)):
        outcome = measured(other, method, [request], budget=budget)["a"]
        expected = [by_hand(other, method, budget, before, option) for option in options]
        np.testing.assert_allclose(outcome.logprobs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.model
def test_a_real_model_knows_its_capital_cities(real_model: LoadedModel) -> None:
    context = "The capital of France is"
    request = LogLikelihood("a", tuple((context, option) for option in (" Paris", " Rome", " the Moon and the stars")))
    for method, budget in (("full", None), ("morphkv", 24), ("streaming_llm", 5)):
        chosen = resolve(method, {"n_sink": 1} if method == "streaming_llm" else {}, budget=budget)
        [outcome] = Likelihood(real_model, chosen, batch_size=3).measure([request])
        assert isinstance(outcome, ScoredPairs)
        assert max(zip(outcome.logprobs, "PRM", strict=True))[1] == "P"
        assert outcome.greedy == (True, False, False)
