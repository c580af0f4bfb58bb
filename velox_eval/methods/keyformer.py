"""Keyformer: H2O's gathered attention, loosened by Gumbel noise so that no row is lost to one low reading.

Paper: Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative Inference (Adnan et al.,
MLSys 2024, arXiv:2403.09054). Official code: https://github.com/d-matrix-ai/keyformer-llm

adapted (VeloxQuant-MLX 0.94.15): keys stand in for queries and gather as in h2o, without fading. A row draws one
Gumbel number when it comes in; tau times that is added to what it gathered when rows are ranked. Tau runs from
`tau_init` to `tau_end` over the first `anneal_steps` tokens (0: it stays). The first `n_sink` positions and the
newest `recent` rows are protected. The noise is VeloxQuant-MLX's own where the sample's seed is 0, in the first
layer: there every layer and sample sees the same noise, and a head's depends on its place in the batch; here it
depends on sample, layer, head and position.

paper: what a query pays is softmax((logits + noise) / tau), with new noise for every query and row, added up over
every query seen. Tau is `tau_init` for the prompt and moves to `tau_end` over `anneal_steps` tokens that come in
alone (the prompt's last one and the decoded), where it stays (the authors' code adds 0.01 a token: 1 to 2 over
100). The newest floor(`recent_ratio` x budget) rows stay, the rest of the budget goes to the highest sums. Query
heads that share a KV head are summed; the authors' models share none. Their code cuts the prompt once and evicts at
every eighth token; here a prompt is cut after each chunk, and rows go at every token.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.methods.accumulate import accumulated, accumulated_key_attention, new_positions, query_logits
from velox_eval.methods.draws import by_head, drawn, drawn_ahead, gumbel, hashed_uniform, keyed_uniform, stream
from velox_eval.methods.h2o import budget_share, check_protected
from velox_eval.methods.policy import Layer, Policy, Rows, State, placed
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK
from velox_eval.mlx import mx

LOW = 1e-9  # least uniform number of the adapted rule, whose logarithm is taken twice


class Keyformer(Policy):
    """Ranks by cumulative key-as-query attention plus noise that is drawn once a row."""

    chooses_together = True
    key_as_query = True
    slot_state = ("mass", "noise")

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__(params, layer)
        self.protected_recent = int(params["recent"])

    def initial_state(self) -> State:
        """Returns `streams` int64 [1, 1, 1], where the sequence's draws begin."""
        return {"streams": stream(self.layer, int(self.params["seed"]))}

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `mass` [B, H, C], the `noise` [B, H, C] drawn for each row, and draws made `ahead`."""
        streams = by_head(state["streams"], rows.heads)
        if rows.new_slots is None:
            ahead = drawn_ahead(streams, rows.seen, None, LOW)  # for the row after these
            uniform = keyed_uniform(streams, new_positions(rows)[..., 0], LOW)
        else:
            newest = [seen - 1 for seen in rows.seen]
            ahead = drawn_ahead(streams, newest, state.get("ahead"), LOW)
            uniform = drawn(ahead, newest)
        return {
            "streams": state["streams"],
            "ahead": ahead,
            "mass": accumulated_key_attention(rows, state.get("mass")),
            "noise": placed(rows, state.get("noise"), gumbel(uniform)),
        }

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns what each row gathered plus its noise at the present temperature."""
        return state["mass"] + _tau(self.params, rows.newest) * state["noise"]


class KeyformerPaper(Policy):
    """Ranks by the cumulative Gumbel softmax of the model's logits; a share of the budget goes to recent rows."""

    chooses_together = True
    needs_queries = True
    slot_state = ("mass",)

    def initial_state(self) -> State:
        """Returns `streams` int64 [1, 1, 1] and the number of tokens `decoded` int32 [1, 1, 1]."""
        return {
            "streams": stream(self.layer, int(self.params["seed"])),
            "decoded": mx.zeros((1, 1, 1), mx.int32),
        }

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `mass` [B, H, C] after the new queries, and one more token decoded if it came in alone."""
        decoded = state["decoded"] if rows.new_slots is None else state["decoded"] + 1
        logits = query_logits(rows)
        batch, heads, group, _, _ = logits.shape
        streams = by_head(state["streams"], heads * group).reshape(batch, heads, group, 1, 1)
        places = (new_positions(rows)[:, :, None], rows.positions[:, :, None, None])
        noise = gumbel(hashed_uniform(streams, places))
        tau = _tau(self.params, decoded)
        temperature = tau if isinstance(tau, float) else tau[..., None, None]
        paid = mx.softmax((logits + noise) / temperature, axis=-1).sum(axis=2)
        return {
            "streams": state["streams"],
            "decoded": decoded,
            "mass": accumulated(rows, state.get("mass"), paid),
        }

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns what each row gathered, +inf for recent rows."""
        recent = budget_share(rows, float(self.params["recent_ratio"]))
        return mx.where(rows.positions > rows.newest - recent, mx.inf, state["mass"])


def _tau(params: Mapping[str, Value], step: mx.array | int) -> mx.array | float:
    """Returns the temperature at `step`: from tau_init to tau_end over anneal_steps, then flat."""
    first, last, steps = float(params["tau_init"]), float(params["tau_end"]), int(params["anneal_steps"])
    if steps == 0 or first == last:
        return first
    reached = min(step, steps) if isinstance(step, int) else mx.minimum(step, steps).astype(mx.float32)
    return first + reached * ((last - first) / steps)


SEED = Parameter("seed", 0, "another lot of noise", minimum=0, maximum=1000)

SPEC = MethodSpec(
    name="keyformer",
    family="attention",
    ranks_by="accumulated scores with seeded Gumbel noise and temperature",
    paper="Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative Inference "
    "(Adnan et al., MLSys 2024, arXiv:2403.09054)",
    code="https://github.com/d-matrix-ai/keyformer-llm",
    variants={
        "adapted": Variant(
            policy=Keyformer,
            parameters=(
                N_SINK,
                Parameter("recent", 0, "newest rows never evicted", minimum=0),
                Parameter("tau_init", 1.0, "temperature of the noise at the first token", minimum=0.0),
                Parameter("tau_end", 1.0, "temperature after anneal_steps tokens", minimum=0.0),
                Parameter("anneal_steps", 0, "tokens from tau_init to tau_end; 0: it stays at tau_init", minimum=0),
                SEED,
            ),
            capacity="budget",
            differs="keys instead of queries; noise drawn once a row and added to the sum, instead of to each logit; "
            "sinks protected, no recent rows",
            min_budget=lambda params: int(params["n_sink"]) + int(params["recent"]) + 1,
            check=lambda budget, params: check_protected(budget, params, "recent"),
        ),
        "paper": Variant(
            policy=KeyformerPaper,
            parameters=(
                Parameter("recent_ratio", 0.3, "share of the budget that the newest rows get", 0.0, 1.0),
                Parameter("tau_init", 1.0, "temperature while the prompt comes in", minimum=0.01),
                Parameter("tau_end", 2.0, "temperature after anneal_steps decoded tokens", minimum=0.01),
                Parameter("anneal_steps", 100, "decoded tokens from tau_init to tau_end; 0: it stays", minimum=0),
                SEED,
            ),
            capacity="budget",
            differs="query heads that share a KV head are summed; a prompt is cut after each chunk; rows go at every "
            "token, where the authors' code waits for eight",
            needs_queries=True,
        ),
    },
)
