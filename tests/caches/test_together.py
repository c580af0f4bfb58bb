"""Layers that choose in one round keep what they keep one by one, whoever asks in between."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest

from tests.conftest import make_tiny_llama
from tests.methods.matrix import EVICTING, Case
from velox_eval.caches import attention_tap as tap_module
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.session import MethodSession, cache_use
from velox_eval.caches.together import choose_together, stacked
from velox_eval.methods import resolve
from velox_eval.mlx import mx

LAYERS = 3
TOGETHER = [
    case
    for case in EVICTING
    if case.layer.count == 1
    and getattr(resolve(case.method, case.params, budget=case.budget).variant.policy, "chooses_together", False)
]


def batch(case: Case, lengths: tuple[int, ...]) -> tuple[Any, list[MethodSession]]:
    """A model and sessions that have read a prompt of each length."""
    model = make_tiny_llama(seed=3, num_hidden_layers=LAYERS)
    sessions = []
    for length in lengths:
        method = resolve(case.method, case.params, budget=case.budget)
        session = MethodSession(model, method, budget=case.budget, tapped=True, seed=length)
        with session, session.reading():
            tokens = [(7 * at) % 250 for at in range(length)]
            model(mx.array([tokens]), cache=session.caches)
            session.after_prefill(tokens)
        sessions.append(session)
    return model, sessions


def alone(sessions: list[MethodSession]) -> list[Any]:
    """The sequences in one batch, every layer for itself."""
    return [EvictionCache.stack(list(layer)) for layer in zip(*(s.caches for s in sessions), strict=True)]


def state(caches: list[Any]) -> list[list[list[int]]]:
    """What every layer holds, and what it counted."""
    return [[np.sort(np.array(c.kept_positions())).tolist(), c.rows, c.peak_rows, [c.peak_aux_bytes]] for c in caches]


@pytest.mark.parametrize(("lengths", "lent"), [((30,), True), ((30, 7, 19), True), ((30, 7, 19), False)], ids=str)
@pytest.mark.parametrize("case", TOGETHER, ids=lambda case: case.id)
def test_layers_keep_together_what_they_keep_alone(
    case: Case, lengths: tuple[int, ...], lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through growing, evicting, a sequence that leaves and one that joins; whether attention lends logits or not."""
    if not lent:
        monkeypatch.setattr(tap_module, "fits", lambda *_: False)
    both = []
    for together in (False, True):
        model, sessions = batch(case, (*lengths, 12))
        first, last = sessions[:-1], sessions[-1]
        caches = stacked([s.caches for s in first]) if together else alone(first)
        if case.method != "squeeze":  # its layers' budgets differ
            assert all((cache.together is not None) == together for cache in caches)
        seen = []
        with last:
            for step in range(30):
                if step == 16 and len(lengths) > 1:
                    for cache in caches:
                        cache.select([1])
                if step == 22:
                    new = last.caches
                    pair = [caches, new]
                    caches = (
                        stacked(pair) if together else [EvictionCache.stack(list(p)) for p in zip(*pair, strict=True)]
                    )
                tokens = [[(step * 11 + 5 * row) % 250] for row in range(len(caches[0].rows))]
                mx.eval(model(mx.array(tokens), cache=caches), [cache.state for cache in caches])
                seen.append(state(caches))
        both.append((seen, [cache_use(caches, row) for row in range(len(caches[0].rows))]))
    assert both[0] == both[1]
    assert sum(cache_use(caches, 0).kept_tokens) <= LAYERS * (case.budget + case.slack)


@pytest.mark.parametrize("case", TOGETHER, ids=lambda case: case.id)
def test_what_attention_lends_is_what_a_method_would_work_out(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    both = []
    for lent in (True, False):
        if not lent:
            monkeypatch.setattr(tap_module, "fits", lambda *_: False)
        model, sessions = batch(case, (30, 7, 19))
        caches = alone(sessions)
        assert all(cache.tapped for cache in caches)  # else nothing would be lent to them
        with sessions[0]:
            for step in range(25):
                mx.eval(model(mx.array([[step], [step + 90], [step + 180]]), cache=caches))
        both.append([np.sort(np.array(cache.kept_positions())).tolist() for cache in caches])
    assert both[0] == both[1]


@pytest.mark.parametrize("asked", [True, False])
def test_a_layer_that_is_asked_or_fed_by_itself_goes_on(asked: bool) -> None:
    """Its state is its own again, and steps that the others have not taken are no one's."""
    case = next(case for case in TOGETHER if case.method == "morphkv")
    results = []
    for together in (False, True):
        model, sessions = batch(case, (30, 19))
        caches = alone(sessions)
        if together:
            choose_together(caches)
        rng = np.random.default_rng(0)
        with sessions[0]:
            for step in range(12):
                mx.eval(model(mx.array([[step], [step]]), cache=caches))
                if step % 3 == 2:  # one layer alone sees one more token
                    shape = (2, *caches[1].slots.keys.shape[1:2], 1, caches[1].slots.keys.shape[3])
                    key = mx.array(rng.normal(size=shape).astype(np.float32))
                    caches[1].update_and_fetch(key, key)
                    caches[1].attended(mx.repeat(key, 2, axis=1), 0.3)
                if asked:
                    assert set(caches[0].policy_state) == {"voters", "paid", "base"}
        results.append([np.sort(np.array(cache.kept_positions())).tolist() for cache in caches])
    assert results[0] == results[1]


@pytest.mark.parametrize("ask", ["stack", "select"])
def test_a_layer_that_waits_for_the_others_loses_its_row_first(ask: str) -> None:
    case = next(case for case in TOGETHER if case.method == "morphkv")
    results = []
    for together in (False, True):
        _, sessions = batch(case, (30, 30))
        caches = alone(sessions)
        if together:
            choose_together(caches)
        key = mx.ones((2, *caches[0].slots.keys.shape[1:2], 1, caches[0].slots.keys.shape[3]))
        caches[0].update_and_fetch(key, key)
        caches[0].attended(mx.repeat(key, 2, axis=1), 0.3)
        if ask == "stack":
            joint = EvictionCache.stack(caches[:1])
        else:
            joint = caches[0]
            joint.select([1])
        assert joint.rows == [case.budget] * len(joint.rows)
        results.append(np.sort(np.array(joint.kept_positions())).tolist())
    assert results[0] == results[1]


def test_a_batch_that_takes_layers_in_lets_go_of_them_at_once() -> None:
    """Without a garbage collection: buffers of whole layers would be held twice until then."""
    case = next(case for case in TOGETHER if case.method == "morphkv")
    model, sessions = batch(case, (30, 19))
    with sessions[0]:
        for session in sessions:
            mx.eval(model(mx.array([[5]]), cache=session.caches))
    parts = [session.caches for session in sessions]
    before = [ref(cache) for part in parts for cache in part]
    gc.disable()
    try:
        together = stacked(parts)
        assert [cache() for cache in before] == [None] * len(before)
    finally:
        gc.enable()
    assert len(together) == LAYERS


def test_states_of_a_round_stay_small() -> None:
    """Layers whose states are large choose in smaller rounds, or each for itself."""
    caches = []
    for width in (64, 64, 64):
        cache = EvictionCache(
            resolve("kvzip", {}, budget=width).variant.policy({"probe": "context", "n_sink": 4}), width
        )
        cache.update_and_fetch(mx.zeros((1, 2, width, 8)), mx.zeros((1, 2, width, 8)))
        caches.append(cache)
    choose_together(caches)
    assert all(cache.together is caches[0].together is not None for cache in caches)
    many = [EvictionCache.stack([cache] * 512) for cache in caches]
    choose_together(many)
    assert all(cache.together is None for cache in many)
