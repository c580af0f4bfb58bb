"""Properties of every method on every shape: capacity, protection, determinism, what attention is handed, bytes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox_eval.caches.base import EvictionCache
from velox_eval.errors import ConfigError
from velox_eval.methods import METHODS, resolve
from velox_eval.mlx import mx

from .matrix import CASES, EVICTING, Case
from .streams import feed, kept, new_cache, stream

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**20),
        "batch": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "dim": st.sampled_from([1, 4, 8, 16]),
        "chunks": st.lists(st.sampled_from([1, 1, 1, 2, 5, 9]), min_size=1, max_size=14),
    }
)


def test_every_method_has_a_row() -> None:
    assert {case.method for case in CASES} == set(METHODS)


@pytest.mark.parametrize("case", EVICTING, ids=lambda case: case.id)
@settings(max_examples=15, deadline=None)
@given(shape=shapes, extra=st.integers(0, 6), block=st.sampled_from([None, 1, 3]))
def test_holds_its_budget_no_more_and_no_less(case: Case, shape: dict, extra: int, block: int | None) -> None:  # type: ignore[type-arg]
    """After every step min(budget, tokens seen) rows; sinks and recent rows survive; new rows are handed over last."""
    chunks, budget = shape["chunks"], case.smallest + extra
    keys, values = stream(shape["seed"], shape["batch"], shape["heads"], sum(chunks), shape["dim"])
    cache = new_cache(case.method, case.params, budget, block)
    fed = held = peak = 0
    for chunk in chunks:
        ((got_keys, _),) = feed(cache, keys[:, :, fed : fed + chunk], values[:, :, fed : fed + chunk], [chunk])
        assert got_keys.shape[2] == held + chunk
        if chunk > 1:
            np.testing.assert_array_equal(got_keys[:, :, -chunk:], keys[:, :, fed : fed + chunk])
        peak = max(peak, held + chunk)
        fed += chunk
        held = min(budget, fed)
        positions = kept(cache)
        assert positions.shape[-1] == held == cache.size()
        assert (np.diff(positions, axis=-1) > 0).all()
        sinks = min(case.sinks, fed)
        assert (positions[..., :sinks] == np.arange(sinks)).all()
        recent = min(case.params.get("window", 0), fed)
        if recent:
            assert (positions[..., -recent:] == np.arange(fed - recent, fed)).all()
        assert cache.offset == fed if shape["batch"] == 1 else cache.offset.tolist() == [fed] * shape["batch"]
    row = shape["heads"] * shape["dim"] * 2 * 4
    assert cache.kept_bytes == held * row * shape["batch"]
    assert cache.peak_rows == [peak] * shape["batch"]
    assert cache.full_seq_bytes == fed * row * shape["batch"]
    assert cache.evicted_rows == [fed - held] * shape["batch"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rows_stay_together(case: Case) -> None:
    """Each key still lies with its own value and position, and a deep copy goes its own way."""
    keys, _ = stream(3, 2, 2, 40, 8)
    values = keys * 2 + 1
    cache = new_cache(case.method, case.params, case.budget if case.method != "full" else None)
    feed(cache, keys, values, [20] + [1] * 12)
    twin = copy.deepcopy(cache)
    feed(cache, keys[:, :, 32:], values[:, :, 32:], [1] * 8)
    assert twin.tokens_seen == [32, 32]
    feed(twin, keys[:, :, 32:], values[:, :, 32:], [1] * 8)
    np.testing.assert_array_equal(kept(cache), kept(twin))
    assert cache.slots is not None
    positions = np.array(cache.kept_positions())
    for sequence, head, slot in zip(*np.nonzero(positions >= 0), strict=True):
        key = np.array(cache.slots.keys)[sequence, head, slot]
        np.testing.assert_array_equal(key, keys[sequence, head, positions[sequence, head, slot]])
        np.testing.assert_array_equal(np.array(cache.slots.values)[sequence, head, slot], key * 2 + 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_budget_never_reached_changes_nothing(case: Case) -> None:
    keys, values = stream(5, 1, 2, 30, 8)
    cache = new_cache(case.method, case.params, 30 if case.method != "full" else None)
    seen = feed(cache, keys, values, [11] + [1] * 19)
    np.testing.assert_array_equal(seen[-1][0], keys)
    assert cache.evicted_rows == [0]
    assert cache.compression_ratio == 1.0


@pytest.mark.parametrize("case", EVICTING, ids=lambda case: case.id)
def test_sequences_stacked_keep_what_they_keep_alone(case: Case) -> None:
    """Different lengths, budgets and fill states decode together; leaving and joining changes nothing."""
    lengths, budgets = [25, 4, 14], [case.budget, case.budget + 5, case.budget + 2]
    streams = [stream(seed, 1, 2, 60, 8) for seed in range(3)]
    alone, members = [], []
    for (keys, values), length, budget in zip(streams, lengths, budgets, strict=True):
        for group in (alone, members):
            cache = new_cache(case.method, case.params, budget)
            feed(cache, keys, values, [length])
            group.append(cache)
        feed(alone[-1], keys[:, :, length:], values[:, :, length:], [1] * 30)
    batch = EvictionCache.stack(members)
    order = [0, 1, 2]

    def step(at: int) -> None:
        parts = [[streams[i][part][:, :, lengths[i] + at] for i in order] for part in (0, 1)]
        keys, values = (mx.array(np.concatenate(part)[:, :, None]) for part in parts)
        got, _ = batch.update_and_fetch(keys, values)
        mask = batch.mask_for(1, got.shape[2], None)
        rows = np.array(mask)[:, 0, 0].sum(axis=-1).tolist() if mask is not None else [got.shape[2]] * len(order)
        expected = [min(budgets[i], lengths[i] + at) + 1 for i in order]
        assert rows == expected

    for at in range(12):
        step(at)
    batch.select([2, 0])
    order = [2, 0]
    for at in range(12, 30):
        step(at)
    positions = np.array(batch.kept_positions())
    for place, i in enumerate(order):
        held = np.sort(np.where(positions[place] < 0, 10**6, positions[place]), axis=-1)
        np.testing.assert_array_equal(held[:, : batch.rows[place]], kept(alone[i])[0])


def test_padding_slots_never_count() -> None:
    """A policy that sees free slots gives them no weight: kvzip's probe and softmax leave them out."""
    keys, values = stream(1, 2, 2, 20, 8)
    short = new_cache("kvzip", {"n_sink": 1}, 15)
    long = new_cache("kvzip", {"n_sink": 1}, 8)
    feed(short, keys[:1], values[:1], [3])
    feed(long, keys[1:], values[1:], [12])
    before = kept(long)
    batch = EvictionCache.stack([short, long])
    feed(batch, keys[:, :, 12:], values[:, :, 12:], [1] * 8)
    feed(long, keys[1:, :, 12:], values[1:, :, 12:], [1] * 8)
    assert (before != kept(long)).any()
    positions = np.array(batch.kept_positions())[1]
    np.testing.assert_array_equal(np.sort(np.where(positions < 0, 99, positions), axis=-1)[:, :8], kept(long)[0])


@pytest.mark.parametrize("case", EVICTING, ids=lambda case: case.id)
def test_impossible_budgets_are_refused_when_built(case: Case) -> None:
    assert resolve(case.method, case.params, budget=case.smallest).budget == case.smallest
    for bad in range(-1, case.smallest):
        with pytest.raises(ConfigError, match=str(bad)):
            resolve(case.method, case.params, budget=bad)
    least = resolve(case.method, case.params, keep=1e-9)
    assert least.budget_for(1000) == case.smallest


@pytest.mark.parametrize(
    ("name", "params", "budget", "keep", "expected"),
    [
        ("morfkv", {}, None, None, "did you mean 'morphkv'"),
        ("morphkv:papre", {}, None, None, "papre"),
        ("morphkv", {"windw": 3}, None, None, "did you mean 'window'"),
        ("morphkv", {"window": 0}, None, None, "window=0"),
        ("morphkv", {"window": "eight"}, None, None, "eight"),
        ("morphkv", {"window": 2.5}, None, None, "2.5"),
        ("morphkv", {"window": 500, "n_sink": 12}, 512, None, "window=500"),
        ("morphkv", {"n_sink": -1}, None, None, "n_sink=-1"),
        ("kvzip", {"probe": "future"}, None, None, "context, latest"),
        ("tova", {"n_sink": 8}, 8, None, "n_sink=8"),
        ("tova", {}, 100, 0.5, "both"),
        ("tova", {}, None, 0.0, "keep=0"),
        ("tova", {}, None, 1.5, "keep=1.5"),
    ],
)
def test_bad_settings_name_the_value(name: str, params: dict, budget: int, keep: float, expected: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=expected):
        resolve(name, params, budget=budget, keep=keep)


def test_keep_is_a_share_of_the_sample_and_budget_is_rows() -> None:
    """One budget, either way to say it (a ratio of the tokens, or a number of rows)."""
    ratio = resolve("sliding_window", keep=0.5)
    assert [ratio.budget_for(total) for total in (40, 100, 1)] == [20, 50, 1]
    assert resolve("sliding_window", keep=0.7).budget_for(10) == 7
    assert resolve("sliding_window", budget=16).budget_for(40) == 16
    assert resolve("full").budget_for(40) is None
