"""One number of many: what is missing does not count, and nothing at all has no number."""

from __future__ import annotations

import pytest

from velox_eval.metrics.aggregate import largest, mean


@pytest.mark.parametrize(("values", "expected"), [([1.0, None, 2.0], 1.5), ([0.0], 0.0), ([None], None), ([], None)])
def test_mean_leaves_out_what_is_missing(values: list[float | None], expected: float | None) -> None:
    assert mean(values) == expected


@pytest.mark.parametrize(("values", "expected"), [([3, None, 7], 7), ([0, None], 0), ([None], None), ([], None)])
def test_largest_leaves_out_what_is_missing(values: list[int | None], expected: int | None) -> None:
    assert largest(values) == expected
