"""StreamingLLM: keeps the first tokens, which attention uses as sinks, and a window of the newest.

Paper: Efficient Streaming Language Models with Attention Sinks (Xiao et al., ICLR 2024, arXiv:2309.17453).
Official code: https://github.com/mit-han-lab/streaming-llm

adapted (VeloxQuant-MLX 0.94.15): the first `n_sink` positions and the newest budget - n_sink rows stay, each at the
position it had in the text, so a sink is as far away as it ever was. The budget counts both: the package's own
default, 4 sinks and a window of 512, is a budget of 516. A window of no rows at all, which the package allows, is
refused here.

paper: the same rows, but a row's position is its place in the cache: keys are turned to it at every step, and the
next token's position is the number of rows held, so the model never sees a distance it was not trained on. The
authors' code makes room before a step, so that a token sees budget rows, itself included; here a token sees the
budget rows kept and itself, as under every method. Models whose rotary embedding depends on the sequence's length,
or that have none, are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.methods.policy import Layer, Policy, Rows, State, fresh
from velox_eval.methods.rotation import Rotation
from velox_eval.methods.spec import MethodSpec, Value, Variant
from velox_eval.methods.tova import N_SINK, check_sinks, min_budget_sinks
from velox_eval.mlx import mx


class StreamingLLM(Policy):
    """Ranks by recency; sinks are protected."""

    chooses_together = True

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the row's position: the older, the sooner it goes."""
        return rows.positions.astype(mx.float32)


class StreamingLLMPaper(StreamingLLM):
    """The same rows, at positions inside the cache."""

    chooses_together = False  # every layer's next attention needs its state
    renumbers = True
    slot_state = ("turned",)

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.rotation = Rotation(self.layer)

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `turned` int32 [B, H, C]: the position each stored key was turned to by the model."""
        first = rows.newest + 1 - rows.new_keys.shape[2]
        placed = rows.positions - first + rows.place
        return {"turned": mx.where(fresh(rows), placed, state["turned"]) if "turned" in state else placed}

    def present(self, rows: Rows, state: State, longest: int) -> mx.array:
        """Returns the keys at their places in the cache: sinks first, then the window without a gap."""
        # Every head keeps the same rows, so one head's places are all heads'.
        positions, turned = rows.positions[:, :1], state["turned"][:, :1]
        evicted = rows.newest + 1 - rows.new_keys.shape[2] - rows.place
        place = mx.where(positions < self.n_sink, positions, positions - evicted)
        stored = ~fresh(rows)[:, :1] & (positions >= 0)
        return self.rotation.back(rows.keys, mx.where(stored, turned - place, 0), longest)


SPEC = MethodSpec(
    name="streaming_llm",
    family="structural",
    ranks_by="first positions (sinks), then recency",
    paper="Efficient Streaming Language Models with Attention Sinks (Xiao et al., ICLR 2024, arXiv:2309.17453)",
    code="https://github.com/mit-han-lab/streaming-llm",
    variants={
        "adapted": Variant(
            policy=StreamingLLM,
            parameters=(N_SINK,),
            capacity="budget",
            differs="rows keep their positions in the text; the paper's are positions inside the cache",
            min_budget=min_budget_sinks,
            check=check_sinks,
        ),
        "paper": Variant(
            policy=StreamingLLMPaper,
            parameters=(N_SINK,),
            capacity="budget",
            differs="a token sees the budget rows kept and itself; the authors' code makes room for it first",
            min_budget=min_budget_sinks,
            check=check_sinks,
        ),
    },
)
