"""Measures against hand counts and a plain loop."""

from __future__ import annotations

import numpy as np

from velox_eval.mechanism.feeding import Kept
from velox_eval.mechanism.measures import MEASURES, attention_output, measured
from velox_eval.mechanism.regimes import DIM, Streams


def by_hand(kept: list[int], protected: int) -> dict[str, float]:
    """One stream of ten rows: 4 to 9 are the region, 5, 6 and 9 are relevant."""
    rng = np.random.default_rng(0)
    keys, values = (rng.normal(size=(1, 10, DIM)).astype(np.float16) for _ in range(2))
    relevant = np.isin(np.arange(10), [5, 6, 9])[None]
    region = (np.arange(10) >= 4)[None]
    probes = rng.normal(size=(1, 3, DIM)).astype(np.float32)
    data = Streams((0,), keys, values, keys, probes, relevant, region)
    positions = np.array([kept])
    rows = [np.take_along_axis(a, positions[..., None], axis=1).astype(np.float32) for a in (keys, values)]
    return {name: float(value[0]) for name, value in measured(Kept(protected, positions, *rows), data, 5).items()}


def test_counts() -> None:
    found = by_hand([0, 1, 5, 7, 9], protected=1)
    assert found.keys() == MEASURES.keys()
    assert found["retention"] == 2 / 5  # 5 and 9
    assert found["held"] == 2 / 3  # of 5, 6, 9: all would fit beside the two sinks
    assert found["unprotected"] == 1 / 2  # 5 and 7 were free to go
    assert found["in_region"] == 3 / 5
    assert found["selectivity"] == 1 / 2
    assert found["chance"] == 2 / 5  # 5 and 6 of 4 to 8
    assert found["first_rows"] == 2 / 5  # 0 and 1 of 0 to 4
    assert 0 < found["perturbation"] < 2


def test_nothing_free_is_no_number_and_everything_kept_is_no_perturbation() -> None:
    assert np.isnan(by_hand([0, 1, 7, 8, 9], protected=3)["unprotected"])
    assert abs(by_hand(list(range(10)), protected=0)["perturbation"]) < 1e-6


def test_attention_output_is_softmax_attention() -> None:
    rng = np.random.default_rng(1)
    queries, keys, values = (rng.normal(size=(2, n, DIM)) for n in (3, 7, 7))
    out = attention_output(queries, keys, values)
    for s in range(2):
        for p in range(3):
            logits = [float(np.dot(queries[s, p], key)) / DIM**0.5 for key in keys[s]]
            weights = np.exp(logits) / np.sum(np.exp(logits))
            np.testing.assert_allclose(
                out[s, p], sum(w * v for w, v in zip(weights, values[s], strict=True)), atol=1e-12
            )
