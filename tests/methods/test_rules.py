"""Every method keeps the rows its rule says: by the NumPy reference, and by the installed package."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox_eval.methods import resolve

from .installed import BY_CALL, BY_CHUNK, installed_cache, installed_positions
from .matrix import EVICTING, Case
from .references import Head, Reference
from .streams import GROUP, Stream, blocks, end_prompt, feed, kept, new_cache, split, stream


def references(case: Case, data: Stream, sequence: int) -> list[Reference]:
    """One reference per KV head of a sequence, with the layer's share of the budget."""
    assert case.reference is not None
    method = resolve(case.method, case.params, budget=case.budget)
    share = method.variant.layer_budgets(case.budget, method.params, case.layer.count)[case.layer.index]
    assert share is not None
    keys, values, queries = data.keys[sequence], data.values[sequence], data.queries[sequence]
    grouped = queries.reshape(-1, GROUP, *queries.shape[1:])
    made = [
        case.reference(Head(keys[h], values[h], grouped[h], h, (keys, grouped)), case.params, share)
        for h in range(keys.shape[0])
    ]
    for reference in made:
        reference.start = case.budget
    return made


@pytest.mark.parametrize("case", EVICTING, ids=lambda case: case.id)
@pytest.mark.parametrize(
    ("prompt", "chunk", "decoded", "block"),
    [(10, 5, 40, None), (41, 13, 9, None), (40, 40, 10, 1), (38, 17, 12, 5), (12, 12, 30, None)],
)
def test_keeps_what_the_reference_keeps(case: Case, prompt: int, chunk: int, decoded: int, block: int | None) -> None:
    data = stream(seed=chunk, batch=2, heads=3, tokens=prompt + decoded, dim=8)
    chunks = split(prompt, chunk)
    cache = new_cache(case.method, case.params, case.budget, block, case.layer)
    feed(cache, data, chunks)
    end_prompt(cache, data)
    feed(cache, data, [1] * decoded, start=prompt)
    for sequence in range(2):
        expected = []
        for reference in references(case, data, sequence):
            for start, end, decoding in blocks(chunks, decoded, block):
                if start == prompt:
                    reference.finish_prompt()
                reference.feed(start, end, decoding)
            expected.append(reference.positions)
        np.testing.assert_array_equal(kept(cache)[sequence], np.stack(expected))


INSTALLED = pytest.mark.parametrize("case", [c for c in EVICTING if c.installed], ids=lambda case: case.id)


@INSTALLED
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**20), scale=st.sampled_from([0.3, 1.0]), prompt=st.integers(1, 40))
def test_keeps_what_the_installed_package_keeps(case: Case, seed: int, scale: float, prompt: int) -> None:
    """Prefill row by row, which is the package's rule (but for BY_CHUNK), then decode."""
    batch = 1 if case.draws else 2
    data = stream(seed, batch, heads=2, tokens=60, dim=16, scale=scale)
    block = None if case.installed in BY_CHUNK else 1
    ours = new_cache(case.method, case.params, case.budget, block, case.layer)
    theirs = installed_cache(case, 16)
    feed(ours, data, [prompt] + [1] * (60 - prompt))
    feed(theirs, data, [1] * 60 if case.installed in BY_CALL else [prompt] + [1] * (60 - prompt))
    np.testing.assert_array_equal(kept(ours), installed_positions(case, theirs, data))


@INSTALLED
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**20), scale=st.sampled_from([3.0, 8.0]))
def test_differs_from_the_installed_package_only_in_rounding(case: Case, seed: int, scale: float) -> None:
    """Sharp attention: weights saturate at 1 or vanish, and rows tie.

    The one difference allowed: two rows whose worth is within 1e-6, because our slots add a softmax up in another
    order. Equal worths (zeros) must fall the same way: oldest first.
    """
    data = stream(seed, batch=1, heads=3, tokens=50, dim=16, scale=scale)
    ours = new_cache(case.method, case.params, case.budget, layer=case.layer)
    theirs = installed_cache(case, 16)
    watched = dict(enumerate(references(case, data, 0)))
    for token in range(50):
        for cache in (ours, theirs):
            feed(cache, data, [1], start=token)
        mine, other = kept(ours)[0], installed_positions(case, theirs, data)[0]
        for head, reference in list(watched.items()):
            reference.positions = np.append(reference.positions, token)
            reference.observe(token, token + 1)
            if not (mine[head] == other[head]).all():
                rows, worth = reference.positions, reference.worth()
                gone = [worth[~np.isin(rows, left)][0] for left in (mine[head], other[head])]
                assert abs(gone[0] - gone[1]) < 1e-6
                del watched[head]
            reference.positions = mine[head]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20), scale=st.sampled_from([0.5, 2.0, 8.0]), sinks=st.integers(0, 4))
def test_kvzip_with_the_latest_probe_is_tova(seed: int, scale: float, sinks: int) -> None:
    data = stream(seed, 1, 2, 40, 8, scale)
    chunks = [11, 11] + [1] * 18
    caches = [
        new_cache("kvzip", {"probe": "latest", "n_sink": sinks}, 9),
        new_cache("tova", {"n_sink": sinks}, 9),
    ]
    for cache in caches:
        feed(cache, data, chunks)
    np.testing.assert_array_equal(kept(caches[0]), kept(caches[1]))


@pytest.mark.parametrize(("recent_ratio", "expected"), [(0.5, [0, 1, 4, 5]), (0.0, [0, 1, 2, 3])])
def test_h2o_keeps_recent_rows_that_had_no_time_to_gather(recent_ratio: float, expected: list[int]) -> None:
    """Uniform attention over six tokens: 2.45, 1.45, 0.95, 0.617, 0.367, 0.167 gathered."""
    zeros = np.zeros((1, 1, 6, 4), np.float32)
    cache = new_cache("h2o:paper", {"recent_ratio": recent_ratio}, 4)
    feed(cache, Stream(zeros, zeros, np.zeros((1, GROUP, 6, 4), np.float32)), [6])
    gathered = np.sort(np.array(cache.policy_state["mass"])[0, 0])[::-1] / GROUP
    np.testing.assert_allclose(gathered, np.array([2.45, 1.45, 0.95, 0.617, 0.367, 0.167])[expected], atol=5e-4)
    assert kept(cache)[0, 0].tolist() == expected


def test_morphkv_window_one_is_tova_except_where_the_newest_row_is_the_lowest() -> None:
    """The stated exception: TOVA evicts the newest row, MorphKV protects it."""
    keys = np.zeros((1, 1, 7, 4), np.float32)
    keys[0, 0, :, 0] = [3, 3.1, 3.2, 3.3, 3.4, 3.5, 0.1]
    morphkv = new_cache("morphkv", {"window": 1, "n_sink": 1}, 4)
    tova = new_cache("tova", {"n_sink": 1}, 4)
    for cache in (morphkv, tova):
        feed(cache, Stream(keys, keys, keys), [1] * 7)
    assert kept(morphkv)[0, 0].tolist() == [0, 4, 5, 6]
    assert kept(tova)[0, 0].tolist() == [0, 3, 4, 5]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_morphkv_window_one_is_tova_where_the_newest_row_attends_to_itself_most(seed: int) -> None:
    data = stream(seed, 1, 2, 40, 8)
    # Equal norms: no key attends to another more than to itself, so the newest row is never the lowest.
    keys = data.keys / np.linalg.norm(data.keys, axis=-1, keepdims=True) * 4
    caches = [new_cache("morphkv", {"window": 1, "n_sink": 2}, 9), new_cache("tova", {"n_sink": 2}, 9)]
    for cache in caches:
        feed(cache, Stream(keys, data.values, data.queries), [1] * 40)
    np.testing.assert_array_equal(kept(caches[0]), kept(caches[1]))
