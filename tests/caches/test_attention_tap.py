"""The tap: shows queries to eviction caches only, corrects masks, and leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_lm.models import llama

from tests.conftest import make_tiny_llama
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.session import make_caches
from velox_eval.methods.policy import Policy, Rows, State
from velox_eval.mlx import mx


class SeesQueries(Policy):
    """Ranks by recency and keeps the shapes of the queries it was shown."""

    needs_queries = True

    def __init__(self) -> None:
        super().__init__({})
        self.shapes: list[tuple[int, ...]] = []

    def importance(self, rows: Rows, state: State) -> mx.array:
        assert rows.queries is not None
        self.shapes.append(rows.queries.shape)
        return rows.positions.astype(mx.float32)


def test_restores_what_it_replaced(tiny_llama: Any) -> None:
    """Also nested, and after an exception."""
    original = llama.scaled_dot_product_attention
    with attention_tap(tiny_llama):
        tapped = llama.scaled_dot_product_attention
        assert tapped is not original
        with attention_tap(make_tiny_llama(seed=1)):
            assert llama.scaled_dot_product_attention is tapped
        assert llama.scaled_dot_product_attention is tapped
    assert llama.scaled_dot_product_attention is original
    with pytest.raises(RuntimeError, match="half-way"), attention_tap(tiny_llama):
        raise RuntimeError("half-way")
    assert llama.scaled_dot_product_attention is original


def test_policies_see_the_queries_of_every_step(tiny_llama: Any) -> None:
    policies = [SeesQueries(), SeesQueries()]
    caches = [EvictionCache(policy, 4) for policy in policies]
    with attention_tap(tiny_llama):
        for chunk in (6, 3, 1, 1):
            mx.eval(tiny_llama(mx.array([list(range(chunk))]), cache=caches))
    assert policies[0].shapes == [(1, 4, 6, 8), (1, 4, 3, 8), (1, 4, 1, 8), (1, 4, 1, 8)]
    assert caches[0].size() == 4


def test_a_model_running_beside_is_not_touched(tiny_llama: Any) -> None:
    tokens = mx.array([list(range(20))])
    alone = np.array(tiny_llama(tokens))
    with attention_tap(tiny_llama):
        np.testing.assert_array_equal(np.array(tiny_llama(tokens)), alone)


def test_layers_with_other_row_counts_get_their_own_mask(tiny_llama: Any) -> None:
    """mlx-lm hands one layer's mask to all; under the tap a batch of unequal layers answers as each would alone."""
    streams = [list(range(30)), list(range(100, 112))]
    budgets = (9, 14)

    def layered() -> list[Any]:
        caches = make_caches(tiny_llama, "sliding_window", budget=9)
        for cache, budget in zip(caches, budgets, strict=True):
            cache.budgets = [budget]
        return caches

    alone, members = [], []
    with attention_tap(tiny_llama):
        for tokens in streams:
            for group in (alone, members):
                caches = layered()
                mx.eval(tiny_llama(mx.array([tokens[:-6]]), cache=caches))
                group.append(caches)
        batch = [EvictionCache.stack(pair) for pair in zip(*members, strict=True)]
        for at in range(-6, 0):
            together = tiny_llama(mx.array([[tokens[at]] for tokens in streams]), cache=batch)
            for row, (tokens, caches) in enumerate(zip(streams, alone, strict=True)):
                single = tiny_llama(mx.array([[tokens[at]]]), cache=caches)
                np.testing.assert_allclose(np.array(together[row]), np.array(single[0]), atol=1e-4)
