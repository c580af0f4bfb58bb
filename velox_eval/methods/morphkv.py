"""MorphKV: keeps the rows that a sliding window of recent tokens attends to, at constant size.

Paper: Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs (Ghadia et al.,
ICML 2025, arXiv:2503.00979). Official code: https://github.com/ghadiaravi13/MorphKV

adapted (VeloxQuant-MLX 0.94.15): the last `window` keys stand in for queries; a row's worth is their mean
attention over all rows held, recomputed every step, nothing accumulated. The first `n_sink` positions and the
window itself are protected. The paper ranks only distant rows by the model's own queries, fuses them by sum or
maximum, and protects no sinks.

paper (the authors' code): holds the last `window` + 1 rows and the best of the distant ones, ranked by the cached
queries of the window, the current one left out, so by `window` - 1 queries; their softmax runs over distant rows
only. Query heads of a KV head: `group=max` takes the largest weight (Mistral, Qwen2 and Phi-3 patches),
`group=logit_sum` adds their logits up before the softmax (Llama patch). Queries of the window: `fusion=max|sum`.
The authors' capacity C stands for C + 1 rows; `budget` is those rows. The prompt is held whole and cut once, at
its end; they cut it with the first decoded token. `interval` > 1 cuts only when that many rows are over (their
evict_after is a factor instead); `skip_layers` leaves the first layers whole. Ours works in float32, theirs in the
model's dtype; theirs also masks, per query head, the step that evicts: ours evicts for the next step.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.errors import ConfigError
from velox_eval.methods import distant, window
from velox_eval.methods.policy import Layer, Policy, Rows, State, grouped
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant, skip_first_layers
from velox_eval.methods.tova import N_SINK
from velox_eval.mlx import mx


class MorphKV(Policy):
    """Ranks by the mean attention of the last `window` keys, kept up to date step by step."""

    chooses_together = True
    key_as_query = True
    slot_state = window.SLOT_STATE

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.window = self.protected_recent = int(params["window"])

    def observe(self, rows: Rows, state: State) -> State:
        """Returns the window: its keys and what each pays to every row (velox_eval.methods.window)."""
        scale = 1.0 / float(rows.head_dim) ** 0.5
        return window.watched(rows, state, rows.new_keys[:, :, None], self.window, scale, own=True)

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the window's mean attention to each row."""
        # Evicting needs more rows than the budget, and the budget exceeds the window: it is full by then.
        share = window.shares(state).swapaxes(-1, -2) / self.window
        return (share @ state["paid"])[:, :, 0, 0]


class MorphKVPaper(Policy):
    """Ranks distant rows by the queries of the window before the current one."""

    chooses_together = True
    needs_queries = True
    holds_prompt = True
    slot_state = distant.SLOT_STATE

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.window = int(params["window"])
        self.protected_recent = self.window + 1
        self.slack = int(params["interval"]) - 1

    def observe(self, rows: Rows, state: State) -> State:
        """Returns the window's queries and the share each pays to the distant rows (velox_eval.methods.distant)."""
        assert rows.queries is not None
        queries = grouped(rows.queries, rows) * rows.scale
        logits = None if rows.logits is None else rows.logits[:, :, :, None]
        if self.params["group"] == "logit_sum":
            queries = queries.sum(axis=2, keepdims=True)  # a sum of products is the product with the sum
            logits = None if logits is None else logits.sum(axis=2, keepdims=True)
        return distant.watched(rows, state, queries, self.window - 1, rows.newest - self.window, logits)

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the window's fused attention to each distant row; the recent ones count for nothing."""
        if self.params["fusion"] == "max":
            return state["share"].max(axis=(2, 3))
        return state["share"].max(axis=2).sum(axis=2)


def _check(budget: int, params: Mapping[str, Value]) -> None:
    n_sink, window = int(params["n_sink"]), int(params["window"])
    if n_sink + window >= budget:
        raise ConfigError(
            f"n_sink={n_sink} plus window={window} must be below budget={budget}: no row could be evicted"
        )


def _check_paper(budget: int, params: Mapping[str, Value]) -> None:
    window = int(params["window"])
    if window + 1 >= budget:
        raise ConfigError(f"window={window} and the newest row must be below budget={budget}: no distant row fits in")


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
        ),
        "paper": Variant(
            policy=MorphKVPaper,
            parameters=(
                Parameter(
                    "window",
                    32,
                    "queries at hand; all but the current one rank the distant rows; as many rows and the newest stay",
                    minimum=2,
                ),
                Parameter("fusion", "max", "how the window's queries are fused", choices=("max", "sum")),
                Parameter(
                    "group",
                    "max",
                    "how the query heads of a KV head are merged: largest weight, or logits added up",
                    choices=("max", "logit_sum"),
                ),
                Parameter("interval", 1, "decoded rows between two cuts", minimum=1),
                Parameter("skip_layers", 0, "first layers that keep everything", minimum=0),
            ),
            capacity="budget after the prompt, which is held whole until its end; budget + interval rows in transit; "
            "the first skip_layers layers keep everything",
            differs="float32 instead of the model's dtype; one cut at the prompt's end, not with the first token; "
            "evicted rows leave after the step, not within it",
            min_budget=lambda params: int(params["window"]) + 2,
            check=_check_paper,
            needs_queries=True,
            needs_session=True,
            layer_budgets=skip_first_layers,
        ),
    },
)
