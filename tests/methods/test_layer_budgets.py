"""Methods whose layers differ: what each layer may hold, and that the budget is their mean."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import make_tiny_llama
from velox_eval.caches.session import MethodSession, cache_use
from velox_eval.errors import ConfigError
from velox_eval.methods import resolve
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
