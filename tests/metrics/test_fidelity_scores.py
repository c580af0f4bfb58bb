"""Scores of a comparison with the full cache, worked out by hand."""

from __future__ import annotations

import math

import pytest

from velox_eval.metrics.fidelity import by_decile, by_position, curves, fidelity_scores, first_divergence, perplexities
from velox_eval.records.score import pooled


def test_scores_by_hand() -> None:
    scores = fidelity_scores([0.0, 0.5, 0.1], [True, False, True], [-1.0, -2.0, -3.0], [-1.0, -4.0, -2.5])
    assert scores["mean_kl"].value == pytest.approx(0.2)
    assert scores["top1_agreement"].value == pytest.approx(2 / 3)
    assert scores["nll_full"].value == pytest.approx(2.0)
    assert scores["nll_method"].value == pytest.approx(2.5)
    assert scores["first_divergence"].value == 1
    assert scores["diverged"].value == 1
    ratio = perplexities({name: score.value for name, score in scores.items()})
    assert ratio["perplexity_ratio"] == pytest.approx(math.exp(0.5))
    assert ratio["perplexity_full"] == pytest.approx(math.exp(2.0))


def test_the_perplexity_ratio_pools_over_tokens_not_samples() -> None:
    short = fidelity_scores([0.0], [True], [-1.0], [-3.0])
    long = fidelity_scores([0.0] * 3, [True] * 3, [-1.0] * 3, [-1.0] * 3)
    values = {name: pooled([short[name], long[name]]) for name in short}
    assert perplexities(values)["perplexity_ratio"] == pytest.approx(math.exp(2 / 4))
    assert perplexities({}) == {}
    assert perplexities({"nll_full": None, "nll_method": 1.0}) == {}
    by_kind = perplexities({"nll_full_x": 1.0, "nll_method_x": 3.0, "nll_full_y": 1.0})
    assert by_kind["perplexity_ratio_x"] == pytest.approx(math.exp(2))
    assert "perplexity_ratio_y" not in by_kind


@pytest.mark.parametrize(
    ("agree", "expected"), [([False, True], 0), ([True, True, False, False], 2), ([True, True], 2)]
)
def test_first_divergence(agree: list[bool], expected: int) -> None:
    assert first_divergence(agree) == expected
    assert fidelity_scores([0.0] * len(agree), agree, [0.0] * len(agree), [0.0] * len(agree))["diverged"].value == (
        not all(agree)
    )


def test_bins_hold_every_token_once() -> None:
    kl = [float(i) for i in range(25)]
    agree = [i % 2 == 0 for i in range(25)]
    deciles = by_decile(kl, agree)
    assert [bin_[2] for bin_ in deciles] == [3, 2, 3, 2, 3, 2, 3, 2, 3, 2]
    assert sum(bin_[0] for bin_ in deciles) == sum(kl)
    assert by_position(kl, agree) == [[300.0, 13, 25]]
    assert [bin_[2] for bin_ in by_position(kl * 3, agree * 3)] == [32, 32, 11]
    assert [bin_[2] for bin_ in by_decile(kl[:3], agree[:3])] == [1, 0, 0, 1, 0, 0, 1, 0, 0, 0]


def test_curves_pool_over_samples_of_different_length() -> None:
    one = {"by_decile": by_decile([1.0] * 10, [True] * 10), "by_position": by_position([1.0] * 10, [True] * 10)}
    two = {"by_decile": by_decile([4.0] * 40, [False] * 40), "by_position": by_position([4.0] * 40, [False] * 40)}
    series = curves([one, two])
    assert series["mean_kl_by_decile"] == pytest.approx([(1 + 4 * 4) / 5] * 10)
    assert series["mean_kl_by_position"] == pytest.approx([(10 + 4 * 32) / 42, 4.0])
    assert series["top1_agreement_by_position"] == pytest.approx([10 / 42, 0.0])
    assert curves([{"by_decile": by_decile([1.0], [True]), "by_position": []}])["mean_kl_by_decile"][5] is None
    assert curves([]) == {}
