"""Positions inside the cache: logits equal an explicit attention over the kept rows at their places, for every RoPE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.nn as nn
import numpy as np
import pytest

from tests.conftest import make_tiny_llama
from tests.methods.streams import feed, new_cache, stream
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.session import MethodSession, make_caches
from velox_eval.errors import MethodError
from velox_eval.methods import resolve
from velox_eval.methods.policy import Layer
from velox_eval.mlx import mx

YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8, "beta_slow": 1}
ROPES = {
    "plain": {},
    "traditional": {"rope_traditional": True},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn", **YARN}},
    "traditional yarn": {"rope_traditional": True, "rope_scaling": {"rope_type": "yarn", **YARN}},
}
SINKS, BUDGET = 2, 9
CHUNKS = (5, 6, 1, 1, 8, *[1] * 30)
TOKENS = [7 * i % 290 + 3 for i in range(sum(CHUNKS))]


@dataclass
class Explicit:
    """A llama run on the kept tokens alone: keys as they are before RoPE, places given at every step."""

    model: Any
    budget: int
    kept: list[int] = field(default_factory=list)
    seen: int = 0
    rows: list[dict[int, tuple[mx.array, mx.array]]] = field(default_factory=lambda: [{}, {}])

    def feed(self, tokens: list[int]) -> np.ndarray:
        """Logits [S, V] of new tokens, which see the kept ones and each other."""
        new = list(range(self.seen, self.seen + len(tokens)))
        hidden = self.model.model.embed_tokens(mx.array([tokens]))
        for layer, rows in zip(self.model.layers, self.rows, strict=True):
            hidden = hidden + self.attend(layer, layer.input_layernorm(hidden), rows, new)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        self.seen += len(tokens)
        rows_now = self.kept + new
        sinks = [p for p in rows_now if p < SINKS]
        rest = [p for p in rows_now if p >= SINKS]
        self.kept = sinks + rest[-(self.budget - len(sinks)) :]
        return np.array(self.model.model.embed_tokens.as_linear(self.model.model.norm(hidden))[0])

    def attend(self, layer: Any, hidden: mx.array, rows: dict[int, Any], new: list[int]) -> mx.array:
        attention, count = layer.self_attn, len(new)
        queries = attention.q_proj(hidden).reshape(count, 4, 8)
        keys, values = (p(hidden).reshape(count, 2, 8) for p in (attention.k_proj, attention.v_proj))
        for at, position in enumerate(new):
            rows[position] = keys[at], values[at]
        held = self.kept + new
        placed = mx.stack([turn(attention.rope, rows[p][0], place) for place, p in enumerate(held)])
        values = mx.stack([rows[p][1] for p in held])
        out = []
        for at, query in enumerate(queries):
            place = len(self.kept) + at
            query = turn(attention.rope, query, place).reshape(2, 2, 1, 8)
            logits = (query * placed[: place + 1].transpose(1, 0, 2)[:, None]).sum(-1) * attention.scale
            weights = mx.softmax(logits, axis=-1)
            out.append((weights[..., None] * values[: place + 1].transpose(1, 0, 2)[:, None]).sum(2).reshape(-1))
        return attention.o_proj(mx.stack(out))[None]


def turn(rope: Any, rows: mx.array, place: int) -> mx.array:
    """Rows [H, D] at one place, by the model's own RoPE module."""
    return rope(rows[None, :, None], offset=place)[0, :, 0]


def run(model: Any, caches: list[Any], tokens: list[int], chunks: tuple[int, ...]) -> np.ndarray:
    parts, fed = [], 0
    for chunk in chunks:
        parts.append(np.array(model(mx.array([tokens[fed : fed + chunk]]), cache=caches)[0]))
        fed += chunk
    return np.concatenate(parts)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_logits_equal_attention_over_the_kept_rows_at_their_places(rope: dict[str, Any]) -> None:
    """Through chunks, single tokens and a chunk after single tokens, with holes all over the slots."""
    model = make_tiny_llama(**rope)
    explicit, fed, expected = Explicit(model, BUDGET), 0, []
    for chunk in CHUNKS:
        expected.append(explicit.feed(TOKENS[fed : fed + chunk]))
        fed += chunk
    caches = make_caches(model, "streaming_llm:paper", budget=BUDGET, n_sink=SINKS)
    got = run(model, caches, TOKENS, CHUNKS)
    np.testing.assert_allclose(got, np.concatenate(expected), atol=2e-4)
    adapted = run(model, make_caches(model, "streaming_llm", budget=BUDGET, n_sink=SINKS), TOKENS, CHUNKS)
    assert np.abs(adapted - got).max() > 1e-2
    assert caches[0].offset == BUDGET
    assert caches[0].tokens_seen == [len(TOKENS)]
    positions = np.array(caches[0].kept_positions())
    assert sorted(positions[positions >= 0].tolist()) == sorted(2 * explicit.kept)
    slots = positions[0, 0][positions[0, 0] >= 0]
    assert (np.diff(slots) < 0).any()  # slot order is not age


def test_a_batch_of_different_lengths_has_each_its_own_places(tiny_llama: Any) -> None:
    prompts, budgets = [TOKENS[:20], TOKENS[5:9], TOKENS[9:25]], [BUDGET, BUDGET, BUDGET + 3]
    references, members = [], []
    for prompt, budget in zip(prompts, budgets, strict=True):
        references.append(Explicit(tiny_llama, budget))
        references[-1].feed(prompt)
        members.append(make_caches(tiny_llama, "streaming_llm:paper", budget=budget, n_sink=SINKS))
        run(tiny_llama, members[-1], prompt, (len(prompt),))
    session = MethodSession(tiny_llama, resolve("streaming_llm:paper", {"n_sink": SINKS}, budget=BUDGET), budget=BUDGET)
    with session:
        batch, here = [EvictionCache.stack(group) for group in zip(*members, strict=True)], [0, 1, 2]
        for at in range(24):
            if at == 10:
                here = [2, 0]
                for cache in batch:
                    cache.select(here)
            tokens = [TOKENS[(at * 5 + who) % len(TOKENS)] for who in here]
            got = np.array(tiny_llama(mx.array(tokens)[:, None], cache=batch))[:, 0]
            for row, who in enumerate(here):
                np.testing.assert_allclose(got[row], references[who].feed([tokens[row]])[0], atol=2e-4)


def test_keys_are_turned_once_from_what_is_stored() -> None:
    """However long they stay: after 5,000 steps a sink's key is off by no more than after one."""
    layer = nn.RoPE(8)
    data = stream(0, 1, 1, 5001, 8)
    cache = new_cache("streaming_llm:paper", {"n_sink": 1}, 40, layer=Layer(module=layer))
    feed(cache, data, [64])
    ((first, _),) = feed(cache, data, [1], start=64)
    handed = feed(cache, data, [1] * 4936, start=65)
    slot = np.array(cache.kept_positions())[0, 0].tolist().index(0)
    np.testing.assert_array_equal(handed[-1][0][0, 0, slot], data.keys[0, 0, 0])
    np.testing.assert_array_equal(first[0, 0, slot], data.keys[0, 0, 0])


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        (
            {
                "rope_type": "longrope",
                "original_max_position_embeddings": 64,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
            },
            "SuScaledRoPE",
        ),
        ({"rope_type": "dynamic", "factor": 2.0}, "DynamicNTKScalingRoPE"),
        ({"rope_type": "proportional", "factor": 2.0}, "ProportionalRoPE"),
    ],
)
def test_other_ropes_are_refused_by_name(scaling: dict[str, Any], named: str) -> None:
    model = make_tiny_llama(rope_scaling=scaling)
    with pytest.raises(MethodError, match=named):
        make_caches(model, "streaming_llm:paper", budget=BUDGET, n_sink=SINKS)
    assert make_caches(model, "streaming_llm", budget=BUDGET, n_sink=SINKS)


def test_layers_without_a_rotary_module_are_refused() -> None:
    with pytest.raises(MethodError, match="no rotary module"):
        new_cache("streaming_llm:paper", {"n_sink": 1}, 8, layer=Layer(module=nn.Linear(2, 2)))


def test_a_model_whose_stored_keys_do_not_move_by_its_rope_is_refused() -> None:
    """A RoPE that is there but does not turn what is stored is found by trying."""
    method = resolve("streaming_llm:paper", {"n_sink": SINKS}, budget=BUDGET)
    MethodSession(make_tiny_llama(), method, budget=None).check_tap()
    model = make_tiny_llama()
    attention = model.layers[1].self_attn
    attention.k_norm, attention.rope = attention.rope, _Unmoved()
    with pytest.raises(MethodError, match="layer 1"):
        MethodSession(model, method, budget=None).check_tap()


class _Unmoved(nn.Module):
    def __call__(self, rows: mx.array, offset: Any = 0) -> mx.array:
        return rows


def test_streaming_keeps_its_whole_budget() -> None:
    """U15: sinks and window together are the budget."""
    data = stream(0, 1, 2, 512, 8)
    for method in ("streaming_llm", "streaming_llm:paper"):
        for chunks in ([512], [256, 256], [100, *[1] * 412]):
            cache = new_cache(method, {"n_sink": 4}, 128)
            feed(cache, data, chunks)
            assert cache.size() == 128
            assert cache.evicted_rows == [384]
