"""The real-model counterpart as one study: every method's recall, by moment, with paired tests over texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from velox_eval.engine.models import LoadedModel
from velox_eval.mechanism.evidence import Tested, weigh
from velox_eval.mechanism.recall import BLOCK, ORACLE, RETURNS, STAYS, Recall, Refused, moments, recalls
from velox_eval.mechanism.regimes import Array
from velox_eval.mechanism.texts import shifting_texts
from velox_eval.methods import METHODS

DEFAULT_BUDGET = 64
CONTROLS = ("random", "sliding_window", "streaming_llm")
SENSITIVE = ("morphkv", "kvzip", "h2o", "tova")  # methods also fed in one chunk, to see what blocks do
COMPARED = ("morphkv", "morphkv:paper", "kvzip", "kvzip:paper")


@dataclass(frozen=True)
class RealStudy:
    """Recall of every method on one model; `tests` by what is held against what, at the moment the topic returns."""

    model: str
    texts_sha256: str
    budget: int
    prompt_tokens: dict[str, float]  # by kind of moment: mean over texts
    recalls: tuple[Recall, ...]
    refused: tuple[Refused, ...]
    tests: dict[tuple[str, str], Tested]

    def methods(self) -> list[str]:
        """Returns the methods that ran, the oracle first."""
        return list(dict.fromkeys(one.method for one in self.recalls))

    def values(self, method: str, kind: str, measure: str, block: int | None = BLOCK) -> Array:
        """Returns [texts]: a measure of Recall for one kind of moment."""
        return np.array(
            [
                getattr(one, measure)
                for one in self.recalls
                if one.method == method and one.kind == kind and (one.block == block or method == ORACLE)
            ]
        )

    def document(self) -> dict[str, Any]:
        """Returns the study as JSON values."""
        return {
            "model": self.model,
            "texts_sha256": self.texts_sha256,
            "budget": self.budget,
            "prompt_tokens": self.prompt_tokens,
            "recalls": [
                {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(one).items()}
                for one in self.recalls
            ],
            "refused": [asdict(one) for one in self.refused],
            "tests": [{"above": a, "than": b, "moment": RETURNS, **asdict(t)} for (a, b), t in self.tests.items()],
        }


def real_labels(studies: Iterable[str], methods: str) -> list[str]:
    """Returns the methods to run on a model: every variant of the studies' methods and controls, or of all methods."""
    names = METHODS if methods == "all" else [*CONTROLS, "h2o", "tova", *studies]
    return [
        name if variant == "adapted" else f"{name}:{variant}"
        for name in names
        if METHODS[name].default_budget is not None
        for variant in METHODS[name].variants
    ]


def run_real(
    loaded: LoadedModel,
    labels: Sequence[str],
    *,
    budget: int = DEFAULT_BUDGET,
    told: Callable[[str], None] = lambda _label: None,
) -> RealStudy:
    """Returns what every method keeps of the attention that the model's later tokens pay, over the bundled texts."""
    texts, digest = shifting_texts()
    chosen = moments(loaded, texts)
    plan: list[tuple[str, int | None]] = [(label, BLOCK) for label in labels]
    plan += [(label, None) for label in labels if label in SENSITIVE]
    outcomes = list(recalls(loaded, plan, chosen, budget, told=told))
    done = tuple(one for one in outcomes if isinstance(one, Recall))
    study = RealStudy(
        model=loaded.name,
        texts_sha256=digest,
        budget=budget,
        prompt_tokens={k: float(np.mean([m.prompt for m in chosen if m.kind == k])) for k in (STAYS, RETURNS)},
        recalls=done,
        refused=tuple(one for one in outcomes if isinstance(one, Refused)),
        tests={},
    )
    study.tests.update(_tests(study))
    return study


def _tests(study: RealStudy) -> dict[tuple[str, str], Tested]:
    """Each compared method above sinks and recency alone, and its paper rule above the adapted one."""
    ran = set(study.methods())
    pairs = [(label, "streaming_llm") for label in COMPARED]
    pairs += [(f"{label}:paper", label) for label in ("morphkv", "kvzip")]
    return weigh(
        {
            pair: (study.values(pair[0], RETURNS, "beyond_sinks"), study.values(pair[1], RETURNS, "beyond_sinks"))
            for pair in pairs
            if set(pair) <= ran
        }
    )
