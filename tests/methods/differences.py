"""The closed list of what our adapted rules keep otherwise than the installed package, VeloxQuant-MLX 0.94.15.

Each entry has the stream that shows it and the reason why ours is kept; test_differences.py shows it. Beside these,
two rows whose worth is within rounding may fall either way (test_rules.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from velox_eval.methods.policy import Layer

from .matrix import Case
from .streams import Stream, stream


@dataclass(frozen=True)
class Difference:
    """One difference, and a stream on which ours and the package's kept rows differ."""

    what: str
    reason: str
    case: Case
    data: Stream
    layer: Layer = field(default_factory=Layer)

    @property
    def id(self) -> str:
        return f"{self.case.method}: {self.what}"


def twice(data: Stream) -> Stream:
    """The same sequence as two of a batch."""
    return Stream(*(np.concatenate([array, array]) for array in (data.keys, data.values, data.queries)))


KEYFORMER = Case("keyformer", {"n_sink": 1}, budget=12, installed="keyformer")

DIFFERENCES = (
    Difference(
        what="noise depends on the sample, not on its place in the batch",
        reason="a sample's answer must not change with the batch it is decoded in",
        case=KEYFORMER,
        data=twice(stream(0, batch=1, heads=2, tokens=60, dim=16, scale=1.0)),
    ),
    Difference(
        what="every layer draws its own noise",
        reason="the same noise in every layer drops the same positions everywhere at once",
        case=KEYFORMER,
        data=stream(0, batch=1, heads=2, tokens=60, dim=16, scale=1.0),
        layer=Layer(index=1, count=2),
    ),
)
