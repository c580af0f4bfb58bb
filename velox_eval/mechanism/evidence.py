"""Paired tests: is one side above another on the same seeds or texts, with Holm over every test of a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from velox_eval.compare.stats import Pairs, difference_range, holm, needed_pairs, swap_p
from velox_eval.mechanism.regimes import Array
from velox_eval.records.score import Score

ALPHA = 0.05
Key = TypeVar("Key")


@dataclass(frozen=True)
class Tested:
    """What the pairs say of "first above second". All None but p where no pair has both sides.

    `holds`: higher, and Holm's p below ALPHA; None: so few pairs that no test of this family could ever say so.
    """

    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None
    p: float
    adjusted: float
    holds: bool | None


def weigh(sides: Mapping[Key, tuple[Array, Array]]) -> dict[Key, Tested]:
    """Returns every pair of arrays [pairs] tested: permutations within pairs, two-sided, Holm over all together.

    A pair with a nan on either side is left out.
    """
    complete = {key: _complete(first, second) for key, (first, second) in sides.items()}
    pairs = {key: _pairs(first, second) for key, (first, second) in complete.items()}
    raw = {key: swap_p(one) for key, one in pairs.items()}
    plain = [1.0 if p is None else p for p in raw.values()]
    tested = {}
    for key, p, adjusted in zip(sides, plain, holm(plain), strict=True):
        first, second = complete[key]
        enough = len(first) >= needed_pairs(len(sides), ALPHA)
        difference = pairs[key].difference
        interval = difference_range(pairs[key])
        above = adjusted < ALPHA and (difference or 0.0) > 0
        tested[key] = Tested(
            float(first.mean()) if len(first) else None,
            float(second.mean()) if len(second) else None,
            difference,
            interval.low,
            interval.high,
            p,
            adjusted,
            above if enough else None,
        )
    return tested


def _complete(first: Array, second: Array) -> tuple[Array, Array]:
    both = ~np.isnan(first) & ~np.isnan(second)
    return first[both], second[both]


def _pairs(first: Array, second: Array) -> Pairs:
    sides = [tuple(Score(num=float(value)) for value in side) for side in (first, second)]
    return Pairs(sides[0], sides[1], ("pair",) * len(first))
