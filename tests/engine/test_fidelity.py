"""A method beside the full cache: what is compared, on which tokens, and that batching changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import make_tiny_llama
from velox_eval.caches.session import MethodSession
from velox_eval.engine.engine import Engine
from velox_eval.engine.fidelity import Fidelity, distances
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Comparison, Failure, Generate, Generation, TeacherForce
from velox_eval.errors import ConfigError
from velox_eval.methods import METHODS, resolve
from velox_eval.mlx import mx
from velox_eval.mlx_lm import make_prompt_cache

PROMPT = "A lamp stands by the door of the mill, and the miller reads by it. " * 2
TEXT = "Rain came from the west and the wheel turned faster than before; nobody slept that night in the house."
STEP = 40


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path) -> LoadedModel:
    """The tiny llama with so much weight on attention that what is evicted shows in the logits."""
    model = make_tiny_llama()
    for layer in model.layers:
        layer.self_attn.o_proj.weight = layer.self_attn.o_proj.weight * 30
    model.model.norm.weight = model.model.norm.weight * 10
    return replace(load_model(str(tiny_model_dir)), model=model)


def compared(loaded: LoadedModel, method: str, requests: Any, batch: int | None = 1, **how: Any) -> dict[str, Any]:
    """Outcomes by sample."""
    chosen = resolve(method, how.pop("params", {}), budget=how.pop("budget", None))
    fidelity = Fidelity(loaded, chosen, prefill_step=STEP, batch_size=batch, **how)
    return {outcome.sample_id: outcome for outcome in fidelity.compare(requests)}


def one(loaded: LoadedModel, method: str, request: TeacherForce, **how: Any) -> Comparison:
    outcome = compared(loaded, method, [request], **how)[request.sample_id]
    assert isinstance(outcome, Comparison), outcome
    return outcome


def logits_of(loaded: LoadedModel, caches: list[Any], prompt: list[int], tokens: list[int], session: Any) -> np.ndarray:
    """Logits that predict each of `tokens`: the prompt in chunks, its last token and the text one at a time."""
    model: Any = loaded.model
    rows = []
    for start in range(0, len(prompt) - 1, STEP):
        model(mx.array([prompt[start : min(start + STEP, len(prompt) - 1)]]), cache=caches)
    rows.append(model(mx.array([prompt[-1:]]), cache=caches)[0, -1])
    if session is not None:
        session.after_prefill(prompt)
    for token in tokens[:-1]:
        rows.append(model(mx.array([[token]]), cache=caches)[0, -1])
    return np.array(mx.stack(rows), dtype=np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("method", ["morphkv", "tova", "kvzip", "sliding_window"])
def test_is_what_two_plain_runs_give(loaded: LoadedModel, method: str) -> None:
    """The full side is mlx-lm's own cache; the method's is fed by hand; the divergence is NumPy's in float64."""
    outcome = one(loaded, method, TeacherForce("a", PROMPT, TEXT, 60), budget=24)
    tokenizer = loaded.tokenizer
    prompt, tokens = tokenizer.encode(PROMPT), tokenizer.encode(TEXT, add_special_tokens=False)[:60]
    assert outcome.tokens == tuple(tokens)
    assert outcome.prompt_tokens == len(prompt)
    full = log_softmax(logits_of(loaded, make_prompt_cache(loaded.model), prompt, tokens, None))
    with MethodSession(loaded.model, resolve(method, budget=24), budget=24) as session:
        ours = log_softmax(logits_of(loaded, session.caches, prompt, tokens, session))
    expected = (np.exp(full) * (full - ours)).sum(axis=-1)
    assert expected.max() > 0.01
    np.testing.assert_allclose(outcome.kl, expected, rtol=1e-3, atol=1e-5)
    index = np.arange(60)
    np.testing.assert_allclose(outcome.full_logprob, full[index, tokens], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outcome.method_logprob, ours[index, tokens], rtol=1e-4, atol=1e-4)
    assert outcome.agree == tuple((full.argmax(axis=-1) == ours.argmax(axis=-1)).tolist())
    assert not all(outcome.agree)


def test_the_own_answer_is_the_full_caches_greedy_answer(loaded: LoadedModel) -> None:
    outcome = one(loaded, "morphkv", TeacherForce("a", PROMPT, None, 50), budget=24)
    [answer] = Engine(loaded, resolve("full"), prefill_step=STEP).generate([Generate("a", PROMPT, 50)])
    assert isinstance(answer, Generation)
    assert outcome.tokens == answer.tokens
    assert outcome.text == answer.text
    [under] = Engine(loaded, resolve("morphkv", budget=24), prefill_step=STEP).generate([Generate("a", PROMPT, 50)])
    assert isinstance(under, Generation)
    first = next(i for i, (a, b) in enumerate(zip(answer.tokens, under.tokens, strict=True)) if a != b)
    assert outcome.agree[:first] == (True,) * first  # until there the method would have written the same
    assert outcome.agree[first] is False
    assert outcome.cache.kept_tokens == under.cache.kept_tokens
    assert outcome.cache.tokens_seen == outcome.prompt_tokens + 49  # the last token is never fed


@pytest.mark.parametrize("continuation", [None, TEXT])
def test_the_full_cache_does_not_differ_from_itself(loaded: LoadedModel, continuation: str | None) -> None:
    outcome = one(loaded, "full", TeacherForce("a", PROMPT, continuation, 60))
    assert outcome.kl == (0.0,) * 60
    assert all(outcome.agree)
    assert outcome.full_logprob == outcome.method_logprob


@pytest.mark.parametrize("method", sorted(name for name in METHODS if name not in ("full", "qfilters")))
def test_an_ample_budget_does_not_differ(loaded: LoadedModel, method: str) -> None:
    outcome = one(loaded, method, TeacherForce("a", PROMPT, TEXT, 40), budget=600)
    assert max(outcome.kl) < 1e-9
    assert all(outcome.agree)


@pytest.mark.parametrize("method", ["full", "morphkv", "veloxquant/morphkv"])
def test_samples_do_not_depend_on_who_is_compared_beside_them(loaded: LoadedModel, method: str) -> None:
    requests = [
        TeacherForce("text", PROMPT, TEXT, 60),
        TeacherForce("own", PROMPT[20:], None, 33),
        TeacherForce("short", PROMPT[:40], TEXT[:12], 60),
        TeacherForce("other", TEXT, PROMPT, 51),
    ]
    alone = compared(loaded, method, requests, budget=None if method == "full" else 24)
    together = compared(loaded, method, requests, budget=None if method == "full" else 24, batch=None)
    assert set(alone) == set(together) == {"text", "own", "short", "other"}
    for name, outcome in together.items():
        assert outcome.tokens == alone[name].tokens
        assert outcome.agree == alone[name].agree
        np.testing.assert_allclose(outcome.kl, alone[name].kl, rtol=1e-3, atol=1e-5)
        assert outcome.cache.kept_tokens == alone[name].cache.kept_tokens
    assert len(together["short"].tokens) == 12
    assert len(together["own"].tokens) == 33


def test_an_end_of_text_ends_the_own_answer_only(loaded: LoadedModel) -> None:
    own = one(loaded, "full", TeacherForce("a", PROMPT, None, 30))
    stop = own.tokens[7]
    tokenizer: Any = loaded.tokenizer
    before = set(tokenizer.eos_token_ids)
    tokenizer.add_eos_token(str(stop))
    try:
        ended = one(loaded, "full", TeacherForce("a", PROMPT, None, 30))
        where = own.tokens.index(stop)
        assert ended.tokens == own.tokens[: where + 1]
        text = tokenizer.decode(list(own.tokens[: where + 3]))
        fixed = one(loaded, "full", TeacherForce("a", PROMPT, text, 30))
        assert len(fixed.tokens) > where + 1
    finally:
        tokenizer._eos_token_ids = before


def test_what_cannot_be_compared_fails_alone(loaded: LoadedModel) -> None:
    requests = [
        TeacherForce("empty", PROMPT, "", 10),
        TeacherForce("long", "x" * 5000, TEXT, 10),
        TeacherForce("fine", PROMPT, TEXT, 10),
    ]
    outcomes = compared(loaded, "full", requests, batch=3)
    assert isinstance(outcomes["empty"], Failure)
    assert "continuation is empty" in outcomes["empty"].error
    assert "no room" in outcomes["long"].error
    assert len(outcomes["fine"].tokens) == 10


def test_the_context_cuts_the_comparison(loaded: LoadedModel) -> None:
    outcome = one(loaded, "full", TeacherForce("a", "x" * 4080, TEXT, 60))
    assert outcome.beyond_context
    assert outcome.prompt_tokens + len(outcome.tokens) == 4096


def test_times_and_progress_are_the_methods(loaded: LoadedModel) -> None:
    seen = []
    fidelity = Fidelity(loaded, resolve("morphkv", budget=24), prefill_step=STEP, batch_size=2)
    requests = [TeacherForce(name, PROMPT, TEXT, 60) for name in "abc"]
    outcomes: list[Any] = list(fidelity.compare(requests, on_step=seen.append))
    report = fidelity.report()
    assert report.prefill_tokens == sum(outcome.prompt_tokens for outcome in outcomes)
    assert report.decode_tokens == 3 * 59
    assert report.batch_sizes == (1, 2)
    assert report.decode_seconds == pytest.approx(outcomes[0].decode_seconds + outcomes[2].decode_seconds)
    assert report.eviction_layers == (0, 1)
    assert seen
    assert all(outcome.tokens_per_second > 0 for outcome in outcomes)


def test_settings_that_cannot_work_are_refused(loaded: LoadedModel) -> None:
    for how in ({"batch_size": "auto"}, {"memory_limit": 10**9}):
        with pytest.raises(ConfigError, match="a full cache runs beside the method's"):
            Fidelity(loaded, resolve("morphkv"), **how)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one at a time"):
        Fidelity(loaded, resolve("veloxquant/morphkv"), batch_size=2)


def test_a_divergence_is_what_the_formula_says() -> None:
    full, method = mx.array([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]]), mx.array([[2.0, 1.0, 0.0], [5.0, 5.0, 5.0]])
    kl, p, q = (np.array(x) for x in distances(full, method, mx.array([2, 0])))
    a, b = log_softmax(np.array(full, np.float64)), log_softmax(np.array(method, np.float64))
    np.testing.assert_allclose(kl, (np.exp(a) * (a - b)).sum(-1), rtol=1e-6)
    assert kl[1] == 0
    np.testing.assert_allclose(p, [a[0, 2], a[1, 0]], rtol=1e-6)
    np.testing.assert_allclose(q, [b[0, 2], b[1, 0]], rtol=1e-6)


@pytest.mark.model
def test_a_real_model_differs_from_itself_by_nothing_and_under_eviction_by_something(real_model: LoadedModel) -> None:
    text = "The miller reads by the lamp. " * 12
    request = TeacherForce("a", text, " Nobody slept that night, and in the morning the river had left its bed.", 16)
    full = one(real_model, "full", request)
    assert full.kl == (0.0,) * len(full.tokens)
    assert all(full.agree)
    assert max(one(real_model, "morphkv", request, budget=400).kl) < 1e-6
    evicted = one(real_model, "morphkv", request, budget=32)
    assert evicted.tokens == full.tokens
    assert max(evicted.kl) > 1e-3
    np.testing.assert_allclose(evicted.full_logprob, full.full_logprob, atol=1e-5)
