"""The control: chance alone decides, and the same chance every time."""

from __future__ import annotations

import itertools

import numpy as np

from velox_eval.methods.policy import Layer

from .streams import Array, feed, kept, new_cache, stream

DATA = stream(0, 1, 2, 400, 4)


def kept_by(
    seed: int = 0, layer: Layer | None = None, chunks: tuple[int, ...] = (400,), block: int | None = None
) -> Array:
    cache = new_cache("random", {"seed": seed}, 100, block, layer)
    feed(cache, DATA, chunks)
    return kept(cache)[0]


def test_another_seed_sample_layer_or_head_is_another_lot() -> None:
    lots = [
        *kept_by(),
        *kept_by(seed=1),
        *kept_by(layer=Layer(seed=1)),
        *kept_by(layer=Layer(index=1, count=2)),
    ]
    for one, other in itertools.combinations(lots, 2):
        # 100 of 400 in each: 25 in common by chance, with a standard deviation of 3.8.
        assert abs(len(np.intersect1d(one, other)) - 25) < 16


def test_the_same_rows_however_the_tokens_come() -> None:
    """Chance is drawn once a row, so that the best 100 of all rows stay: in one block, in blocks or one by one."""
    at_once = kept_by()
    for chunks, block in (((150, 150, 100), None), ((400,), 1), ((200, *[1] * 200), None)):
        np.testing.assert_array_equal(kept_by(chunks=chunks, block=block), at_once)


def test_every_position_has_the_same_chance() -> None:
    rows = np.concatenate([kept_by(seed=seed).ravel() for seed in range(200)])
    counts = np.histogram(rows, bins=8, range=(0, 400))[0] / len(rows)
    np.testing.assert_allclose(counts, 1 / 8, atol=0.01)
