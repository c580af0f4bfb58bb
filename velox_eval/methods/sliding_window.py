"""sliding_window: keeps the newest `budget` rows, no sinks. The plainest structural rule.

Differs from Mistral-style window attention only in where it acts: rows leave the cache instead of being
masked, so within a prefill chunk a token still sees its whole chunk (append, attend, then evict).
"""

from __future__ import annotations

from velox_eval.methods.policy import Policy, Rows, State
from velox_eval.methods.spec import MethodSpec, Variant
from velox_eval.mlx import mx


class SlidingWindow(Policy):
    """Ranks by recency."""

    chooses_together = True

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the row's position: the older, the sooner it goes."""
        return rows.positions.astype(mx.float32)


SPEC = MethodSpec(
    name="sliding_window",
    family="structural",
    ranks_by="recency",
    paper="Longformer: The Long-Document Transformer (2020, arXiv:2004.05150), window attention",
    code="https://github.com/allenai/longformer",
    variants={
        "adapted": Variant(
            policy=SlidingWindow,
            parameters=(),
            capacity="budget",
            differs="rows are evicted after each step instead of masked, so a prefill chunk sees its whole self",
        )
    },
)
