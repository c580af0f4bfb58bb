"""Q-Filters: keeps the rows whose keys lie far along one direction per head, known before any query comes.

Paper: Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression (Godey et al., 2025, arXiv:2503.02812).
Official code: https://github.com/NathanGodey/qfilters

adapted (VeloxQuant-MLX 0.94.15): the direction is the first principal axis of the first `calib_tokens` keys, frozen
then. Nothing is evicted before, also where that is more than the budget. Keys do not tell which end of the axis
queries lie at, so the sign (largest component positive) is a convention, and `sign=-1` its control. The first
`n_sink` positions and the newest `recent` rows are protected. Which keys come first, and so the direction, depends on
the size of the prefill chunks, as in the package.

paper: the direction is that of the model's queries, measured once by `velox-eval calibrate`: the first right-singular
vector of the queries of each head as attention uses them (after RoPE, not centred), turned so that the mean query lies
on its positive side, averaged over the query heads that share a KV head. The newest `window` rows are protected, 64 as
in the authors' example; there are no sinks. They measure on 20 sequences of 2,048 tokens and take the sign by the
majority of queries; ours takes the bundled text of some 3,000 tokens unless told otherwise, every query of it, and
the paper's own sign.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods.h2o import check_protected
from velox_eval.methods.policy import Layer, Policy, Rows, State, placed
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK
from velox_eval.mlx import mx


class QFilters(Policy):
    """Ranks by projection on the main axis of the first keys."""

    slot_state = ("worth",)

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.protected_recent = int(params["recent"])
        self.first_cut = int(params["calib_tokens"])

    def observe(self, rows: Rows, state: State) -> State:
        """Returns what ranks the rows.

        `direction` [B, H, D] float32: zeros until enough keys are there, then the same for ever. `worth` [B, H, C]:
        each key's projection on it, times `sign`.
        """
        batch, heads, new, dim = rows.new_keys.shape
        direction = state.get("direction", mx.zeros((batch, heads, dim)))
        settles = [seen >= self.first_cut > seen - new for seen in rows.seen]
        if any(settles):
            direction = mx.where(mx.array(settles)[:, None, None], main_axis(rows), direction)
            worth = self._projection(rows.keys, direction)
        else:
            worth = placed(rows, state.get("worth"), self._projection(rows.new_keys, direction))
        return {"direction": direction, "worth": worth}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the key's projection on the direction, times `sign`."""
        return state["worth"]

    def _projection(self, keys: mx.array, direction: mx.array) -> mx.array:
        return int(self.params["sign"]) * projection(keys, direction)


class QFiltersPaper(Policy):
    """Ranks by projection on the direction of the model's queries."""

    slot_state = ("worth",)

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.protected_recent = int(params["window"])
        if self.layer.directions is None:
            raise MethodError(
                "qfilters:paper ranks by directions measured on the model: run `velox-eval calibrate MODEL` once, and "
                "run the method through the engine, which finds them"
            )
        self.directions = self.layer.directions

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `worth` [B, H, C] float32: each key's projection on the direction."""
        new = projection(rows.new_keys, self.directions(rows.heads, rows.head_dim))
        return {"worth": placed(rows, state.get("worth"), new)}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the key's projection on the direction."""
        return state["worth"]


def projection(keys: mx.array, directions: mx.array) -> mx.array:
    """Returns [B, H, C] float32: keys [B, H, C, D] along directions [H, D] or [B, H, D]."""
    return (keys.astype(mx.float32) @ directions[..., None])[..., 0]


def main_axis(rows: Rows) -> mx.array:
    """Returns [B, H, D]: the first principal axis of the keys held, its largest component positive."""
    keys = rows.keys.astype(mx.float32)
    held = (rows.positions >= 0).astype(mx.float32)[..., None]
    count = held.sum(axis=2, keepdims=True)
    centred = (keys - (keys * held).sum(axis=2, keepdims=True) / count) * held
    spread = (centred.swapaxes(-1, -2) @ centred) / mx.maximum(count - 1, 1)
    _, axes = mx.linalg.eigh(spread, stream=mx.cpu)  # ascending
    axis = axes[..., -1]
    largest = mx.argmax(mx.abs(axis), axis=-1, keepdims=True)
    return axis * mx.sign(mx.take_along_axis(axis, largest, axis=-1))


def _check(budget: int, params: Mapping[str, Value]) -> None:
    if params["sign"] == 0:
        raise ConfigError("sign=0 ranks nothing; it must be 1 or -1")
    check_protected(budget, params, "recent")


def _check_paper(budget: int, params: Mapping[str, Value]) -> None:
    if int(params["window"]) >= budget:
        raise ConfigError(f"window={params['window']} must be below budget={budget}: no row could be evicted")


SPEC = MethodSpec(
    name="qfilters",
    family="projection",
    ranks_by="projection of the key on a frozen direction per head",
    paper="Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression (Godey et al., 2025, arXiv:2503.02812)",
    code="https://github.com/NathanGodey/qfilters",
    variants={
        "adapted": Variant(
            policy=QFilters,
            parameters=(
                N_SINK,
                Parameter("recent", 0, "newest rows never evicted", minimum=0),
                Parameter("calib_tokens", 128, "keys that the direction is taken from", minimum=2),
                Parameter("sign", 1, "1 keeps high projections, -1 low ones", minimum=-1, maximum=1),
            ),
            capacity="budget; everything until calib_tokens keys were seen",
            differs="direction from the first keys instead of from queries; sinks protected, no window",
            min_budget=lambda params: int(params["n_sink"]) + int(params["recent"]) + 1,
            check=_check,
        ),
        "paper": Variant(
            policy=QFiltersPaper,
            parameters=(
                Parameter("window", 64, "newest rows never evicted", minimum=0),
                Parameter("calibration", "bundled", "text the directions come from: see `velox-eval calibrate`"),
            ),
            capacity="budget",
            differs="less text to measure directions on, unless given; the paper's sign instead of the code's majority",
            min_budget=lambda params: int(params["window"]) + 1,
            check=_check_paper,
            needs_directions=True,
        ),
    },
)
