"""Alarms: what must be so as long as the mechanisms work, so that a change that breaks one is seen in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from velox_eval.mechanism.claims import CONTEXT, FOUND, RANDOM, SLIDING, TOVA, W8, Contrast
from velox_eval.mechanism.evidence import weigh
from velox_eval.mechanism.regimes import REGIMES
from velox_eval.mechanism.study import TWINS, Study

# What an arm must hold more of than the control does; no figure is asked.
FINDERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    W8: (*((regime, control) for regime in FOUND for control in (SLIDING, RANDOM)), ("alternating", SLIDING)),
    TOVA: (*((regime, control) for regime in FOUND for control in (SLIDING, RANDOM)), ("alternating", SLIDING)),
    CONTEXT: tuple((regime, control) for regime in (*FOUND, "absence") for control in (SLIDING, RANDOM)),
}


@dataclass(frozen=True)
class Check:
    """One alarm. `holds` None: too few seeds to tell."""

    name: str
    holds: bool | None


def run_checks(study: Study) -> list[Check]:
    """Returns every check whose arms and regimes were run."""
    return [*_constructions(study), *_twins(study), *_finders(study)]


def _constructions(study: Study) -> list[Check]:
    """What any cache must show, whatever its rule: one topic is one topic, a window holds nothing old."""
    made = []
    if "stable" in study.base:
        made += [
            Check(
                f"{arm}: every kept row is relevant in stable",
                bool((study.by_seed(arm, "stable", "retention") == 1).all()),
            )
            for arm in study.values
        ]
    if study.has(SLIDING):
        made += [
            Check(f"{SLIDING} holds nothing relevant in {name}", not study.by_seed(SLIDING, name, "held").any())
            for name, regime in REGIMES.items()
            if regime.separates and name in study.base
        ]
    return made


def _twins(study: Study) -> list[Check]:
    latest = TWINS[1]
    if latest not in study.twins:
        return []
    return [
        Check(f"{latest[0]} keeps exactly the rows of {latest[1]}", all(s.all() for s in study.twins[latest].values()))
    ]


def _finders(study: Study) -> list[Check]:
    contrasts = [
        Contrast(arm, "held", regime, than=control)
        for arm, found in FINDERS.items()
        for regime, control in found
        if study.has(arm, control) and regime in study.base
    ]
    tested = weigh({contrast: contrast.sides(study) for contrast in contrasts})
    return [Check(contrast.words, one.holds) for contrast, one in tested.items()]
