"""Verdicts follow from effect and controls; a mechanism that is broken is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from velox_eval.mechanism.arms import study_arms
from velox_eval.mechanism.checks import run_checks
from velox_eval.mechanism.claims import CLAIMS, CONTEXT, RANDOM, SLIDING, W8, Claim, Contrast, judge
from velox_eval.mechanism.study import Study, run_study
from velox_eval.methods.kvzip import KVzip
from velox_eval.methods.morphkv import MorphKV
from velox_eval.methods.policy import Rows, State
from velox_eval.methods.tova import Tova
from velox_eval.mlx import mx

SMALL = ((256, 32),)
SEEDS = 12


def made(**retention: float) -> Study:
    """A study of one regime in which arms have these retentions, each seed a little off."""
    noise = np.random.default_rng(0).normal(size=20) * 0.01
    study = Study([], 20, SMALL)
    for at, (arm, mean) in enumerate(retention.items()):
        cell = {name: mean + np.roll(noise, at) for name in ("retention", "selectivity", "chance")}
        study.values[arm] = {"shift": {SMALL[0]: cell}}
    study.base["shift"] = {256: {}}
    return study


def verdict(monkeypatch: pytest.MonkeyPatch, study: Study, **settings: Any) -> str:
    claim = Claim(
        "test",
        ("morphkv",),
        "",
        effect=(Contrast("arm", "retention", "shift", than="baseline"),),
        control=(Contrast("arm", "retention", "shift", than="window"),),
        **settings,
    )
    monkeypatch.setattr("velox_eval.mechanism.claims.CLAIMS", (claim,))
    [judged], tests = judge(study)
    assert len(tests) == 2
    return judged.verdict


def test_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(monkeypatch, made(arm=0.9, baseline=0.1, window=0.5)) == "confirmed"
    assert verdict(monkeypatch, made(arm=0.6, baseline=0.1, window=0.6)) == "explained by recency"
    assert verdict(monkeypatch, made(arm=0.5, baseline=0.1, window=0.9)) == "explained by recency"
    assert verdict(monkeypatch, made(arm=0.1, baseline=0.1, window=0.0)) == "not confirmed"
    assert verdict(monkeypatch, made(arm=0.1, baseline=0.1, window=0.0), denies=True) == "confirmed"


def test_a_claim_is_judged_only_where_its_arms_were_run() -> None:
    assert judge(made(arm=1.0))[0] == []


def test_every_claim_can_be_judged_by_the_arms_of_its_studies() -> None:
    for claim in CLAIMS:
        for study in claim.studies:
            assert claim.arms <= {arm.label for arm in study_arms([study], "documents")}
        assert claim.says
        assert claim.left


@pytest.fixture(scope="module")
def sound() -> Study:
    return run_study(study_arms(["morphkv", "kvzip"], "documents"), seeds=SEEDS, grid=SMALL)


def test_every_check_holds_as_things_are(sound: Study) -> None:
    checks = run_checks(sound)
    assert len(checks) > 20
    assert [check.name for check in checks if not check.holds] == []


def test_a_sliding_window_fails_where_relevance_and_recency_come_apart(sound: Study) -> None:
    for regime in ("early_block", "middle_block", "alternating", "absence"):
        assert sound.mean(SLIDING, regime, "held") == 0
    for arm in (W8, CONTEXT):
        for regime in ("early_block", "middle_block"):
            held, chance = sound.mean(arm, regime, "held") or 0.0, sound.mean(RANDOM, regime, "held") or 1.0
            assert held > 0.7 > 3 * chance


def test_published_order_is_there_and_so_is_the_window(sound: Study) -> None:
    """What the documents publish is reproduced, and a sliding window of the same budget does as well."""
    means = {arm: sound.mean(arm, "shift", "retention") or 0.0 for arm in sound.values}
    assert means["h2o cumulative"] < 0.1 < means["morphkv window=1"] < means[W8]
    assert 0.39 < means[W8] < 0.74
    assert means[SLIDING] > means["morphkv window=32"] - 0.05
    assert (sound.by_seed("h2o cumulative", "shift", "first_rows") == 1).all()


@pytest.mark.parametrize(
    ("policy", "study", "broken"),
    [
        (MorphKV, "morphkv", "morphkv window=8"),
        (KVzip, "kvzip", "kvzip probe=context"),
        (Tova, "kvzip", "tova"),
    ],
)
@pytest.mark.parametrize("how", ["upside down", "blind"])
def test_a_broken_rule_is_seen(monkeypatch: pytest.MonkeyPatch, policy: Any, study: str, broken: str, how: str) -> None:
    """Keeps the worst rows, or ranks every row alike: the checks of that arm do not hold."""
    real = policy.importance

    def importance(self: Any, rows: Rows, state: State) -> mx.array:
        return -real(self, rows, state) if how == "upside down" else mx.zeros(rows.positions.shape)

    monkeypatch.setattr(policy, "importance", importance)
    found = run_study(
        study_arms([study], "documents"), seeds=SEEDS, regimes=["early_block", "middle_block"], grid=SMALL
    )
    failed = [check.name for check in run_checks(found) if check.holds is False]
    assert any(name.startswith(broken) for name in failed)
