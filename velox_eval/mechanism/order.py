"""The order of arms by a measure, each step down tested: neighbours that the seeds cannot tell apart are a tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velox_eval.mechanism.evidence import weigh
from velox_eval.mechanism.study import Study

ORDERS = (  # regime, measure, whether it is a null: nothing there to tell arms apart by
    ("shift", "retention", False),
    ("shift", "unprotected", False),
    ("early_block", "held", False),
    ("middle_block", "held", False),
    ("alternating", "held", False),
    ("absence", "held", False),
    ("stable", "retention", True),
)


@dataclass(frozen=True)
class Order:
    """Arms from highest to lowest with their means; `steps[i]`: arm i is above arm i + 1 (None: too few seeds)."""

    regime: str
    measure: str
    null: bool
    arms: tuple[str, ...]
    means: tuple[float, ...]
    steps: tuple[bool | None, ...]

    @property
    def words(self) -> str:
        """The order as one line: > where the step holds, = where it does not, ? where nothing can be said."""
        parts = []
        for at, (arm, mean) in enumerate(zip(self.arms, self.means, strict=True)):
            if at:
                parts.append({True: ">", False: "=", None: "?"}[self.steps[at - 1]])
            parts.append(f"{arm} {mean:.2f}")
        return " ".join(parts)


def orders(study: Study, arms: Sequence[str]) -> list[Order]:
    """Returns the arms that were run in every order of ORDERS; Holm over all steps of all orders together."""
    ranked = {}
    for regime, measure, _ in ORDERS:
        if regime not in study.base:
            continue
        means = {arm: study.mean(arm, regime, measure) for arm in arms if study.has(arm)}
        known = {arm: mean for arm, mean in means.items() if mean is not None}
        ranked[regime, measure] = dict(sorted(known.items(), key=lambda pair: -pair[1]))
    steps = [(key, at) for key, found in ranked.items() for at in range(len(found) - 1)]
    sides = {}
    for (regime, measure), at in steps:
        above, below = list(ranked[regime, measure])[at : at + 2]
        sides[(regime, measure), at] = study.by_seed(above, regime, measure), study.by_seed(below, regime, measure)
    tested = weigh(sides)
    return [
        Order(
            regime,
            measure,
            null,
            tuple(found),
            tuple(found.values()),
            tuple(tested[(regime, measure), at].holds for at in range(len(found) - 1)),
        )
        for regime, measure, null in ORDERS
        if (found := ranked.get((regime, measure))) is not None
    ]
