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
    chunk: int = 1  # tokens fed at a time

    @property
    def id(self) -> str:
        return f"{self.case.method}: {self.what}"


@dataclass(frozen=True)
class SessionDifference:
    """One difference that only whole sessions show, and the test that shows it."""

    what: str
    reason: str
    test: str  # file::function in this folder


def twice(data: Stream) -> Stream:
    """The same sequence as two of a batch."""
    return Stream(*(np.concatenate([array, array]) for array in (data.keys, data.values, data.queries)))


def equal_norms(data: Stream) -> Stream:
    """Keys of ones and minus ones."""
    return Stream(np.where(data.keys < 0, -1, 1).astype(np.float32), data.values, data.queries)


def indifferent(data: Stream) -> Stream:
    """The last key is zero, and pays the same to every row."""
    keys = data.keys.copy()
    keys[:, :, -1] = 0
    return Stream(keys, data.values, data.queries)


KEYFORMER = Case("keyformer", {"n_sink": 1}, budget=12, installed="keyformer")
CHUNKKV = Case("chunkkv", {"n_sink": 2, "chunk_size": 4}, budget=12, installed="chunkkv")

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
    Difference(
        what="of rows of equal norm the oldest goes, in the package the newest",
        reason="one order of ties for every method; the package's is what its sort leaves",
        case=Case("knorm", {"n_sink": 1}, budget=12, installed="knorm"),
        data=equal_norms(stream(0, batch=1, heads=2, tokens=60, dim=16)),
    ),
    Difference(
        what="rows of a chunk that must go stay until their room is needed",
        reason="every method holds the rows it was given; what is not leaving is the package's (test_chunkkv.py)",
        case=CHUNKKV,
        data=stream(1, batch=1, heads=1, tokens=61, dim=16, scale=1.0),
    ),
    Difference(
        what="a head's rows do not depend on how many rows other heads lost",
        reason="the package drops a head's oldest rows until it holds as few as the head, or sequence, that lost most",
        case=Case("chunkkv", {"n_sink": 2, "chunk_size": 4, "score": "key_norm"}, budget=12, installed="chunkkv"),
        data=stream(2, batch=1, heads=3, tokens=60, dim=16, scale=1.0),
    ),
    Difference(
        what="of rows that tie the oldest goes, in the package the newest",
        reason="one order of ties for every method",
        case=Case("snapkv", {"n_sink": 1, "obs_window": 1}, budget=12, installed="snapkv"),
        data=indifferent(stream(0, batch=1, heads=2, tokens=60, dim=16)),
        chunk=60,
    ),
    Difference(
        what="no layer cuts before the mean budget is reached",
        reason="a budget at or above the final length must change nothing, in every layer",
        case=Case("pyramidkv", {"n_sink": 2, "beta": 2.0}, budget=12, installed="pyramidkv", layer=Layer(2, 4)),
        data=stream(0, batch=1, heads=3, tokens=60, dim=16, scale=1.0),
        layer=Layer(2, 4),
    ),
    Difference(
        what="budgets are rounded together, so that their mean is the budget",
        reason="equal memory for every method; rounded one by one they add up to more or less",
        case=Case("pyramidkv", {"n_sink": 2, "beta": 1.5}, budget=12, installed="pyramidkv", layer=Layer(0, 4)),
        data=stream(0, batch=1, heads=3, tokens=60, dim=16, scale=1.0),
        layer=Layer(0, 4),
    ),
)

SESSION_DIFFERENCES = (
    SessionDifference(
        what="squeeze: the cut at the prompt's end spares the newest row",
        reason="it has gathered nothing yet; the package protects it at every other step",
        test="test_squeeze::test_the_cut_at_the_prompts_end_spares_the_newest_row",
    ),
    SessionDifference(
        what="squeeze: the last layer holds the mean budget until the prompt is in",
        reason="layers are treated alike; the package's order of reports gives the last one its budget early",
        test="test_squeeze::test_the_last_layer_holds_the_mean_budget_until_the_prompt_is_in",
    ),
    SessionDifference(
        what="squeeze: budgets are rounded together, and what raising one to its least costs is taken from the others",
        reason="equal memory for every method",
        test="test_squeeze::test_budgets_by_concentration_have_the_budget_as_their_mean",
    ),
)
