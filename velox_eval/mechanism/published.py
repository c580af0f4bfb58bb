"""The documents' own figures, beside ours: means of five data seeds, as theirs."""

from __future__ import annotations

from dataclasses import dataclass

from velox_eval.mechanism.claims import CONTEXT, H2O, LATEST, W1, W8, W32
from velox_eval.mechanism.study import DOCUMENT_SEEDS, Study


@dataclass(frozen=True)
class Published:
    """A figure of a document: retention from `low` to `high` over lengths and budgets; one number: a mean."""

    study: str
    arm: str
    regime: str
    low: float
    high: float

    @property
    def said(self) -> str:
        """The figure as the document has it."""
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


PUBLISHED = (
    Published("morphkv", H2O, "shift", 0.0, 0.0),
    Published("morphkv", W1, "shift", 0.15, 0.37),
    Published("morphkv", W8, "shift", 0.39, 0.74),
    Published("morphkv", W32, "shift", 0.39, 0.74),
    Published("morphkv", W8, "stable", 1.0, 1.0),
    Published("kvzip", H2O, "shift", 0.017, 0.017),
    Published("kvzip", LATEST, "shift", 0.248, 0.248),
    Published("kvzip", CONTEXT, "shift", 0.609, 0.609),
    Published("kvzip", CONTEXT, "stable", 1.0, 1.0),
)


@dataclass(frozen=True)
class Beside:
    """A published figure and ours: the mean, and the cells' own from lowest to highest."""

    published: Published
    mean: float
    low: float
    high: float
    cells: tuple[float, ...]  # by length and budget

    @property
    def off(self) -> float:
        """How far ours are from theirs: the means, or the cell furthest outside their range."""
        theirs = self.published
        if theirs.low == theirs.high:
            return abs(self.mean - theirs.low)
        return max(0.0, theirs.low - self.low, self.high - theirs.high)


def beside(study: Study) -> list[Beside]:
    """Returns every published figure whose arm was run, with ours over the documents' number of seeds."""
    made = []
    for published in PUBLISHED:
        if not study.has(published.arm) or published.regime not in study.base:
            continue
        cells = [
            study.mean(published.arm, published.regime, "retention", cell, DOCUMENT_SEEDS) or 0.0 for cell in study.grid
        ]
        made.append(Beside(published, sum(cells) / len(cells), min(cells), max(cells), tuple(cells)))
    return made
