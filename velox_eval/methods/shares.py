"""Sharing a budget out over layers in whole rows, so that the mean is the budget exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence


def whole_shares(wanted: Sequence[float], budget: int, least: int) -> list[int]:
    """Returns a number of rows for each layer, close to `wanted`, each at least `least`, with mean `budget`.

    What raising a layer to `least` costs is taken from the others, in proportion to what they have above it. Of what
    rounding down leaves, the largest fractions get a row each, of equal ones the first: falling stays falling.
    """
    total = budget * len(wanted)
    raised = [max(value, float(least)) for value in wanted]
    above = sum(raised) - least * len(raised)
    if above > 0:
        part = (total - least * len(raised)) / above
        raised = [least + (value - least) * part for value in raised]
    shares = [math.floor(value) for value in raised]
    by_fraction = sorted(range(len(raised)), key=lambda layer: (shares[layer] - raised[layer], layer))
    for layer in by_fraction[: total - sum(shares)]:
        shares[layer] += 1
    return shares
