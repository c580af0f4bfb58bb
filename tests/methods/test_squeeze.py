"""SqueezeAttention's layer budgets: from keys as the installed package has them, and from hidden states."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from veloxquant_mlx import KVCacheConfig
from veloxquant_mlx.cache.squeeze_cache import SqueezeAttentionCache
from veloxquant_mlx.cache.squeeze_coordinator import SqueezeCoordinator
from veloxquant_mlx.quantizers.squeeze import squeeze_budgets

from tests.conftest import make_tiny_llama
from velox_eval.caches.session import MethodSession, cache_use
from velox_eval.errors import MethodError
from velox_eval.methods import resolve
from velox_eval.methods.squeeze import by_concentration, by_importance, least_important
from velox_eval.mlx import mx

from .installed import positions_of
from .streams import Stream, feed, kept, stream

LAYERS, BUDGET, PROMPT, DECODED = 4, 20, 40, 30


def session_of(model: Any, name: str, budget: int = BUDGET, **params: Any) -> MethodSession:
    return MethodSession(model, resolve(name, params, budget=budget), budget=budget, evict_block=1)


def clustered(seed: int, strength: float) -> Stream:
    """A stream whose keys point the same way the more, the larger `strength`."""
    data = stream(seed, 1, 2, PROMPT + DECODED, 8, scale=1.0)
    keys = (data.keys + strength * np.ones(8, np.float32)).astype(np.float16).astype(np.float32)
    return Stream(keys, data.values, data.queries)


def beside_the_package(strength: float, decoded: int) -> tuple[MethodSession, list[Any], list[Stream]]:
    """The same streams through ours and the package's caches with their coordinator: one chunk, then decode."""
    streams = [clustered(seed, 0.9 - 0.25 * seed) for seed in range(LAYERS)]
    ours = session_of(make_tiny_llama(num_hidden_layers=LAYERS), "squeeze", n_sink=2, strength=strength)
    coordinator = SqueezeCoordinator(LAYERS, BUDGET, 2, strength)
    config = KVCacheConfig(method="squeeze", head_dim=8, squeeze_budget=BUDGET, squeeze_n_sink=2)
    theirs = [SqueezeAttentionCache(config, layer, coordinator) for layer in range(LAYERS)]
    layers = list(zip(ours.evicting, theirs, streams, strict=True))
    for cache, other, data in layers:
        feed(cache, data, [PROMPT])
        feed(other, data, [PROMPT])
    ours.after_prefill(range(PROMPT))
    for step in range(PROMPT, PROMPT + decoded):
        for cache, other, data in layers:
            feed(cache, data, [1], start=step)
            feed(other, data, [1], start=step)
    return ours, theirs, streams


def held(cache: Any, data: Stream) -> np.ndarray:
    """Positions the package's cache holds."""
    return positions_of(np.array(cache._bh_keys.astype(mx.float32)).reshape(1, 2, -1, 8), data)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_layers_keep_what_the_installed_package_keeps(strength: float) -> None:
    ours, theirs, streams = beside_the_package(strength, DECODED)
    shares = [cache.budgets[0] for cache in ours.evicting]
    assert sum(shares) == LAYERS * BUDGET
    assert max(abs(mine - other.layer_budget) for mine, other in zip(shares, theirs, strict=True)) <= 1
    assert (len(set(shares)) == 1) == (strength == 0)
    # Layers that lose rows at the prompt's end, and the last one, are stated differences.
    same = [n for n in range(LAYERS - 1) if shares[n] == theirs[n].layer_budget >= BUDGET]
    assert same
    for layer in same:
        np.testing.assert_array_equal(kept(ours.evicting[layer]), held(theirs[layer], streams[layer]))


def test_the_cut_at_the_prompts_end_spares_the_newest_row() -> None:
    """It has gathered nothing yet; the package drops it there, and protects it at every other step."""
    ours, _, streams = beside_the_package(1.0, 0)
    _, theirs, _ = beside_the_package(1.0, 1)  # there the cut comes with the first decoded row
    cut = [layer for layer, cache in enumerate(ours.evicting) if cache.budgets[0] < BUDGET]
    assert cut
    for layer in cut:
        assert (kept(ours.evicting[layer])[..., -1] == PROMPT - 1).all()
        assert not (held(theirs[layer], streams[layer]) == PROMPT - 1).any()


def test_the_last_layer_holds_the_mean_budget_until_the_prompt_is_in() -> None:
    """In the package it is the last to report, so it knows its own before its first row."""
    streams = [clustered(seed, 0.25 * seed) for seed in range(LAYERS)]  # the last is the most concentrated
    ours = session_of(make_tiny_llama(num_hidden_layers=LAYERS), "squeeze", n_sink=2)
    coordinator = SqueezeCoordinator(LAYERS, BUDGET, 2, 1.0)
    config = KVCacheConfig(method="squeeze", head_dim=8, squeeze_budget=BUDGET, squeeze_n_sink=2)
    theirs = [SqueezeAttentionCache(config, layer, coordinator) for layer in range(LAYERS)]
    for cache, other, data in zip(ours.evicting, theirs, streams, strict=True):
        feed(cache, data, [PROMPT])
        feed(other, data, [PROMPT])
    assert [cache.size() for cache in ours.evicting] == [BUDGET] * LAYERS
    assert [other.tokens_kept for other in theirs[:-1]] == [BUDGET] * (LAYERS - 1)
    assert theirs[-1].tokens_kept < BUDGET


@settings(max_examples=60, deadline=None)
@given(
    concentrations=st.lists(st.floats(-0.5, 1.0), min_size=1, max_size=30),
    budget=st.integers(6, 200),
    strength=st.floats(0, 1),
)
def test_budgets_by_concentration_have_the_budget_as_their_mean(
    concentrations: list[float], budget: int, strength: float
) -> None:
    shares = by_concentration(concentrations, budget, 5, strength)
    assert sum(shares) == budget * len(concentrations)
    assert min(shares) >= 5
    theirs = squeeze_budgets(concentrations, budget, 4, strength)
    if min(theirs) > 5:  # nothing was raised to the least, which there adds rows
        assert max(abs(mine - other) for mine, other in zip(shares, theirs, strict=True)) <= 1


@settings(max_examples=60, deadline=None)
@given(
    cosines=st.lists(st.floats(-1, 1).map(lambda value: round(value, 3)), min_size=1, max_size=12),
    budget=st.integers(1, 200),
    share=st.floats(0, 1),
)
def test_budgets_by_importance_have_the_budget_as_their_mean(cosines: list[float], budget: int, share: float) -> None:
    shares, spared = by_importance(cosines, budget, share), least_important(cosines)
    assert sum(shares) == budget * len(cosines)
    assert min(shares) >= 1
    for layer in spared:
        assert shares[layer] <= max(share * budget, 1) + 1
        assert all(cosines[layer] > cosines[other] for other in set(range(len(cosines))) - spared)


@settings(max_examples=40, deadline=None)
@given(cosines=st.lists(st.floats(0, 1).map(lambda value: round(value, 2)), min_size=3, max_size=9))
def test_the_groups_are_the_best_of_all(cosines: list[float]) -> None:
    """Against every way to cut the sorted layers in three."""
    if len(set(cosines)) < 3:
        return
    values = np.sort(np.array(cosines))
    spreads = {
        cuts: sum(part.var() * len(part) for part in np.split(values, cuts))
        for cuts in combinations(range(1, len(values)), 2)
    }
    spared = values[-len(least_important(cosines)) :]
    mine = min(cost for (_, cut), cost in spreads.items() if len(values) - cut == len(spared))
    assert mine == pytest.approx(min(spreads.values()), abs=1e-9)


def test_the_least_important_layers_are_told_from_the_rest() -> None:
    assert least_important([0.1, 0.9, 0.12, 0.5, 0.91]) == {1, 4}
    assert least_important([0.3, 0.3]) == set()
    assert least_important([0.2, 0.4, 0.2]) == {1}
    assert by_importance([0.1, 0.9, 0.12, 0.5, 0.91], 100, 0.3) == [147, 30, 147, 146, 30]


def read(session: MethodSession, tokens: list[int], chunk: int = 16) -> None:
    for start in range(0, len(tokens), chunk):
        mx.eval(session.model(mx.array([tokens[start : start + chunk]]), cache=session.caches))


@pytest.mark.parametrize("policy", ["h2o", "sliding_window"])
def test_paper_budgets_come_from_the_hidden_states_of_the_whole_prompt(policy: str) -> None:
    """By hand: the mean cosine over tokens of each layer's input and input + attention; the chunks do not matter."""
    model = make_tiny_llama(num_hidden_layers=5)
    tokens = [(7 * i) % 250 for i in range(PROMPT)]
    hidden, cosines = model.model.embed_tokens(mx.array([tokens])), []
    for layer in model.layers:
        after = hidden + layer.self_attn(layer.input_layernorm(hidden), "causal", None)
        a, b = np.array(hidden[0]), np.array(after[0])
        cosines.append(float(((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).mean()))
        hidden = after + layer.mlp(layer.post_attention_layernorm(after))
    session = session_of(model, "squeeze:paper", policy=policy)
    with session, session.reading():
        read(session, tokens)
        assert [cache.rows for cache in session.evicting] == [[PROMPT]] * 5
    session.after_prefill(tokens)
    expected = by_importance(cosines, BUDGET, 0.3)
    assert [cache.budgets[0] for cache in session.evicting] == expected
    assert len(set(expected)) > 1
    assert [cache.rows[0] for cache in session.evicting] == [min(share, PROMPT) for share in expected]
    with session:
        read(session, list(range(DECODED)), chunk=1)
    use = cache_use(session.caches, 0)
    assert use.kept_tokens == tuple(expected)
    assert use.budget == BUDGET


def test_the_paper_needs_the_prompt_read_under_watch() -> None:
    session = session_of(make_tiny_llama(), "squeeze:paper")
    with session:
        read(session, list(range(PROMPT)))
        with pytest.raises(MethodError, match=r"reading\(\)"):
            session.after_prefill(range(PROMPT))


def test_two_sessions_that_read_by_turns_get_their_own_budgets() -> None:
    model = make_tiny_llama(num_hidden_layers=5)
    prompts = [[(7 * i) % 250 for i in range(PROMPT)], [(11 * i + 3) % 200 for i in range(PROMPT + 9)]]
    alone, turns = [], [session_of(model, "squeeze:paper") for _ in prompts]
    for prompt in prompts:
        session = session_of(model, "squeeze:paper")
        with session, session.reading():
            read(session, prompt)
        session.after_prefill(prompt)
        alone.append([cache.budgets for cache in session.evicting])
    with turns[0], turns[1], turns[0].reading(), turns[1].reading():
        for half in (slice(0, 20), slice(20, None)):
            for session, prompt in zip(turns, prompts, strict=True):
                read(session, prompt[half])
    for session, prompt, budgets in zip(turns, prompts, alone, strict=True):
        session.after_prefill(prompt)
        assert [cache.budgets for cache in session.evicting] == budgets
