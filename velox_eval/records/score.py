"""A score as numerator over denominator: ratios pool as ratios of sums, and nothing missing counts as zero."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field


class Score(BaseModel):
    """One sample's score. A mean-type score has `den` 1; a counted one has the counts (3 of 12 checks)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num: float = Field(description="Numerator: points won, checks passed.")
    den: float = Field(default=1.0, description="Denominator: points possible, checks made; 0: nothing to score.")

    @property
    def value(self) -> float | None:
        """num / den; None when there was nothing to score."""
        return self.num / self.den if self.den else None


def pooled(scores: Iterable[Score]) -> float | None:
    """Returns the ratio of sums over samples; None when the denominators sum to zero."""
    items = list(scores)
    den = sum(score.den for score in items)
    return sum(score.num for score in items) / den if den else None
