"""H2O: keeps the rows that gathered the most attention so far (heavy hitters), and the recent ones.

Paper: H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models (Zhang et al.,
NeurIPS 2023, arXiv:2306.14048). Official code: https://github.com/FMInference/H2O

adapted (VeloxQuant-MLX 0.94.15): each new key stands in for a query and pays attention to the rows before it, not
to itself; what a row gathered fades by `decay` with every token. The first `n_sink` positions and the newest
`grace` rows are protected. The paper uses the model's queries, forgets nothing and protects no sinks.

paper: the softmax attention of the model's queries, added up over every query seen, a row's own included; query
heads that share a KV head are summed, since the authors' models share none. The newest
floor(`recent_ratio` x budget) rows stay, the rest of the budget goes to the highest sums. The paper's algorithm
evicts at every token; the authors' code cuts a prompt once, after all of it attended to all of it. Here a prompt
is cut after each chunk, so that the size is constant; `evict_block=1` is the paper's algorithm to the letter.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.errors import ConfigError
from velox_eval.methods.accumulate import accumulated, accumulated_key_attention, query_attention
from velox_eval.methods.policy import Layer, Policy, Rows, State
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK
from velox_eval.mlx import mx


class H2O(Policy):
    """Ranks by cumulative key-as-query attention that fades."""

    chooses_together = True
    key_as_query = True
    slot_state = ("mass",)

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.protected_recent = int(params["grace"])
        self.decay = float(params["decay"])

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `mass` [B, H, C]: the attention each row gathered."""
        return {"mass": accumulated_key_attention(rows, state.get("mass"), self.decay)}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the attention each row gathered."""
        return state["mass"]


class H2OPaper(Policy):
    """Ranks by the cumulative attention of the model's queries; a share of the budget goes to recent rows."""

    chooses_together = True
    needs_queries = True
    slot_state = ("mass",)

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `mass` [B, H, C]: the attention each row gathered, summed over grouped query heads."""
        return {"mass": accumulated(rows, state.get("mass"), query_attention(rows).sum(axis=2))}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the attention each row gathered, +inf for recent rows."""
        recent = budget_share(rows, float(self.params["recent_ratio"]))
        return mx.where(rows.positions > rows.newest - recent, mx.inf, state["mass"])


def budget_share(rows: Rows, ratio: float) -> mx.array | int:
    """Returns floor(ratio x budget) rows: an int, or int32 [B, 1, 1] where budgets differ."""
    counts = [0 if budget is None else int(ratio * budget + 1e-9) for budget in rows.budgets]
    return counts[0] if len(set(counts)) == 1 else mx.array(counts, mx.int32)[:, None, None]


def check_protected(budget: int, params: Mapping[str, Value], recent: str) -> None:
    """Raises ConfigError unless sinks and the recent rows that parameter `recent` protects leave one to evict."""
    if int(params["n_sink"]) + int(params[recent]) >= budget:
        raise ConfigError(
            f"n_sink={params['n_sink']} plus {recent}={params[recent]} must be below budget={budget}: "
            "no row could be evicted"
        )


SPEC = MethodSpec(
    name="h2o",
    family="attention",
    ranks_by="cumulative attention over all history",
    paper="H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models "
    "(Zhang et al., NeurIPS 2023, arXiv:2306.14048)",
    code="https://github.com/FMInference/H2O",
    variants={
        "adapted": Variant(
            policy=H2O,
            parameters=(
                N_SINK,
                Parameter("grace", 16, "newest rows never evicted, so that each can gather attention", minimum=0),
                Parameter("decay", 0.98, "what is left, after one token, of the attention gathered", 0.01, 1.0),
            ),
            capacity="budget",
            differs="keys instead of queries, none to themselves; gathered attention fades; sinks protected; "
            "a fixed number of recent rows instead of half the budget",
            min_budget=lambda params: int(params["n_sink"]) + int(params["grace"]) + 1,
            check=lambda budget, params: check_protected(budget, params, "grace"),
        ),
        "paper": Variant(
            policy=H2OPaper,
            parameters=(Parameter("recent_ratio", 0.5, "share of the budget that the newest rows get", 0.0, 1.0),),
            capacity="budget",
            differs="query heads that share a KV head are summed; a prompt is cut after each chunk, where the "
            "authors' code cuts it once",
            needs_queries=True,
        ),
    },
)
