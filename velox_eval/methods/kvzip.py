"""KVzip: keeps the rows that rebuilding the context relies on, whatever will be asked later.

Paper: KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction (Kim et al., NeurIPS 2025,
arXiv:2505.23416). Official code: https://github.com/snu-mllab/KVzip

adapted (VeloxQuant-MLX 0.94.15): no reconstruction pass is run. The kept keys stand in for the queries of the
reconstruction (`probe=context`), or the newest key alone (`probe=latest`, which is TOVA's ranking); a row's
worth is the largest attention any probe pays it. Recomputed every step, also while decoding; the first
`n_sink` positions are protected, no recent window is. The paper runs the model on "repeat the context" once
after prefill, takes the maximum over grouped query heads and keeps everything generated.
"""

from __future__ import annotations

from velox_eval.methods.policy import Policy, Rows, State, attention_weights
from velox_eval.methods.spec import MethodSpec, Parameter, Variant
from velox_eval.methods.tova import N_SINK, check_sinks, min_budget_sinks
from velox_eval.mlx import mx


class KVzip(Policy):
    """Ranks by the largest attention received from the probe."""

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the maximum over probe rows of the attention paid to each row."""
        if self.params["probe"] == "latest":
            return attention_weights(rows.new_keys[:, :, -1:], rows)[:, :, 0]
        weights = attention_weights(rows.keys, rows)
        if rows.any_free:  # a free slot is no probe
            weights = mx.where(rows.positions[..., None] >= 0, weights, 0.0)
        return weights.max(axis=2)


SPEC = MethodSpec(
    name="kvzip",
    family="attention",
    ranks_by="how much rebuilding the context relies on the row (max over the probe)",
    paper="KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction "
    "(Kim et al., NeurIPS 2025, arXiv:2505.23416)",
    code="https://github.com/snu-mllab/KVzip",
    variants={
        "adapted": Variant(
            policy=KVzip,
            parameters=(
                N_SINK,
                Parameter(
                    "probe",
                    "context",
                    "rows that stand in for the reconstruction's queries: all kept keys, or the newest",
                    choices=("context", "latest"),
                ),
            ),
            capacity="budget",
            differs="kept keys instead of reconstruction passes; recomputed every step, generated rows evicted too",
            min_budget=min_budget_sinks,
            check=check_sinks,
        )
    },
)
