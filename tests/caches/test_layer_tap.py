"""The layer tap: tells hidden states around attention to the owner of the cache only, and leaves no trace."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from tests.conftest import make_tiny_llama
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.layer_tap import layer_tap
from velox_eval.caches.session import make_caches
from velox_eval.errors import MethodError
from velox_eval.mlx import mx

TOKENS = mx.array([list(range(20))])


class Heard:
    """What was told, by layer."""

    def __init__(self) -> None:
        self.states: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def __call__(self, layer: int, before: mx.array, after: mx.array) -> None:
        self.states.setdefault(layer, []).append((np.array(before), np.array(after)))


def pairs(model: Any, caches: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(model.layers, caches, strict=True))


def test_tells_the_hidden_states_before_and_after_attention(tiny_llama: Any) -> None:
    hidden, expected = tiny_llama.model.embed_tokens(TOKENS), []
    for layer in tiny_llama.layers:
        after = hidden + layer.self_attn(layer.input_layernorm(hidden), "causal", None)
        expected.append((np.array(hidden), np.array(after)))
        hidden = after + layer.mlp(layer.post_attention_layernorm(after))
    heard, caches = Heard(), make_caches(tiny_llama, "full")
    with layer_tap(pairs(tiny_llama, caches), heard):
        for part in (TOKENS[:, :15], TOKENS[:, 15:]):
            mx.eval(tiny_llama(part, cache=caches))
    for layer, (before, after) in enumerate(expected):
        np.testing.assert_allclose(np.concatenate([told[0] for told in heard.states[layer]], 1), before, atol=1e-5)
        np.testing.assert_allclose(np.concatenate([told[1] for told in heard.states[layer]], 1), after, atol=1e-5)


def test_leaves_no_trace() -> None:
    """Also after an exception; names, order and identity of the parameters never change."""
    model = make_tiny_llama(num_hidden_layers=3)
    names = [name for name, _ in tree_flatten(model.parameters())]
    alone = np.array(model(TOKENS))
    caches = make_caches(model, "full")
    with layer_tap(pairs(model, caches), Heard()):
        assert type(model.layers[0]) is not llama.TransformerBlock
        assert isinstance(model.layers[0], llama.TransformerBlock)
        assert [name for name, _ in tree_flatten(model.parameters())] == names
        np.testing.assert_array_equal(np.array(model(TOKENS)), alone)
        with attention_tap(model):  # modules are still found
            mx.eval(model(TOKENS, cache=caches))
    with pytest.raises(RuntimeError, match="half-way"), layer_tap(pairs(model, caches), Heard()):
        raise RuntimeError("half-way")
    for layer in model.layers:
        assert type(layer) is llama.TransformerBlock
        assert type(layer.post_attention_layernorm) is nn.RMSNorm
    assert [name for name, _ in tree_flatten(model.parameters())] == names


def test_only_the_owner_of_the_cache_hears_and_sessions_may_overlap(tiny_llama: Any) -> None:
    """In whatever order they open and close."""
    first, second = Heard(), Heard()
    one, other = make_caches(tiny_llama, "full"), make_caches(tiny_llama, "full")
    opened, later = ExitStack(), ExitStack()
    opened.enter_context(layer_tap(pairs(tiny_llama, one), first))
    later.enter_context(layer_tap(pairs(tiny_llama, other), second))
    mx.eval(tiny_llama(TOKENS, cache=one), tiny_llama(TOKENS[:, :5], cache=other), tiny_llama(TOKENS))
    opened.close()
    mx.eval(tiny_llama(TOKENS, cache=one), tiny_llama(TOKENS[:, :7], cache=other))
    later.close()
    assert [told[0].shape[1] for told in first.states[1]] == [20]
    assert [told[0].shape[1] for told in second.states[1]] == [5, 7]
    assert type(tiny_llama.layers[0]) is llama.TransformerBlock


def test_a_layer_built_otherwise_is_refused_by_name() -> None:
    class Parallel(nn.Module):
        pass

    with (
        pytest.raises(MethodError, match=r"Parallel of tests\.caches\.test_layer_tap"),
        layer_tap([(Parallel(), object())], Heard()),
    ):
        pass
