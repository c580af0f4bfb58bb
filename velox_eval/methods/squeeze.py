"""SqueezeAttention: layers get budgets by how much they do; the mean over layers is the budget.

Paper: SqueezeAttention: 2D Management of KV-Cache in LLM Inference via Layer-wise Optimal Budget (Wang et al., ICLR
2025, arXiv:2404.04793). Official code: https://github.com/hetailang/SqueezeAttention

adapted (VeloxQuant-MLX 0.94.15): inside a layer, rows are ranked by the attention they gathered, keys in place of
queries, as h2o does without fading; the first `n_sink` positions and the newest row stay. Once the prompt is in, a
layer's concentration is the mean cosine between any two keys of its first KV head; the more concentrated, the smaller
its budget: budget x (1 - strength + strength x w), w its share of 1 - concentration, on average 1. There the first
chunk stands for the prompt, the last layer has its own budget from the start, and budgets are rounded one by one and
raised to sinks and a row at nobody's cost; here it is the whole prompt, every layer holds the mean budget until its
end, and the mean of the layers' budgets is the budget exactly.

paper: a layer's importance is how far its attention block turns the hidden states of the prompt: the cosine between
the residual stream before and after, averaged over tokens; decoder layers are watched while the prompt is read. The
cosines fall into three groups (k-means, here the exact optimum in one dimension); the layers of the highest get
`share` of the mean budget, the others what that frees, equally. Inside a layer any rule for rows may work: `policy`
is h2o (the paper's rule, half of it recent) or sliding_window, two of the authors' three. The prompt is held whole
and cut once, at its end; rows go while decoding too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, combinations, pairwise
from typing import Any

from velox_eval.errors import MethodError
from velox_eval.methods.h2o import H2O, H2OPaper
from velox_eval.methods.policy import Layer, Policy, Rows, State
from velox_eval.methods.shares import whole_shares
from velox_eval.methods.sliding_window import SlidingWindow
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK, check_sinks, min_budget_sinks
from velox_eval.mlx import mx

GROUPS = 3


class Squeeze(H2O):
    """Ranks by gathered attention; while the prompt comes in, adds up the directions of the first head's keys."""

    def __init__(self, params: Mapping[str, Value], layer: Layer | None = None) -> None:
        super().__init__({"n_sink": params["n_sink"], "grace": 1, "decay": 1.0}, layer)

    def observe(self, rows: Rows, state: State) -> State:
        """Returns h2o's state and, until budgets are settled, `direction` [B, D]: the sum of unit keys of head 0."""
        after = super().observe(rows, state)
        if self.layer.shared.get("settled"):
            return after
        keys = rows.new_keys[:, 0].astype(mx.float32)
        units = (keys / (mx.linalg.norm(keys, axis=-1, keepdims=True) + 1e-8)).sum(axis=1)
        return {**after, "direction": units + state["direction"] if "direction" in state else units}


class H2OAtTheEnd(H2OPaper):
    """h2o:paper that cuts the prompt once."""

    holds_prompt = True


class SlidingWindowAtTheEnd(SlidingWindow):
    """sliding_window that cuts the prompt once."""

    holds_prompt = True


def _inside(params: Mapping[str, Value], layer: Layer | None = None) -> Policy:
    """The policy that works inside a layer."""
    if params["policy"] == "h2o":
        return H2OAtTheEnd({"recent_ratio": 0.5}, layer)
    return SlidingWindowAtTheEnd({}, layer)


def by_concentration(concentrations: Sequence[float], budget: int, least: int, strength: float) -> list[int]:
    """Returns a budget for each layer: the lower its concentration (cut to 0 to 1), the higher; mean `budget`."""
    free = [1.0 - min(max(value, 0.0), 1.0) for value in concentrations]
    total = sum(free)
    weights = [value * len(free) / total if total > 0 else 1.0 for value in free]
    return whole_shares([budget * (1.0 - strength + strength * weight) for weight in weights], budget, least)


def by_importance(cosines: Sequence[float], budget: int, share: float) -> list[int]:
    """Returns a budget for each layer: `share` of the mean for the group that turns its input least; mean `budget`."""
    spared = least_important(cosines)
    others = len(cosines) - len(spared)
    if not spared:
        return [budget] * len(cosines)
    rest = budget * (len(cosines) - share * len(spared)) / others
    return whole_shares([share * budget if i in spared else rest for i in range(len(cosines))], budget, 1)


def least_important(cosines: Sequence[float]) -> set[int]:
    """Returns the layers of the group with the highest cosines, of three with the least spread; none if all are equal.

    Fewer distinct values make fewer groups.
    """
    order = sorted(range(len(cosines)), key=lambda layer: cosines[layer])
    values = [cosines[layer] for layer in order]
    groups = min(GROUPS, len(set(values)))
    if groups < 2:
        return set()
    sums = [0.0, *accumulate(values)]
    squares = [0.0, *accumulate(value * value for value in values)]

    def spread(start: int, end: int) -> float:
        return squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)

    def total(cuts: tuple[int, ...]) -> float:
        edges = (0, *cuts, len(values))
        return sum(spread(start, end) for start, end in pairwise(edges))

    best = min(combinations(range(1, len(values)), groups - 1), key=total)
    return set(order[best[-1] :])


def _settle(session: Any) -> None:
    """Gives the session's layers their budgets by the concentration of the prompt's keys."""
    caches, count = session.evicting, len(session.prompt.tokens)
    session.shared["settled"] = True
    directions = mx.stack([cache.policy_state.pop("direction")[0] for cache in caches])
    lengths = _numbers((directions * directions).sum(axis=-1))
    concentrations = [(length - count) / (count * (count - 1)) if count > 1 else 0.0 for length in lengths]
    params = session.method.params
    shares = by_concentration(concentrations, session.budget, int(params["n_sink"]) + 1, float(params["strength"]))
    _give(caches, shares)


def _watch(session: Any) -> AbstractContextManager[None]:
    """Adds up the cosines of each layer while the prompt is read."""
    turned: dict[int, tuple[mx.array, int]] = {}
    session.shared["turned"] = turned

    def told(layer: int, before: mx.array, after: mx.array) -> None:
        x, y = before.astype(mx.float32), after.astype(mx.float32)
        cosine = (x * y).sum(axis=-1) / (mx.linalg.norm(x, axis=-1) * mx.linalg.norm(y, axis=-1) + 1e-12)
        total, count = turned.get(layer, (mx.array(0.0), 0))
        turned[layer] = (total + cosine.sum(), count + cosine.size)
        mx.async_eval(turned[layer][0])  # else the graph would keep every chunk's hidden states

    watching: AbstractContextManager[None] = session.watch_layers(told)
    return watching


def _settle_paper(session: Any) -> None:
    """Gives the session's layers their budgets by how far they turned the prompt's hidden states."""
    caches, turned = session.evicting, session.shared.pop("turned", {})
    if len(turned) < len(caches):
        raise MethodError("squeeze:paper watches the layers read the prompt: read it inside MethodSession.reading()")
    means = mx.stack([turned[layer][0] / turned[layer][1] for layer in range(len(caches))])
    _give(caches, by_importance(_numbers(means), session.budget, float(session.method.params["share"])))


def _numbers(array: mx.array) -> list[float]:
    return [float(value) for value in array]


def _give(caches: Sequence[Any], shares: Sequence[int]) -> None:
    for cache, share in zip(caches, shares, strict=True):
        cache.budgets = [share]


SPEC = MethodSpec(
    name="squeeze",
    family="attention",
    ranks_by="layer budgets from how much a layer changes its input",
    paper="SqueezeAttention: 2D Management of KV-Cache in LLM Inference via Layer-wise Optimal Budget "
    "(Wang et al., ICLR 2025, arXiv:2404.04793)",
    code="https://github.com/hetailang/SqueezeAttention",
    variants={
        "adapted": Variant(
            policy=Squeeze,
            parameters=(
                N_SINK,
                Parameter("strength", 1.0, "0: equal budgets; 1: wholly by concentration", minimum=0.0, maximum=1.0),
            ),
            capacity="budget while the prompt comes in, then layer budgets whose mean is budget",
            differs="concentration of keys instead of cosines of hidden states, in proportion instead of by groups; "
            "rows ranked by gathered attention with keys instead of queries; sinks protected",
            min_budget=min_budget_sinks,
            check=check_sinks,
            needs_session=True,
            after_prefill=_settle,
        ),
        "paper": Variant(
            policy=_inside,
            parameters=(
                Parameter("share", 0.3, "of the mean budget, for the least important layers", minimum=0.0, maximum=1.0),
                Parameter("policy", "h2o", "which rows a layer keeps", choices=("h2o", "sliding_window")),
            ),
            capacity="layer budgets whose mean is budget after the prompt, which is held whole until its end",
            differs="the three groups are the exact optimum instead of what k-means finds; the mean of the layers' "
            "budgets is the budget exactly",
            needs_queries=True,
            needs_session=True,
            while_reading=_watch,
            after_prefill=_settle_paper,
        ),
    },
)
