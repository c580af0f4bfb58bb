"""TOVA: evicts the row that the newest token attends to least; nothing is remembered between steps.

Paper: Transformers are Multi-State RNNs (Oren et al., 2024, arXiv:2401.06104).
Official code: https://github.com/schwartz-lab-NLP/TOVA

adapted (VeloxQuant-MLX 0.94.15): the newest key stands in for the query and each KV head ranks its own rows;
the first `n_sink` positions are protected. The paper uses the last query averaged over heads and protects
nothing. The newest row itself may be the one to go.

paper: the last query's attention, averaged over all query heads of the layer, so that the same rows go in every
head; nothing is protected. A prompt is cut after each chunk, by the chunk's last query: the authors' code cuts it
once, by its last query.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.errors import ConfigError
from velox_eval.methods.policy import Policy, Rows, State, latest_attention, newest_key_attention
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.mlx import mx

N_SINK = Parameter("n_sink", 4, "first positions never evicted", minimum=0)


class Tova(Policy):
    """Ranks by the newest key's attention."""

    chooses_together = True
    key_as_query = True

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the attention the newest key pays to each row."""
        return newest_key_attention(rows)


class TovaPaper(Policy):
    """Ranks by the last query's attention, averaged over all heads of the layer."""

    chooses_together = True
    needs_queries = True

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the mean attention of the last query of all heads to each row, the same for every KV head."""
        mean = latest_attention(rows).mean(axis=(1, 2))
        return mx.broadcast_to(mean[:, None], rows.positions.shape)


def check_sinks(budget: int, params: Mapping[str, Value]) -> None:
    """Raises ConfigError unless the sinks leave at least one row to evict."""
    if int(params["n_sink"]) >= budget:
        raise ConfigError(f"n_sink={params['n_sink']} must be below budget={budget}: sinks alone would fill the cache")


def min_budget_sinks(params: Mapping[str, Value]) -> int:
    """Returns the smallest budget that holds the sinks and one more row."""
    return int(params["n_sink"]) + 1


SPEC = MethodSpec(
    name="tova",
    family="attention",
    ranks_by="the single latest key's attention, per head",
    paper="Transformers are Multi-State RNNs (Oren et al., 2024, arXiv:2401.06104)",
    code="https://github.com/schwartz-lab-NLP/TOVA",
    variants={
        "adapted": Variant(
            policy=Tova,
            parameters=(N_SINK,),
            capacity="budget",
            differs="newest key instead of query; per KV head instead of the mean over heads; sinks protected",
            min_budget=min_budget_sinks,
            check=check_sinks,
        ),
        "paper": Variant(
            policy=TovaPaper,
            parameters=(),
            capacity="budget",
            differs="a prompt is cut after each chunk, where the authors' code cuts it once",
            needs_queries=True,
        ),
    },
)
