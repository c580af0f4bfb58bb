"""SnapKV: cuts the prompt to the rows that its last tokens attend to; what is decoded stays.

Paper: SnapKV: LLM Knows What You are Looking for Before Generation (Li et al., NeurIPS 2024, arXiv:2404.14469).
Official code: https://github.com/FasterDecoding/SnapKV

adapted (VeloxQuant-MLX 0.94.15): the last `obs_window` keys stand in for queries; a row's worth is their mean
attention over all rows held, not masked inside the window and not smoothed. The first `n_sink` positions stay; the
window itself does not. It cuts after every chunk of the prompt. A chunk of one token is decoded there and stays; here
the prompt's last token, which is read alone, is prompt: once the prompt is in, it is `budget` rows. A window above
the budget is refused, which the package takes.

paper: the softmax attention of the last `window` queries of the prompt over all rows, causal inside the window,
summed over the window and pooled over `kernel` neighbouring rows before the window, query head by query head; the
best budget - window rows stay, and the window. `pooling=max` over 7 rows is what the authors' LongBench runs use;
their code falls back to the average over 5. The authors keep rows per query head, which takes a key-value cache as
wide as the queries; here the heads of a group are averaged (as NVIDIA's kvpress does), and KV heads keep their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.errors import ConfigError
from velox_eval.methods.policy import Layer, Policy, Rows, State, attention_weights, grouped_logits, latest
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK, check_sinks
from velox_eval.mlx import mx


class SnapKV(Policy):
    """Ranks by the mean attention of the last keys; slots are in temporal order whenever it is asked."""

    grows = True

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the mean attention the last `obs_window` keys pay to each row."""
        return attention_weights(rows.keys[:, :, -int(self.params["obs_window"]) :], rows).mean(axis=2)


class PromptWindow(Policy):
    """Cuts the prompt once, at its end, by its last queries, which the state holds; decoded rows all stay."""

    needs_queries = True
    holds_prompt = True
    grows = True

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.window = self.protected_recent = int(params["window"])

    def observe(self, rows: Rows, state: State) -> State:
        """Returns the last `window` queries [B, H_q, window, D]."""
        assert rows.queries is not None
        return {"recent_queries": latest(rows.queries, state.get("recent_queries"), self.window)}


class SnapKVPaper(PromptWindow):
    """Ranks by the pooled attention of the prompt's last queries."""

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the pooled attention of the window to each row before it, 0 in the window itself."""
        logits = grouped_logits(state["recent_queries"], rows.keys, rows.scale)
        slots = logits.shape[-1]  # the prompt is held whole, so row p lies in slot p
        seen = mx.arange(slots) <= mx.arange(slots - self.window, slots)[:, None]
        paid = mx.softmax(mx.where(seen, logits, -mx.inf), axis=-1).sum(axis=3)[..., : slots - self.window]
        pooled = _pooled(paid, int(self.params["kernel"]), str(self.params["pooling"])).mean(axis=2)
        return mx.pad(pooled, [(0, 0), (0, 0), (0, self.window)])


def _pooled(array: mx.array, kernel: int, pooling: str) -> mx.array:
    """Returns each element's mean or maximum over `kernel` neighbours; beyond the ends, zeros are averaged in."""
    side, length = kernel // 2, array.shape[-1]
    padded = mx.pad(array, [(0, 0)] * (array.ndim - 1) + [(side, side)])  # weights are never below the zeros
    neighbours = mx.stack([padded[..., at : at + length] for at in range(kernel)])
    return neighbours.max(axis=0) if pooling == "max" else neighbours.mean(axis=0)


def check_window(budget: int, params: Mapping[str, Value]) -> None:
    """Raises ConfigError unless the window fits into the budget and the kernel has a middle."""
    if int(params["window"]) > budget:
        raise ConfigError(f"window={params['window']} must be at most budget={budget}: its rows always stay")
    if int(params["kernel"]) % 2 == 0:
        raise ConfigError(f"kernel={params['kernel']} must be odd: a row has as many neighbours on either side")


def _check(budget: int, params: Mapping[str, Value]) -> None:
    check_sinks(budget, params)
    if int(params["obs_window"]) > budget:
        raise ConfigError(f"obs_window={params['obs_window']} must be at most budget={budget}: it would not survive")


WINDOW = (
    Parameter("window", 32, "last queries of the prompt, which rank; their rows stay", minimum=1),
    Parameter("kernel", 7, "neighbouring rows pooled; odd", minimum=1),
    Parameter("pooling", "max", "how neighbours are pooled", choices=("max", "mean")),
)

SPEC = MethodSpec(
    name="snapkv",
    family="attention",
    ranks_by="attention of a window at the prompt's end, pooled; decode grows",
    paper="SnapKV: LLM Knows What You are Looking for Before Generation (Li et al., NeurIPS 2024, arXiv:2404.14469)",
    code="https://github.com/FasterDecoding/SnapKV",
    variants={
        "adapted": Variant(
            policy=SnapKV,
            parameters=(
                N_SINK,
                Parameter("obs_window", 32, "last keys, which stand in for queries", minimum=1),
            ),
            capacity="budget after each chunk of the prompt and at its end; every decoded row is kept",
            differs="keys instead of queries; not pooled; the window is not masked and does not stay; cuts after every "
            "chunk of the prompt; sinks protected",
            min_budget=lambda params: max(int(params["n_sink"]) + 1, int(params["obs_window"])),
            check=_check,
            needs_session=True,
        ),
        "paper": Variant(
            policy=SnapKVPaper,
            parameters=WINDOW,
            capacity="budget after the prompt, which is held whole until its end; every decoded row is kept",
            differs="rows are kept per KV head, by the mean over its query heads, not per query head",
            min_budget=lambda params: int(params["window"]),
            check=check_window,
            needs_queries=True,
            needs_session=True,
        ),
    },
)
