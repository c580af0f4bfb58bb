"""knorm: keeps the rows whose keys have the lowest L2 norm; they tend to be the ones that get attention.

Paper: A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression (Devoto et al., EMNLP 2024,
arXiv:2406.11430). Official code: https://github.com/alessiodevoto/l2compress

adapted (VeloxQuant-MLX 0.94.15): the paper's ranking, plus `n_sink` protected first positions, a protected window of
`recent` rows (none by default) and `keep=high`, which turns the ranking round as a control. Of rows of equal norm
ours drops the oldest, the package the newest.

paper: nothing is protected. The authors' code keeps a share of the rows each time the cache outgrows a limit; here the
limit is the budget and the share what fits it. They report results with the first two layers left whole
(`skip_layers=2`); the default here is none, so that every layer holds the budget.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.methods.h2o import check_protected
from velox_eval.methods.policy import Layer, Policy, Rows, State, placed
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant, skip_first_layers
from velox_eval.methods.tova import N_SINK
from velox_eval.mlx import mx


class KNorm(Policy):
    """Ranks by the key's norm, measured once."""

    chooses_together = True
    slot_state = ("norms",)

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.protected_recent = int(params.get("recent", 0))
        self.sign = 1.0 if params.get("keep", "low") == "high" else -1.0

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `norms` [B, H, C]: the L2 norm of each key."""
        norms = mx.linalg.norm(rows.new_keys.astype(mx.float32), axis=-1)
        return {"norms": placed(rows, state.get("norms"), norms)}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns minus the norm (the norm itself with `keep=high`)."""
        return self.sign * state["norms"]


SPEC = MethodSpec(
    name="knorm",
    family="intrinsic",
    ranks_by="low L2 norm of the key",
    paper="A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression (Devoto et al., EMNLP 2024, "
    "arXiv:2406.11430)",
    code="https://github.com/alessiodevoto/l2compress",
    variants={
        "adapted": Variant(
            policy=KNorm,
            parameters=(
                N_SINK,
                Parameter("recent", 0, "newest rows never evicted", minimum=0),
                Parameter("keep", "low", "which norms are worth keeping", choices=("low", "high")),
            ),
            capacity="budget",
            differs="sinks protected",
            min_budget=lambda params: int(params["n_sink"]) + int(params["recent"]) + 1,
            check=lambda budget, params: check_protected(budget, params, "recent"),
        ),
        "paper": Variant(
            policy=KNorm,
            parameters=(Parameter("skip_layers", 0, "first layers that keep everything", minimum=0),),
            capacity="budget; the first skip_layers layers keep everything",
            differs="a budget of rows instead of a share of them; no layer is left whole by default",
            layer_budgets=skip_first_layers,
        ),
    },
)
