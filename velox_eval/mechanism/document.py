"""The result as one JSON document: construction, cells, figures, tests, claims, checks, sensitivity, the real model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from velox_eval import __version__
from velox_eval.mechanism import regimes as built
from velox_eval.mechanism.arms import LEFT_OUT
from velox_eval.mechanism.checks import Check
from velox_eval.mechanism.claims import Contrast, Judged
from velox_eval.mechanism.evidence import ALPHA, Tested
from velox_eval.mechanism.measures import MEASURES
from velox_eval.mechanism.order import Order
from velox_eval.mechanism.published import Beside
from velox_eval.mechanism.real import RealStudy
from velox_eval.mechanism.study import DOCUMENT_SEEDS, Study

SCHEMA_VERSION = 1
DIGITS = 6
_CONSTRUCTION = (
    ("head_dim", built.DIM),
    ("heads", 1),
    ("sinks", built.SINKS),
    ("dtype", "float16"),
    ("key_noise", built.NOISE),
    ("strong", built.STRONG),
    ("weak", built.WEAK),
    ("extra_noise", built.EXTRA),
    ("pointer", built.POINTER),
    ("early_share", built.EARLY_SHARE),
    ("threshold", built.THRESHOLD),
    ("probes", built.PROBES),
    ("probe_noise", built.PROBE_NOISE),
    ("query", built.QUERY),
    ("block", built.BLOCK),
    ("segment", built.SEGMENT),
    ("topics", built.TOPICS),
    ("reach", built.REACH),
)


@dataclass(frozen=True)
class Mechanism:
    """Everything one command found."""

    studies: tuple[str, ...]
    command: str
    study: Study
    figures: Sequence[Beside]
    claims: Sequence[Judged]
    tests: dict[Contrast, Tested]
    checks: Sequence[Check]
    orders: Sequence[Order] = ()
    real: RealStudy | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[Check]:
        """Checks that do not hold."""
        return [check for check in self.checks if check.holds is False]


def document(found: Mechanism) -> dict[str, Any]:
    """Returns the whole result as JSON values: no nan, null where there is nothing."""
    study = found.study
    return {
        "schema_version": SCHEMA_VERSION,
        "velox_eval": __version__,
        "versions": found.versions,
        "command": found.command,
        "studies": list(found.studies),
        "seeds": study.seeds,
        "document_seeds": DOCUMENT_SEEDS,
        "construction": dict(_CONSTRUCTION),
        "measures": dict(MEASURES),
        "regimes": [
            {"name": name, "summary": regime.summary, "separates": regime.separates, "base": _base(study, name)}
            for name, regime in built.REGIMES.items()
            if name in study.base
        ],
        "arms": [
            {
                "arm": arm.label,
                "method": arm.method,
                "cuts_once": arm.label in study.once,
                "settings": {str(b): dict(s) for b, s in settings.items()},
            }
            for arm in study.arms
            for settings in (study.settings[arm.label],)
        ],
        "left_out": LEFT_OUT,
        "cells": _cells(study),
        "figures": [
            {
                **asdict(one.published),
                "mean": _number(one.mean),
                "off_by": _number(one.off),
                "cells": [_number(cell) for cell in one.cells],
            }
            for one in found.figures
        ],
        "alpha": ALPHA,
        "tests": [{"contrast": c.words, **_tested(t)} for c, t in found.tests.items()],
        "claims": [_claim(judged) for judged in found.claims],
        "orders": [{**asdict(order), "means": [_number(mean) for mean in order.means]} for order in found.orders],
        "checks": [asdict(check) for check in found.checks],
        "same_rows": [
            {"arms": list(pair), "regime": regime, "share": _number(float(shares.mean()))}
            for pair, by_regime in study.twins.items()
            for regime, shares in by_regime.items()
        ],
        "evict_block": [
            {key: _number(value) if isinstance(value, float) else value for key, value in asdict(one).items()}
            for one in study.sensitivity
        ],
        "real_model": None if found.real is None else found.real.document(),
    }


def _base(study: Study, regime: str) -> dict[str, dict[str, float | None]]:
    return {
        str(length): {which: _number(float(rate.mean())) for which, rate in rates.items()}
        for length, rates in study.base[regime].items()
    }


def _cells(study: Study) -> list[dict[str, Any]]:
    return [
        {
            "arm": arm,
            "regime": regime,
            "length": cell[0],
            "budget": cell[1],
            "mean": {m: _number(study.mean(arm, regime, m, cell)) for m in MEASURES},
            "mean_document_seeds": {m: _number(study.mean(arm, regime, m, cell, DOCUMENT_SEEDS)) for m in MEASURES},
        }
        for arm, by_regime in study.values.items()
        for regime in by_regime
        for cell in study.grid
    ]


def _tested(tested: Tested) -> dict[str, Any]:
    return {key: _number(value) if isinstance(value, float) else value for key, value in asdict(tested).items()}


def _claim(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    return {
        "claim": claim.name,
        "studies": list(claim.studies),
        "says": claim.says,
        "verdict": judged.verdict,
        "left": judged.left,
        "effect": [contrast.words for contrast in claim.effect],
        "control": [contrast.words for contrast in claim.control],
        "share": _number(judged.share),
    }


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
