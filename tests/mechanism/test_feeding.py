"""What a study says a method kept is what the rule keeps: by NumPy, and by the installed package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.methods.installed import installed_cache, installed_positions
from tests.methods.matrix import EVICTING, Case
from tests.methods.references import Head
from tests.methods.streams import Stream, feed
from velox_eval.mechanism.arms import DOCUMENT_ARMS, Arm, family_arms
from velox_eval.mechanism.feeding import cuts_once, keep, policy_for
from velox_eval.mechanism.regimes import REGIMES, Streams, streams
from velox_eval.methods import METHODS

ARMS = {arm.label: arm for arm in DOCUMENT_ARMS}
BUDGET = 32


def data_of(length: int, seeds: int = 1, names: tuple[str, ...] = ("shift", "middle_block")) -> Streams:
    return streams([REGIMES[name] for name in names], range(seeds), length)


def as_stream(data: Streams) -> Stream:
    """For the caches and references of tests/methods: one head, float32 that float16 holds exactly."""
    keys, values, queries = (array[:, None].astype(np.float32) for array in (data.keys, data.values, data.queries))
    return Stream(keys, values, queries)


def case_of(arm: Arm, budget: int = BUDGET) -> Case:
    """The row of the test matrix of the arm's method, with the arm's settings."""
    method = arm.at(budget)
    first = next(case for case in EVICTING if case.method == arm.method)
    return replace(first, params=dict(method.params), budget=budget)


@pytest.mark.parametrize(
    "label",
    [
        "morphkv window=1",
        "morphkv window=8",
        "morphkv window=32",
        "kvzip probe=context",
        "kvzip probe=latest",
        "h2o cumulative",
        "h2o recent half",
        "tova",
    ],
)
def test_row_by_row_it_keeps_what_the_rule_written_in_numpy_keeps(label: str) -> None:
    data, arm = data_of(160), ARMS[label]
    case, whole = case_of(arm), as_stream(data)
    kept = keep(arm.at(BUDGET), data)
    for stream in range(len(data.seeds)):
        head = Head(whole.keys[stream, 0], whole.values[stream, 0], whole.queries[stream, :1])
        assert case.reference is not None
        reference = case.reference(head, case.params, BUDGET)
        for row in range(data.length):
            reference.feed(row, row + 1, decoding=True)
        np.testing.assert_array_equal(kept.positions[stream], reference.positions)


@pytest.mark.parametrize(
    "label",
    [
        "morphkv window=1",
        "morphkv window=8",
        "morphkv window=32",
        "kvzip probe=context",
        "kvzip probe=latest",
        "h2o cumulative",
    ],
)
def test_it_keeps_what_the_installed_package_keeps(label: str) -> None:
    """The arms of the documents on the documents' own stream, against the cache that the documents describe."""
    pytest.importorskip("veloxquant_mlx")
    data, arm = data_of(256, names=("shift",)), ARMS[label]
    case, whole = replace(case_of(arm), installed=arm.method), as_stream(data)
    theirs = installed_cache(case, data.keys.shape[-1])
    feed(theirs, whole, [1] * data.length)
    ours = keep(arm.at(BUDGET), data).positions
    np.testing.assert_array_equal(ours, installed_positions(case, theirs, whole)[:, 0])


@pytest.mark.parametrize("arm", family_arms(), ids=lambda arm: arm.label)
def test_every_method_runs_at_every_budget_and_holds_it(arm: Arm) -> None:
    data = data_of(140, seeds=2)
    for budget in (32, 64):
        kept = keep(arm.at(budget), data)
        assert kept.positions.shape == (4, budget)
        assert (np.diff(kept.positions, axis=1) > 0).all()
        taken = np.take_along_axis(data.keys, kept.positions[..., None], axis=1)
        np.testing.assert_array_equal(kept.keys, taken.astype(np.float32))


def test_every_method_and_variant_is_in_the_family_or_left_out_with_a_reason() -> None:
    from velox_eval.mechanism.arms import LEFT_OUT

    known = {arm.label for arm in family_arms()} | set(LEFT_OUT)
    for name, spec in METHODS.items():
        for variant in spec.variants:
            assert (name if variant == "adapted" else f"{name}:{variant}") in known


def test_protected_rows_are_the_newest_the_method_never_drops() -> None:
    data = data_of(140)
    expected: dict[str, Any] = {"morphkv window=8": 8, "h2o recent half": BUDGET // 2, "kvzip probe=context": 0}
    for label, count in expected.items():
        kept = keep(ARMS[label].at(BUDGET), data)
        assert kept.protected == count
        newest = np.arange(data.length - count, data.length)
        assert all(np.isin(newest, positions).all() for positions in kept.positions)


def test_every_seed_has_a_lot_of_its_own() -> None:
    data = data_of(128, seeds=3, names=("stable",))
    positions = keep(ARMS["random"].at(BUDGET), data).positions
    assert not (positions[0] == positions[1]).all()
    alone = keep(ARMS["random"].at(BUDGET), data.select(np.array([1])))
    np.testing.assert_array_equal(alone.positions[0], positions[1])


@pytest.mark.parametrize("label", ["morphkv window=8", "kvzip probe=context", "h2o cumulative"])
def test_blocks_of_one_in_a_chunk_are_rows_one_at_a_time(label: str) -> None:
    """The chunk of a prompt with evict_block=1 and rows as they are decoded: the same rule, two paths of the cache."""
    from velox_eval.caches.base import EvictionCache
    from velox_eval.mlx import mx

    data, method = data_of(140), ARMS[label].at(BUDGET)
    assert not cuts_once(policy_for(method, data))
    cache = EvictionCache(policy_for(method, data), BUDGET, evict_block=1)
    cache.update_and_fetch(mx.array(data.keys)[:, None], mx.array(data.values)[:, None])
    chunked = np.sort(np.array(cache.kept_positions())[:, 0], axis=-1)
    np.testing.assert_array_equal(chunked, keep(method, data).positions)
