"""The test matrix: one row a method, variant and setting; every property in this folder runs on every row.

`reference` is the rule written again for one KV head, slowly and for clarity, in NumPy, in references.py and its
siblings. `installed` names the installed package's cache for the adapted rule (see test_rules.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from velox_eval.methods.policy import Layer

from . import references_accumulating as accumulating
from . import references_layers as layers
from . import references_plain as plain
from . import references_prompt as prompt
from .references import (
    Head,
    Reference,
    by_latest_key,
    by_latest_queries,
    by_recency,
    by_recent_window,
    by_reconstruction,
    ranked,
)

__all__ = ["CASES", "EVICTING", "Case", "Head", "Reference"]


@dataclass(frozen=True)
class Case:
    """One row of the matrix."""

    method: str  # name[:variant]
    params: Mapping[str, Any] = field(default_factory=dict)
    budget: int = 12
    smallest: int = 1  # smallest legal budget with these parameters
    reference: Callable[..., Reference] | None = None
    installed: str | None = None  # the installed package's method name, where it has the same rule
    grows: bool = False  # decoded rows are all kept
    holds_prompt: bool = False  # the prompt is cut once, at its end
    recent: int = 0  # newest rows that always survive
    slack: int = 0  # rows over the budget while decoding
    layer: Layer = field(default_factory=Layer)  # which of how many, for methods whose layers differ
    draws: bool = False  # draws by lot: the package's lot depends on the place in the batch

    @property
    def id(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.params.items())
        where = f"[{self.layer.index}/{self.layer.count}]" if self.layer.count > 1 else ""
        return f"{self.method}({settings}){where}"

    @property
    def sinks(self) -> int:
        return int(self.params.get("n_sink", 0))

    @property
    def warm_up(self) -> int:
        """Tokens before which nothing is evicted."""
        return int(self.params.get("calib_tokens", 0))


CASES = (
    Case("full", budget=10**6),
    Case("random", reference=ranked(plain.by_lot)),
    Case("random", {"seed": 7, "n_sink": 3}, smallest=4, reference=ranked(plain.by_lot)),
    Case("sliding_window", reference=ranked(by_recency), recent=1),
    *(
        Case(
            method,
            {"n_sink": sinks},
            smallest=sinks + 1,
            reference=ranked(plain.by_recency_after_sinks),
            installed=None if "paper" in method else "streaming_llm",
            recent=1,
        )
        for method in ("streaming_llm", "streaming_llm:paper")
        for sinks in (0, 4, 11)
    ),
    *(
        Case(
            "knorm",
            {"n_sink": sinks, "recent": recent, "keep": keep},
            smallest=sinks + recent + 1,
            reference=ranked(plain.by_low_norm),
            installed="knorm",
            recent=recent,
        )
        for sinks, recent, keep in [(4, 0, "low"), (0, 0, "low"), (1, 5, "low"), (2, 0, "high")]
    ),
    Case("knorm:paper", reference=ranked(plain.by_low_norm)),
    *(
        Case(
            "qfilters",
            {"n_sink": sinks, "recent": recent, "calib_tokens": first, "sign": sign},
            smallest=sinks + recent + 1,
            reference=plain.QFilters,
            installed="qfilters",
            recent=recent,
        )
        for sinks, recent, first, sign in [(2, 0, 8, 1), (0, 3, 12, -1), (1, 2, 20, 1)]
    ),
    *(
        Case("qfilters:paper", {"window": window}, smallest=window + 1, reference=plain.QFiltersPaper, recent=window)
        for window in (0, 4)
    ),
    *(
        Case(
            "h2o",
            {"n_sink": sinks, "grace": grace, "decay": decay},
            smallest=sinks + grace + 1,
            reference=accumulating.H2O,
            installed="h2o",
            recent=grace,
        )
        for sinks, grace, decay in [(2, 3, 0.98), (0, 0, 1.0), (4, 1, 0.7)]
    ),
    Case("h2o:paper", reference=accumulating.H2OPaper),
    Case("h2o:paper", {"recent_ratio": 0.0}, reference=accumulating.H2OPaper),
    Case("h2o:paper", {"recent_ratio": 0.3}, budget=11, reference=accumulating.H2OPaper),
    *(
        Case(
            "keyformer",
            {"n_sink": sinks, "recent": recent, "seed": seed, **tau},
            smallest=sinks + recent + 1,
            reference=accumulating.Keyformer,
            installed="keyformer",
            recent=recent,
            draws=True,
        )
        for sinks, recent, seed, tau in [
            (4, 0, 0, {}),
            (0, 3, 5, {"tau_end": 2.0, "anneal_steps": 30}),
            (2, 1, 1, {"tau_init": 0.0, "tau_end": 0.5, "anneal_steps": 7}),
        ]
    ),
    Case("keyformer:paper", reference=accumulating.KeyformerPaper),
    Case("keyformer:paper", {"recent_ratio": 0.5, "tau_end": 1.0, "seed": 3}, reference=accumulating.KeyformerPaper),
    Case(
        "chunkkv",
        {"n_sink": 2, "chunk_size": 1},
        smallest=3,
        reference=accumulating.ChunkKV,
        installed="chunkkv",
    ),
    *(
        Case(
            "chunkkv",
            {"n_sink": sinks, "chunk_size": size, "score": score},
            smallest=sinks + 1 if sinks else size,
            reference=accumulating.ChunkKV,
        )
        for sinks, size, score in [(2, 4, "attn_mass"), (0, 3, "attn_mass"), (1, 8, "key_norm")]
    ),
    *(
        Case(
            "chunkkv:paper",
            {"window": window, "chunk_size": size},
            smallest=window + 1,
            reference=prompt.ChunkKVPaper,
            grows=True,
            holds_prompt=True,
            recent=window,
        )
        for window, size in [(3, 2), (1, 10), (5, 1)]
    ),
    *(
        Case(
            "cam",
            {"n_sink": sinks, **settings},
            smallest=sinks + 1,
            reference=accumulating.CaM,
            installed="cam",
            draws=True,
        )
        for sinks, settings in [
            (2, {}),
            (0, {"merge": "mean", "seed": 4}),
            (3, {"merge_gate": False}),
            (1, {"merge": "drop"}),
        ]
    ),
    Case("cam:paper", {"merge_rows": 3}, reference=accumulating.CaMPaper, recent=1),
    Case("cam:paper", {"start_ratio": 0.2, "seed": 2}, budget=9, reference=accumulating.CaMPaper, recent=1),
    Case("tova", {"n_sink": 0}, reference=ranked(by_latest_key), installed="tova"),
    Case("tova", {"n_sink": 3}, smallest=4, reference=ranked(by_latest_key), installed="tova"),
    Case("tova:paper", reference=ranked(by_latest_queries)),
    Case("tova:paper", budget=3, reference=ranked(by_latest_queries)),
    Case(
        "morphkv",
        {"n_sink": 2, "window": 1},
        smallest=4,
        reference=ranked(by_recent_window),
        installed="morphkv",
        recent=1,
    ),
    Case(
        "morphkv",
        {"n_sink": 2, "window": 5},
        smallest=8,
        reference=ranked(by_recent_window),
        installed="morphkv",
        recent=5,
    ),
    Case(
        "morphkv",
        {"n_sink": 0, "window": 4},
        smallest=5,
        reference=ranked(by_recent_window),
        installed="morphkv",
        recent=4,
    ),
    *(
        Case(
            "morphkv:paper",
            params,
            smallest=params["window"] + 2,
            reference=prompt.MorphKVPaper,
            holds_prompt=True,
            recent=params["window"] + 1,
            slack=params.get("interval", 1) - 1,
        )
        for params in (
            {"window": 5},
            {"window": 2, "fusion": "sum"},
            {"window": 4, "group": "logit_sum"},
            {"window": 6, "fusion": "sum", "group": "logit_sum", "interval": 3},
        )
    ),
    Case(
        "kvzip",
        {"n_sink": 2, "probe": "context"},
        smallest=3,
        reference=ranked(by_reconstruction),
        installed="kvzip",
    ),
    Case(
        "kvzip",
        {"n_sink": 2, "probe": "latest"},
        smallest=3,
        reference=ranked(by_reconstruction),
        installed="kvzip",
    ),
    *(
        Case(
            "snapkv",
            {"n_sink": sinks, "obs_window": window},
            smallest=max(sinks + 1, window),
            reference=prompt.SnapKV,
            installed="snapkv",
            grows=True,
        )
        for sinks, window in [(2, 4), (0, 12), (3, 1)]
    ),
    *(
        Case(
            "snapkv:paper",
            {"window": window, "kernel": kernel, "pooling": pooling},
            smallest=window,
            reference=prompt.SnapKVPaper,
            holds_prompt=True,
            grows=True,
            recent=window,
        )
        for window, kernel, pooling in [(4, 3, "max"), (5, 7, "mean"), (1, 1, "max")]
    ),
    *(
        Case(
            "pyramidkv",
            {"n_sink": sinks, "beta": beta},
            smallest=sinks + 1,
            reference=layers.GatheredMass,
            installed=installed,
            recent=1,
            layer=layer,
        )
        for sinks, beta, layer, installed in [
            (2, 2.0, Layer(), "pyramidkv"),
            (0, 2.0, Layer(0, 4), "pyramidkv"),
            (3, 5.0, Layer(1, 6), "pyramidkv"),
            (2, 2.0, Layer(3, 4), None),
        ]
    ),
    *(
        Case(
            "squeeze",
            {"n_sink": sinks, "strength": strength},
            smallest=sinks + 1,
            reference=layers.GatheredMass,
            installed="squeeze",
            recent=1,
        )
        for sinks, strength in [(2, 1.0), (0, 0.5)]
    ),
    Case("squeeze:paper", reference=layers.H2OAtTheEnd, holds_prompt=True),
    Case(
        "squeeze:paper",
        {"policy": "sliding_window", "share": 0.0},
        reference=layers.SlidingWindowAtTheEnd,
        holds_prompt=True,
        recent=1,
    ),
    *(
        Case(
            "pyramidkv:paper",
            {"window": window, "kernel": 3, "beta": beta},
            smallest=window,
            reference=prompt.SnapKVPaper,
            holds_prompt=True,
            grows=True,
            recent=window,
            layer=layer,
        )
        for window, beta, layer in [(4, 20, Layer(0, 3)), (3, 4, Layer(4, 5))]
    ),
    *(
        Case(
            "kvzip:paper",
            {"n_sink": sinks, "chunk": chunk},
            smallest=sinks + 1,
            reference=prompt.KVzipPaper,
            holds_prompt=True,
            grows=True,
        )
        for sinks, chunk in [(2, 7), (0, 2000)]
    ),
)
EVICTING = tuple(case for case in CASES if case.method != "full")
