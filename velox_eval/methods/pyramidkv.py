"""PyramidKV: the first layers keep many rows, the last few; the mean over layers is the budget.

Paper: PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling (Cai et al., 2024,
arXiv:2406.02069). Official code: https://github.com/Zefan-Cai/KVCache-Factory (PyramidKV)

adapted (VeloxQuant-MLX 0.94.15): inside a layer, rows are ranked by the attention they gathered, with keys in place
of queries, as h2o does without fading; the first `n_sink` positions and the newest row stay. Budgets fall linearly
from budget + (beta - 1) x (budget - n_sink - 1) to as far below it; a layer that would fall under its sinks and one
row is raised to them at the others' cost. There budgets are rounded one by one; here so that their mean is the budget
exactly. There a layer cuts as soon as its own budget is passed; here none does before the mean budget is, so that a
budget at the final length changes nothing, and a layer with a small share cuts down to it then, at once.

paper: rows are ranked as in snapkv:paper, once, at the prompt's end; decoded rows all stay. Beside the window, the
last layer gets 1 / beta of the mean, the first twice the mean less that, the others linearly between. Where the first
layer would get more than the prompt has, it gets the prompt, and the last layer what is left; a prompt under twice
the mean gets equal budgets (the authors' code). The code's step is a whole number of rows, which leaves a mean a
little above the budget; here it is the budget exactly. Window, kernel and pooling are snapkv's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velox_eval.methods.h2o import H2O
from velox_eval.methods.policy import Layer, Policy
from velox_eval.methods.shares import whole_shares
from velox_eval.methods.snapkv import WINDOW, SnapKVPaper, check_window
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK, check_sinks, min_budget_sinks


def gathered_mass(params: Mapping[str, Value], layer: Layer | None = None) -> Policy:
    """Returns h2o's policy without fading, with sinks and the newest row protected."""
    return H2O({"n_sink": params["n_sink"], "grace": 1, "decay": 1.0}, layer)


def _taper(first: float, last: float, layers: int) -> list[float]:
    """A number for each layer, from `first` to `last` in equal steps."""
    return [first + (last - first) * layer / max(layers - 1, 1) for layer in range(layers)]


def _shares(budget: int, params: Mapping[str, Value], layers: int) -> list[int | None]:
    least = int(params["n_sink"]) + 1
    if layers == 1:
        return [budget]
    span = (budget - least) * (float(params["beta"]) - 1.0)
    return list(whole_shares(_taper(budget + span, budget - span, layers), budget, least))


def _shares_paper(budget: int, params: Mapping[str, Value], layers: int, prompt: int | None = None) -> list[int | None]:
    """Budgets for a prompt of so many tokens; None: one longer than any budget."""
    window = int(params["window"])
    beside = budget - window
    last = beside // int(params["beta"])
    first = 2 * beside - last
    if layers == 1 or (prompt is not None and prompt < max(2 * beside, budget)):
        return [budget] * layers
    if prompt is not None and first > prompt - window:
        first = prompt - window
        last = 2 * beside - first
    return [window + share for share in whole_shares(_taper(first, last, layers), beside, 0)]


def _fit_to_prompt(session: Any) -> None:
    """Gives the session's layers their budgets, now that the prompt's length is known."""
    caches, tokens = session.evicting, len(session.prompt.tokens)
    for cache, share in zip(
        caches, _shares_paper(session.budget, session.method.params, len(caches), tokens), strict=True
    ):
        cache.budgets = [share]


SPEC = MethodSpec(
    name="pyramidkv",
    family="attention",
    ranks_by="budgets falling by depth, constant size",
    paper="PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling "
    "(Cai et al., 2024, arXiv:2406.02069)",
    code="https://github.com/Zefan-Cai/KVCache-Factory",
    variants={
        "adapted": Variant(
            policy=gathered_mass,
            parameters=(
                N_SINK,
                Parameter("beta", 2.0, "steepness: 1 is flat; at 2 the last layer has next to nothing", minimum=1.0),
            ),
            capacity="layer budgets whose mean is budget; no layer cuts before budget rows were seen",
            differs="rows ranked by the attention they gathered, keys instead of queries, not by a window; rows go "
            "while decoding too; sinks protected; another taper",
            min_budget=min_budget_sinks,
            check=check_sinks,
            layer_budgets=_shares,
        ),
        "paper": Variant(
            policy=SnapKVPaper,
            parameters=(
                *WINDOW,
                Parameter("beta", 20, "the last layer gets 1 / beta of the mean beside the window", minimum=1),
            ),
            capacity="layer budgets whose mean is budget after the prompt, which is held whole until its end; every "
            "decoded row is kept",
            differs="rows are kept per KV head, by the mean over its query heads, not per query head; the mean of the "
            "layers' budgets is the budget exactly",
            min_budget=lambda params: int(params["window"]),
            check=check_window,
            needs_queries=True,
            needs_session=True,
            layer_budgets=_shares_paper,
            after_prefill=_fit_to_prompt,
            fits_by_length=True,
        ),
    },
)
