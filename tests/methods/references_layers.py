"""Rules whose layers differ, written again in NumPy: what a layer keeps, given its share of the budget."""

from __future__ import annotations

from .references import Array
from .references_accumulating import Accumulating


class GatheredMass(Accumulating):
    """Attention gathered from later keys, not fading; sinks and the newest row stay."""

    def worth(self) -> Array:
        return self.protect(self.gathered(), self.params["n_sink"], 1)
