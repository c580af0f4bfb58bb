"""Methods whose layers differ: what each layer may hold, and that the budget is their mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from veloxquant_mlx.quantizers.pyramidkv import pyramid_budgets

from tests.conftest import make_tiny_llama
from velox_eval.caches.session import MethodSession, cache_use
from velox_eval.errors import ConfigError
from velox_eval.methods import pyramidkv, resolve
from velox_eval.mlx import mx


def run(model: Any, method: str, budget: int, prompt: int, decoded: int, **params: Any) -> MethodSession:
    """A session after a prompt in chunks of 16 and some decoded tokens."""
    session = MethodSession(model, resolve(method, params, budget=budget), budget=budget)
    tokens = [(7 * i) % 250 for i in range(prompt + decoded)]
    with session:
        for start in range(0, prompt, 16):
            mx.eval(model(mx.array([tokens[start : min(start + 16, prompt)]]), cache=session.caches))
        session.after_prefill(tokens[:prompt])
        for token in tokens[prompt:]:
            mx.eval(model(mx.array([[token]]), cache=session.caches))
    return session


def test_morphkv_leaves_the_first_layers_whole() -> None:
    """The authors' layer-wise variant; the record still states the budget of the others."""
    model = make_tiny_llama(num_hidden_layers=5)
    session = run(model, "morphkv:paper", 12, 40, 10, window=4, skip_layers=3)
    use = cache_use(session.caches, 0)
    assert use.kept_tokens == (50, 50, 50, 12, 12)
    assert use.evicted_tokens == 2 * 38
    assert use.budget == 12
    with pytest.raises(ConfigError, match="skip_layers=5 leaves none of the 5 layers"):
        run(model, "morphkv:paper", 12, 4, 0, window=4, skip_layers=5)


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(6, 300),
    layers=st.integers(1, 40),
    sinks=st.integers(0, 5),
    beta=st.floats(1.0, 12.0),
)
def test_pyramidkv_budgets_fall_with_the_budget_as_their_mean(
    budget: int, layers: int, sinks: int, beta: float
) -> None:
    """And stay within a row of the installed package's, where rounding leaves it its mean."""
    params = {"n_sink": sinks, "beta": beta}
    shares = resolve("pyramidkv", params, budget=budget).variant.layer_budgets(budget, params, layers)
    assert sum(shares) == budget * layers
    assert min(shares) >= sinks + 1
    assert shares == sorted(shares, reverse=True)
    theirs = pyramid_budgets(layers, budget, sinks, beta)
    assert max(abs(mine - other) for mine, other in zip(shares, theirs, strict=True)) <= 1


@settings(max_examples=60, deadline=None)
@given(
    window=st.integers(1, 32),
    beside=st.integers(0, 300),
    layers=st.integers(1, 40),
    beta=st.integers(1, 30),
    prompt=st.integers(1, 700) | st.none(),
)
def test_pyramidkv_paper_budgets_fit_the_prompt(
    window: int, beside: int, layers: int, beta: int, prompt: int | None
) -> None:
    shares = pyramidkv._shares_paper(window + beside, {"window": window, "beta": beta}, layers, prompt)
    assert sum(shares) == (window + beside) * layers
    assert min(shares) >= window
    assert shares == sorted(shares, reverse=True)
    if prompt is not None and prompt >= max(window + beside, 2 * beside):
        assert max(shares) <= prompt
    if prompt is not None and prompt < 2 * beside:
        assert len(set(shares)) == 1


def test_pyramidkv_paper_budgets_are_the_authors_but_for_rounding() -> None:
    """128 rows over 32 layers, window 8, beta 20: their code has 242 first and steps of 7, down to 25."""
    shares = pyramidkv._shares_paper(128, {"window": 8, "beta": 20}, 32)
    assert (shares[0], shares[-1]) == (8 + 234, 8 + 6)
    assert sum(shares) / 32 == 128


@pytest.mark.parametrize(("prompt", "first", "last"), [(100, 34, 6), (33, 33, 7), (31, 20, 20), (15, 15, 15)])
def test_pyramidkv_paper_through_a_model(prompt: int, first: int, last: int) -> None:
    """The prompt's length decides; what is decoded is kept on top."""
    model = make_tiny_llama(num_hidden_layers=5)
    session = run(model, "pyramidkv:paper", 20, prompt, 7, window=4, beta=8)
    kept = cache_use(session.caches, 0).kept_tokens
    assert (kept[0], kept[-1]) == (first + 7, last + 7)
    assert sum(kept) == 5 * (min(20, prompt) + 7)


def test_pyramidkv_through_a_model() -> None:
    """Constant size; nothing goes before the mean budget is reached."""
    model = make_tiny_llama(num_hidden_layers=4)
    session = run(model, "pyramidkv", 12, 30, 30, n_sink=2)
    use = cache_use(session.caches, 0)
    assert use.kept_tokens == (21, 15, 9, 3)
    assert use.budget == 12
    whole = run(model, "pyramidkv", 12, 7, 5, n_sink=2)
    assert cache_use(whole.caches, 0).kept_tokens == (12, 12, 12, 12)
