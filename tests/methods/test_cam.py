"""CaM: what is folded where, when attention sees it, and nothing lost on the way."""

from __future__ import annotations

import numpy as np
import pytest

from velox_eval.caches.base import EvictionCache
from velox_eval.methods.policy import Layer

from .installed import installed_cache
from .matrix import CASES, Case
from .references_accumulating import Merging
from .streams import GROUP, Array, Stream, blocks, feed, kept, new_cache, split, stream
from .test_rules import references

MERGING = pytest.mark.parametrize("case", [c for c in CASES if c.method.startswith("cam")], ids=lambda case: case.id)


def held_values(cache: EvictionCache, sequence: int = 0) -> Array:
    """The values of the rows held [H, n, Dv], oldest first."""
    assert cache.slots is not None
    positions = np.array(cache.kept_positions())[sequence]
    order = np.argsort(np.where(positions < 0, 10**6, positions), axis=-1)[:, : cache.rows[sequence]]
    return np.take_along_axis(np.array(cache.slots.values)[sequence], order[..., None], axis=1)


@MERGING
@pytest.mark.parametrize(("chunk", "block"), [(13, 1), (13, None), (40, 7)])
def test_values_are_what_the_reference_has(case: Case, chunk: int, block: int | None) -> None:
    """And attention is handed them as they were before the step merged anything."""
    data = stream(5, batch=1, heads=3, tokens=80, dim=8, scale=1.0)
    cache = new_cache(case.method, case.params, case.budget, block)
    watched = [head for head in references(case, data, 0) if isinstance(head, Merging)]
    before = [np.zeros((0, 8), np.float32)] * 3
    changed, gated = False, case.params.get("merge_gate", True)
    for start, size in zip(range(0, 40, chunk), split(40, chunk), strict=True):
        ((_, handed),) = feed(cache, data, [size], start=start)
        for h, reference in enumerate(watched):
            new = data.values[0, h, start : start + size]
            np.testing.assert_allclose(handed[0, h], np.concatenate([before[h], new]), atol=1e-4)
            for begin, end, decoding in blocks([size], 0, block):
                reference.feed(start + begin, start + end, decoding)
        before = list(held_values(cache))
        np.testing.assert_allclose(before, [reference.held() for reference in watched], atol=1e-4)
    for token in range(40, 80):
        old = np.concatenate([held_values(cache), data.values[0, :, token : token + 1]], axis=1)
        ((_, handed),) = feed(cache, data, [1], start=token)
        for h, reference in enumerate(watched):
            reference.feed(token, token + 1, True)
            np.testing.assert_array_equal(np.sort(handed[0, h], axis=0), np.sort(old[h], axis=0))
        now = held_values(cache)
        np.testing.assert_allclose(now, [reference.held() for reference in watched], atol=1e-4)
        changed = changed or bool((now != np.take_along_axis(data.values[0], kept(cache)[0][..., None], axis=1)).any())
    # The newest row has gathered nothing: row by row the adapted rule's gate never opens.
    never = case.method == "cam" and (case.params.get("merge") == "drop" or (block == 1 and gated))
    assert changed != never


@pytest.mark.parametrize("settings", [{}, {"merge": "mean"}, {"merge_gate": False}])
def test_values_are_the_packages(settings: dict[str, object]) -> None:
    """Row by row, to the float16 that the package merges in."""
    case = Case("cam", {"n_sink": 2, **settings}, budget=12, installed="cam")
    data = stream(9, batch=1, heads=2, tokens=50, dim=16, scale=1.0)
    ours, theirs = new_cache(case.method, case.params, case.budget), installed_cache(case, 16)
    for cache in (ours, theirs):
        feed(cache, data, [1] * 50)
    np.testing.assert_allclose(held_values(ours), np.array(theirs._bh_values), atol=5e-3)


def test_without_merging_cam_is_h2o() -> None:
    data = stream(2, batch=2, heads=2, tokens=60, dim=8, scale=1.0)
    cam = new_cache("cam", {"merge": "drop", "n_sink": 2}, 9)
    h2o = new_cache("h2o", {"n_sink": 2, "grace": 0, "decay": 1.0}, 9)
    for cache in (cam, h2o):
        feed(cache, data, [25, 20, *[1] * 15])
    np.testing.assert_array_equal(kept(cam), kept(h2o))


def test_all_of_a_value_goes_to_the_rows_after_it() -> None:
    """Attended to more than those after it, a row is merged for sure; 2 of 4 rows share it in full."""
    data = stream(0, batch=1, heads=1, tokens=8, dim=4)
    keys, queries = np.zeros_like(data.keys), np.ones_like(data.queries)
    keys[:, :, 2] = 3  # position 2 is the first to go
    cache = new_cache("cam:paper", {"start_ratio": 0.34, "merge_rows": 2}, 6)
    feed(cache, Stream(keys, data.values, queries), [1] * 7)
    assert kept(cache)[0, 0].tolist() == [0, 1, 3, 4, 5, 6]
    values = data.values[0, 0]
    expected = np.stack([values[0], values[1], *(values[[3, 4]] + values[2] / 2), values[5], values[6]])
    np.testing.assert_allclose(held_values(cache)[0], expected, atol=1e-6)
    assert queries.shape[1] == GROUP


@MERGING
def test_a_batch_merges_as_its_sequences_do_alone(case: Case) -> None:
    """Lots are the sample's own; a sequence that evicts nothing merges nothing."""
    data = [stream(seed, 1, 2, 60, 8, 1.0) for seed in range(3)]
    lengths, budgets = [25, 4, 14], [case.budget, case.budget + 9, case.budget + 2]
    alone, members = [], []
    for i in range(3):
        for group in (alone, members):
            cache = new_cache(case.method, case.params, budgets[i], layer=Layer(seed=i + 7))
            feed(cache, data[i], [lengths[i]])
            cache.finish_prompt()
            group.append(cache)
        feed(alone[i], data[i], [1] * 20, start=lengths[i])
    batch = EvictionCache.stack(members)
    for at in range(20):
        parts = [data[i].part(lengths[i] + at, lengths[i] + at + 1) for i in range(3)]
        arrays = zip(*((part.keys, part.values, part.queries) for part in parts), strict=True)
        feed(batch, Stream(*(np.concatenate(array) for array in arrays)), [1])
    for i in range(3):
        np.testing.assert_allclose(held_values(batch, i), held_values(alone[i]), atol=1e-5)
