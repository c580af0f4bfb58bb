"""ChunkKV: whole chunks as the package has them, H2O at chunks of one row, and choices shared by layers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox_eval.errors import MethodError
from velox_eval.methods.policy import Layer

from .installed import installed_cache, installed_positions
from .matrix import Case
from .streams import feed, kept, new_cache, stream


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.3, 1.0]),
    sinks=st.integers(0, 3),
    size=st.sampled_from([2, 3, 5, 8]),
    score=st.sampled_from(["attn_mass", "key_norm"]),
)
def test_rows_that_are_not_leaving_are_the_packages(seed: int, scale: float, sinks: int, size: int, score: str) -> None:
    """One head, so that the package does not cut it to another's length; at every step."""
    case = Case("chunkkv", {"n_sink": sinks, "chunk_size": size, "score": score}, budget=12, installed="chunkkv")
    data = stream(seed, batch=1, heads=1, tokens=50, dim=16, scale=scale)
    ours, theirs = new_cache(case.method, case.params, case.budget), installed_cache(case, 16)
    for token in range(50):
        for cache in (ours, theirs):
            feed(cache, data, [1], start=token)
        mark = np.array(ours.policy_state["mark"])[0, 0]
        positions = np.array(ours.kept_positions())[0, 0, : len(mark)]
        staying = np.sort(positions[(positions >= 0) & (mark >= 0)])
        np.testing.assert_array_equal(staying, installed_positions(case, theirs, data)[0, 0])
        assert ours.rows == [min(token + 1, 12)]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**20), chunks=st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_chunks_of_one_row_are_h2o(seed: int, chunks: list[int]) -> None:
    data = stream(seed, batch=2, heads=2, tokens=sum(chunks) + 15, dim=8, scale=1.0)
    chunkkv = new_cache("chunkkv", {"chunk_size": 1, "n_sink": 2}, 9)
    h2o = new_cache("h2o", {"n_sink": 2, "grace": 0, "decay": 1.0}, 9)
    for cache in (chunkkv, h2o):
        feed(cache, data, [*chunks, *[1] * 15])
    np.testing.assert_array_equal(kept(chunkkv), kept(h2o))


def test_layers_that_share_a_choice_keep_the_same_positions() -> None:
    shared: dict[str, object] = {}
    rows = []
    for index in range(4):
        layer = Layer(index, 4, shared=shared)
        cache = new_cache("chunkkv:paper", {"window": 4, "chunk_size": 5, "reuse_layers": 2}, 20, layer=layer)
        feed(cache, stream(index, batch=1, heads=2, tokens=60, dim=8), [25, 35])
        cache.finish_prompt()
        rows.append(kept(cache))
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[2], rows[3])
    assert (rows[0] != rows[2]).any()
    assert (rows[0][:, 0] == rows[0][:, 1]).all()  # and so do all heads


def test_a_layer_that_shares_a_choice_waits_for_it() -> None:
    cache = new_cache("chunkkv:paper", {"window": 4}, 20, layer=Layer(1, 2))
    feed(cache, stream(0, batch=1, heads=2, tokens=60, dim=8), [60])
    with pytest.raises(MethodError, match="layer 1 waits for the chunks that layer 0 chooses"):
        cache.finish_prompt()
