"""Rules whose layers differ, written again in NumPy: what a layer keeps, given its share of the budget."""

from __future__ import annotations

from .references import Array
from .references_accumulating import Accumulating, H2OPaper
from .references_prompt import AtThePromptsEnd


class GatheredMass(Accumulating):
    """Attention gathered from later keys, not fading; sinks and the newest row stay."""

    def worth(self) -> Array:
        return self.protect(self.gathered(), self.params["n_sink"], 1)


class H2OAtTheEnd(AtThePromptsEnd, H2OPaper):
    """h2o:paper that cuts the prompt once, and then at every step."""

    def cuts_while_decoding(self) -> bool:
        return True


class SlidingWindowAtTheEnd(AtThePromptsEnd):
    """The newest rows, once the prompt is in."""

    def cuts_while_decoding(self) -> bool:
        return True

    def worth(self) -> Array:
        return self.positions.astype("float32")
