"""KVzip's reconstruction passes through a real model: what they read, what they leave behind, what stays (U14)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_lm.models import llama

from velox_eval.caches.session import MethodSession
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Failure, Generate, Generation
from velox_eval.engine.text import read_prompt
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods import resolve
from velox_eval.methods.kvzip import FIRST, LATER, RAW_TURN_END
from velox_eval.mlx import mx

CONTEXT = "The north gate is green. The south gate is blue. The mill stands by the river, and the bridge is old. "


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Any) -> LoadedModel:
    return load_model(str(tiny_model_dir))


def read(loaded: LoadedModel, request: Generate, budget: int, **params: Any) -> MethodSession:
    """A session that has read the request's prompt, not yet compressed it."""
    session = MethodSession(
        loaded.model,
        resolve("kvzip:paper", params, budget=budget),
        budget=budget,
        encode=lambda text: loaded.tokenizer.encode(text, add_special_tokens=False),
    )
    prompt = read_prompt(loaded.tokenizer, request, parts=True)
    session.prompt = prompt
    with session:
        mx.eval(loaded.model(mx.array([prompt.tokens]), cache=session.caches))
    return session


def compress(session: MethodSession) -> list[np.ndarray]:
    """The positions each layer keeps [H, n]."""
    with session:
        session.after_prefill(session.prompt)
    positions = [np.array(cache.kept_positions()[0]) for cache in session.evicting]
    return [np.sort(held, axis=-1)[:, -session.evicting[0].rows[0] :] for held in positions]


def question(text: str, **options: Any) -> Generate:
    return Generate("q", CONTEXT + text, 4, context=(0, len(CONTEXT)), **options)


def test_a_question_neither_decides_what_is_kept_nor_is_evicted(loaded: LoadedModel) -> None:
    """U14: the scoring range is the context span; other questions, same context rows."""
    kept = []
    for text in ("Which gate is green?", "Name everything that stands by the river, and in which order it was built."):
        kept.append(compress(read(loaded, question(text), budget=30 + len(text))))
        for held in kept[-1]:
            assert (held[:, 30:] == np.arange(len(CONTEXT), len(CONTEXT) + len(text))).all()
            assert (held[:, :4] == np.arange(4)).all()
    for first, second in zip(*kept, strict=True):
        np.testing.assert_array_equal(first[:, :30], second[:, :30])
    other = compress(read(loaded, Generate("q", CONTEXT + "Which gate is green?", 4), budget=50))
    assert any((held[:, :30] != kept[0][layer][:, :30]).any() for layer, held in enumerate(other))


def test_a_chat_keeps_its_system_prompt_and_ends_the_turn(loaded: LoadedModel) -> None:
    session = read(loaded, question("Which gate is green?", chat=True, system="terse"), budget=80)
    before = len("system: terse\nuser: ")
    tail = len("Which gate is green?" + "\nassistant:")
    assert session.prompt.context == (before, before + len(CONTEXT))
    assert loaded.tokenizer.decode(session.prompt.turn_end) == "\nassistant:"
    for held in compress(session):
        assert (held[:, :before] == np.arange(before)).all()
        assert (held[:, -tail:] == np.arange(before + len(CONTEXT), before + len(CONTEXT) + tail)).all()


def test_the_passes_leave_no_trace_but_their_peak(loaded: LoadedModel) -> None:
    """Every row, offset and later logit is as without them; rows in transit are counted (U7)."""
    plain, passed = (read(loaded, question("Which gate is green?"), budget=40) for _ in range(2))
    prompt = len(plain.prompt.tokens)
    tokens = [5, 6, 7, 8, 9] * 60  # more than one step of a pass
    with passed:
        passed.run_pass(tokens, len(CONTEXT))
    for one, other in zip(plain.evicting, passed.evicting, strict=True):
        assert (one.rows, one.tokens_seen, one.offset) == (other.rows, other.tokens_seen, other.offset)
        for name in ("keys", "values", "positions"):
            held = [np.array(getattr(cache.slots, name))[:, :, :prompt] for cache in (one, other)]
            np.testing.assert_array_equal(*held)
        positions = np.array(other.kept_positions())
        assert (positions >= 0).sum() == 2 * prompt
        assert one.peak_rows == [prompt]
        assert other.peak_rows == [prompt + len(tokens)]
        assert other.peak_slots >= prompt + len(tokens)
    for session in (plain, passed):
        for cache in session.evicting:
            cache.budgets = [None]
    with plain, passed:
        logits = [np.array(loaded.model(mx.array([[77]]), cache=s.caches)) for s in (plain, passed)]
    np.testing.assert_array_equal(*logits)


def test_a_failing_pass_leaves_no_trace_either(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = read(loaded, Generate("q", CONTEXT, 4), budget=40)
    calls = []

    def failing(*_args: Any, **_rest: Any) -> mx.array:
        calls.append(1)
        raise RuntimeError("half-way")

    original = llama.scaled_dot_product_attention
    monkeypatch.setattr(llama, "scaled_dot_product_attention", failing)
    with pytest.raises(RuntimeError, match="half-way"), session:
        session.after_prefill(session.prompt)
    monkeypatch.setattr(llama, "scaled_dot_product_attention", original)
    assert calls
    assert all(cache.rows == cache.tokens_seen == [len(CONTEXT)] for cache in session.evicting)
    assert [held.shape for held in compress(session)] == [(2, 40)] * 2


def test_scores_are_the_models_own_attention(loaded: LoadedModel) -> None:
    """By hand: one full forward over context + repeat input; softmax over sinks, chunk and the pass's own."""
    sinks, chunk, total = 4, 40, len(CONTEXT)
    session = read(loaded, Generate("q", CONTEXT, 4), budget=50, chunk=chunk)
    tokens = session.prompt.tokens
    expected = [np.zeros((2, total), np.float32) for _ in range(2)]
    for start in range(sinks, total, chunk):
        end = min(start + chunk, total)
        lead = FIRST if start == sinks else LATER + CONTEXT[start - 8 : start]
        repeat = [*loaded.tokenizer.encode(lead + RAW_TURN_END, add_special_tokens=False), *tokens[start:end]]
        for layer, (queries, keys) in enumerate(queries_and_keys(loaded.model, [*tokens, *repeat])):
            own = np.arange(total, total + len(repeat))
            columns = np.concatenate([np.arange(sinks), np.arange(start, end), own])
            for head in range(4):
                logits = queries[head, own] @ keys[head // 2, columns].T / np.sqrt(8)
                logits[columns[None] > own[:, None]] = -np.inf
                weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
                weights /= weights.sum(axis=-1, keepdims=True)
                best = weights[:, sinks : sinks + end - start].max(axis=0)
                row = expected[layer][head // 2]
                row[start:end] = np.maximum(row[start:end], best)
    for layer, held in enumerate(compress(session)):
        for head in range(2):
            scores = expected[layer][head]
            scores[:sinks] = np.inf
            np.testing.assert_array_equal(held[head], np.sort(np.argsort(scores, kind="stable")[-50:]))


def queries_and_keys(model: Any, tokens: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per layer, queries [4, T, 8] and keys [2, T, 8] after RoPE, from one forward without a cache."""
    found = []
    original = llama.scaled_dot_product_attention

    def watched(queries: mx.array, keys: mx.array, values: mx.array, **rest: Any) -> mx.array:
        found.append((np.array(queries[0]), np.array(keys[0])))
        return original(queries, keys, values, **rest)

    llama.scaled_dot_product_attention = watched
    try:
        mx.eval(model(mx.array([tokens])))
    finally:
        llama.scaled_dot_product_attention = original
    return found


def test_the_extra_time_is_told_apart(loaded: LoadedModel) -> None:
    (passed,) = Engine(loaded, resolve("kvzip:paper", budget=40)).generate([Generate("q", CONTEXT, 4)])
    (kept,) = Engine(loaded, resolve("kvzip:paper", budget=400)).generate([Generate("q", CONTEXT, 4)])
    assert isinstance(passed, Generation)
    assert isinstance(kept, Generation)
    assert 0 < passed.compress_seconds < passed.prefill_seconds
    assert kept.compress_seconds < passed.compress_seconds
    assert passed.cache.kept_tokens == (43, 43)  # three decoded tokens were fed


def test_what_cannot_work_is_refused_in_a_sentence(loaded: LoadedModel) -> None:
    (failed,) = Engine(loaded, resolve("kvzip:paper", budget=20)).generate([question("Which gate is green?")])
    assert isinstance(failed, Failure)
    assert "24 tokens outside the context" in failed.error
    assert "budget=20" in failed.error
    for span in ((5, 5), (-1, 4), (0, 1000)):
        with pytest.raises(ConfigError, match="must lie within the prompt's"):
            read_prompt(loaded.tokenizer, Generate("q", CONTEXT, 4, context=span), parts=True)
    session = read(loaded, Generate("q", CONTEXT, 4), budget=40)
    session.encode = None
    with pytest.raises(MethodError, match="tokenizer"):
        compress(session)
    session = read(loaded, Generate("q", CONTEXT, 4), budget=40)
    with pytest.raises(MethodError, match="MethodSession"):
        session.evicting[0].finish_prompt()
