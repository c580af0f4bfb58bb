"""MorphKV: keeps the rows that a sliding window of recent tokens attends to, at constant size.

Paper: Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs (Ghadia et al.,
ICML 2025, arXiv:2503.00979). Official code: https://github.com/ghadiaravi13/MorphKV

adapted (VeloxQuant-MLX 0.94.15): the last `window` keys stand in for queries; a row's worth is their mean
attention over all rows held, recomputed every step, nothing accumulated. The first `n_sink` positions and the
window itself are protected. The paper ranks only distant rows by the model's own queries, fuses them by sum or
maximum, and protects no sinks.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.errors import ConfigError
from velox_eval.methods.policy import Layer, Policy, Rows, State, attention_weights
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK
from velox_eval.mlx import mx


class MorphKV(Policy):
    """Ranks by the mean attention of the last `window` keys, which the state keeps at hand."""

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.window = self.protected_recent = int(params["window"])

    def observe(self, rows: Rows, state: State) -> State:
        """Returns the last `window` keys [B, H, window, D]; zeros in front until there are as many."""
        new = rows.new_keys[:, :, -self.window :]
        old = state.get("recent_keys")
        if old is None:
            batch, heads, _, dim = new.shape
            old = mx.zeros((batch, heads, self.window, dim), new.dtype)
        return {"recent_keys": mx.concatenate([old[:, :, new.shape[2] :], new], axis=2)}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the window's mean attention to each row."""
        # Evicting needs more rows than the budget, and the budget exceeds the window: it is full by then.
        return attention_weights(state["recent_keys"], rows).mean(axis=2)


def _check(budget: int, params: Mapping[str, Value]) -> None:
    n_sink, window = int(params["n_sink"]), int(params["window"])
    if n_sink + window >= budget:
        raise ConfigError(
            f"n_sink={n_sink} plus window={window} must be below budget={budget}: no row could be evicted"
        )


SPEC = MethodSpec(
    name="morphkv",
    family="attention",
    ranks_by="mean attention of a sliding window of recent keys, recomputed every step",
    paper="Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs "
    "(Ghadia et al., ICML 2025, arXiv:2503.00979)",
    code="https://github.com/ghadiaravi13/MorphKV",
    variants={
        "adapted": Variant(
            policy=MorphKV,
            parameters=(
                N_SINK,
                Parameter("window", 8, "recent keys that rank the others; never evicted themselves", minimum=1),
            ),
            capacity="budget",
            differs="keys instead of queries; softmax over all rows instead of distant ones; mean instead of "
            "sum or max fusion; sinks protected",
            min_budget=lambda params: int(params["n_sink"]) + int(params["window"]) + 1,
            check=_check,
        )
    },
)
