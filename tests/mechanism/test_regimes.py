"""The constructions are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from velox_eval.mechanism.measures import base_rates
from velox_eval.mechanism.regimes import (
    BLOCK,
    EARLY_SHARE,
    EXTRA,
    NOISE,
    REACH,
    REGIMES,
    SINKS,
    STRONG,
    WEAK,
    streams,
)

LENGTHS = (256, 512)


def one(name: str, length: int = 512, seeds: int = 8):
    return streams([REGIMES[name]], range(seeds), length)


def test_shift_is_the_documents_construction() -> None:
    data = one("shift")
    keys, late = data.keys.astype(np.float64), np.arange(512) >= int(EARLY_SHARE * 512)
    early_noise = np.delete(keys[:, ~late], 0, axis=2)
    np.testing.assert_allclose(keys[:, ~late, 0].mean(), STRONG, atol=0.02)
    np.testing.assert_allclose([early_noise.std(), early_noise.mean()], [NOISE, 0.0], atol=0.01)
    np.testing.assert_allclose(keys[:, late, 1].mean(), WEAK, atol=0.15)
    np.testing.assert_allclose(keys[:, late, 2:].std(), (NOISE**2 + EXTRA**2) ** 0.5, atol=0.02)
    assert data.keys.dtype == data.values.dtype == np.float16
    assert (data.region == late).all()


def test_the_late_block_has_the_base_rate_that_was_measured() -> None:
    """0.63: a normal with mean 1.2 and deviation sqrt(0.3^2 + 1.5^2) is above 0.6 in 65% of draws."""
    rate = np.mean([base_rates(one("shift", length, 24))["region"].mean() for length in LENGTHS])
    assert abs(rate - 0.65) < 0.02


@pytest.mark.parametrize("length", LENGTHS)
def test_in_separating_regimes_everything_relevant_is_older_than_any_window(length: int) -> None:
    for name, regime in REGIMES.items():
        if regime.separates:
            data = one(name, length, 2)
            places = np.flatnonzero(data.relevant[0])
            assert places.min() >= SINKS
            assert places.max() < length - REACH, name
            assert len(places) >= BLOCK, name


def test_pointing_rows_attend_to_the_block_more_than_to_one_another() -> None:
    data = one("early_block")
    keys = data.keys.astype(np.float32)
    block, pointing = keys[:, SINKS : SINKS + BLOCK], keys[:, SINKS + BLOCK :]
    to_block = (pointing @ block.swapaxes(1, 2)).mean()
    among = pointing @ pointing.swapaxes(1, 2)
    others = among[:, ~np.eye(pointing.shape[1], dtype=bool)].mean()
    assert to_block > 2 * others


def test_regimes_share_their_draws_and_seeds_do_not() -> None:
    data = streams([REGIMES["shift"], REGIMES["shift_no_axis"]], range(3), 256)
    assert data.seeds == (0, 1, 2, 0, 1, 2)
    np.testing.assert_array_equal(data.values[:3], data.values[3:])
    np.testing.assert_array_equal(data.keys[:3, :, 2:], data.keys[3:, :, 2:])
    assert not (data.values[0] == data.values[1]).all()


def test_the_probes_point_along_the_relevant_axis() -> None:
    for name, axis in (("shift", 1), ("stable", 0), ("middle_block", 1)):
        probes = one(name).probes
        assert (probes.argmax(axis=-1) == axis).all()
        np.testing.assert_allclose(np.linalg.norm(probes, axis=-1), 1.0, atol=0.2)
