"""Accumulated attention: single tokens and causal blocks add up to the same sums, as a plain loop has them."""

from __future__ import annotations

import numpy as np
import pytest

from velox_eval.methods.accumulate import accumulated, accumulated_key_attention, query_attention
from velox_eval.methods.policy import Rows
from velox_eval.mlx import mx

from .references import attention
from .streams import GROUP, Array, Stream, split, stream

TOKENS = 23


def rows_after(data: Stream, start: int, end: int, slots: list[int]) -> Rows:
    """The rows a cache holds after tokens start to end came in, row p lying in slot `slots[p]`."""
    width = max(slots[:end]) + 1
    keys = np.full((*data.keys.shape[:2], width, data.keys.shape[3]), 7, np.float32)
    positions = np.full(keys.shape[:3], -1, np.int32)
    for position, slot in enumerate(slots[:end]):
        keys[:, :, slot] = data.keys[:, :, position]
        positions[:, :, slot] = position
    new = data.part(start, end)
    return Rows(
        layers=((mx.array(keys), mx.array(keys)),),
        positions=mx.array(positions),
        newest=end - 1,
        new_keys=mx.array(new.keys),
        new_slots=None,
        any_free=width > end,
        queries=mx.array(new.queries),
        scale=data.keys.shape[-1] ** -0.5,
    )


def by_position(scores: mx.array, slots: list[int]) -> Array:
    return np.array(scores)[:, :, slots]


def loop(data: Stream, decay: float) -> Array:
    """Row by row, one head at a time: what is there fades, then the new key pays the rows before it."""
    result = np.zeros(data.keys.shape[:3], np.float32)
    for b, h in np.ndindex(*data.keys.shape[:2]):
        keys, scores = data.keys[b, h], result[b, h]
        scores[0] = 1
        for token in range(1, keys.shape[0]):
            scores[:token] = scores[:token] * decay + attention(keys[token : token + 1], keys[:token])[0]
    return result


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("chunk", [1, 4, TOKENS])
def test_key_attention_adds_up_to_what_a_loop_has(decay: float, chunk: int) -> None:
    data = stream(1, batch=2, heads=2, tokens=TOKENS, dim=8, scale=1.0)
    slots, scores, start = list(range(TOKENS)), None, 0
    for size in split(TOKENS, chunk):
        rows = rows_after(data, start, start + size, slots)
        if scores is not None:  # the entries of new rows are stale
            scores = mx.concatenate([scores, mx.full((2, 2, size), 99.0)], axis=-1)
        scores = accumulated_key_attention(rows, scores, decay)
        start += size
    assert scores is not None
    np.testing.assert_allclose(np.array(scores), loop(data, decay), atol=2e-6)


def test_slot_order_and_free_slots_mean_nothing() -> None:
    data = stream(2, batch=1, heads=2, tokens=TOKENS, dim=8, scale=1.0)
    slots = [int(slot) for slot in np.random.default_rng(0).permutation(TOKENS + 3)[:TOKENS]]
    width, scores = TOKENS + 3, mx.full((1, 2, TOKENS + 3), 99.0)
    for token in range(TOKENS):
        rows = rows_after(data, token, token + 1, slots)
        part = accumulated_key_attention(rows, scores[..., : rows.positions.shape[-1]])
        scores = mx.concatenate([part, mx.full((1, 2, width - part.shape[-1]), 99.0)], axis=-1)
    np.testing.assert_allclose(by_position(scores, slots), loop(data, 1.0), atol=2e-6)


def test_query_attention_is_causal_and_by_query_head() -> None:
    data = stream(3, batch=2, heads=3, tokens=TOKENS, dim=8)
    weights = np.array(query_attention(rows_after(data, 15, TOKENS, list(range(TOKENS)))))
    assert weights.shape == (2, 3, GROUP, TOKENS - 15, TOKENS)
    for b, h, g, j in np.ndindex(*weights.shape[:4]):
        query = data.queries[b, h * GROUP + g, 15 + j : 16 + j]
        np.testing.assert_allclose(
            weights[b, h, g, j, : 16 + j], attention(query, data.keys[b, h, : 16 + j])[0], atol=1e-6
        )
        assert (weights[b, h, g, j, 16 + j :] == 0).all()


def test_every_query_weighs_one() -> None:
    """Uniform attention of six tokens over themselves and those before: 2.45, 1.45, 0.95, 0.617, 0.367, 0.167."""
    data = Stream(np.zeros((1, 1, 6, 4)), np.zeros((1, 1, 6, 4)), np.zeros((1, GROUP, 6, 4)))
    rows = rows_after(data, 0, 6, list(range(6)))
    scores = accumulated(rows, None, query_attention(rows).mean(axis=2))
    np.testing.assert_allclose(np.array(scores)[0, 0], [2.45, 1.45, 0.95, 0.617, 0.367, 0.167], atol=5e-4)
