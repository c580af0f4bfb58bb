"""Recall of later attention: the mass against attention written out, recall against counting, on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx_lm.models.llama as llama
import numpy as np
import pytest

from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.errors import ConfigError
from velox_eval.mechanism.arms import fitted
from velox_eval.mechanism.real import real_labels, run_real
from velox_eval.mechanism.recall import (
    BLOCK,
    ORACLE,
    RETURNS,
    SINK_ROWS,
    STAYS,
    Moment,
    Recall,
    Refused,
    attention_mass,
    moments,
    recalls,
)
from velox_eval.mechanism.texts import ShiftingText, shifting_texts
from velox_eval.methods import METHODS
from velox_eval.mlx import mx
from velox_eval.mlx_lm import make_prompt_cache

BUDGET = 40
TEXT = ShiftingText(
    "mill",
    "The mill stood by the river, and its wheel turned day and night under the alders.",
    "A letter costs as much to write as a loaf costs to bake, said the postman.",
    "At night the wheel of the mill turned on.",
)


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path) -> LoadedModel:
    return load_model(str(tiny_model_dir))


@pytest.fixture(scope="module")
def both(loaded: LoadedModel) -> list[Moment]:
    return moments(loaded, [TEXT])


def test_moments_cut_inside_the_second_topic_and_at_its_end(loaded: LoadedModel, both: list[Moment]) -> None:
    stays, returns = both
    assert (stays.kind, returns.kind) == (STAYS, RETURNS)
    first, whole = len(TEXT.first), len(f"{TEXT.first}\n\n{TEXT.second}")  # the tiny model's tokens are bytes
    assert (returns.topic, returns.prompt) == (first, whole)
    assert stays.prompt == first + (whole - first) // 2
    assert stays.prompt + stays.later == returns.prompt
    assert returns.prompt + returns.later == len(returns.tokens)
    assert loaded.tokenizer.decode(list(returns.tokens)) == "\n\n".join((TEXT.first, TEXT.second, TEXT.back))


def test_mass_is_what_attention_written_out_pays(
    monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel, both: list[Moment]
) -> None:
    """Queries and keys are taken from the model's own attention, under mlx-lm's own caches."""
    seen: list[tuple[Any, Any, float]] = []
    real = llama.scaled_dot_product_attention

    def watched(queries: Any, keys: Any, values: Any, **rest: Any) -> Any:
        seen.append((np.array(queries)[0], np.array(keys)[0], rest["scale"]))
        return real(queries, keys, values, **rest)

    moment = both[0]
    monkeypatch.setattr(llama, "scaled_dot_product_attention", watched)
    fed = moment.tokens[: moment.prompt + moment.later]
    mx.eval(loaded.model(mx.array([list(fed)]), cache=make_prompt_cache(loaded.model)))
    monkeypatch.undo()
    found = attention_mass(loaded, moment)
    assert len(found) == len(seen) == loaded.n_layers
    for mass, (queries, keys, scale) in zip(found, seen, strict=True):
        group = queries.shape[0] // keys.shape[0]
        expected = np.zeros((keys.shape[0], moment.prompt))
        for head, rows in enumerate(queries):
            for place in range(moment.prompt, len(fed)):
                weights = np.exp(rows[place].astype(np.float64) @ keys[head // group, : place + 1].T * scale)
                expected[head // group] += (weights / weights.sum())[: moment.prompt]
        np.testing.assert_allclose(mass, expected, rtol=2e-4, atol=1e-6)


def test_recall_is_the_share_of_mass_on_kept_rows(loaded: LoadedModel, both: list[Moment]) -> None:
    moment = both[1]
    masses = np.stack(attention_mass(loaded, moment))
    oracle, window = list(recalls(loaded, [("sliding_window", BLOCK)], [moment], BUDGET))
    assert isinstance(oracle, Recall)
    assert isinstance(window, Recall)
    newest = masses[..., moment.prompt - BUDGET :].sum(axis=-1) / masses.sum(axis=-1)
    assert window.mass == pytest.approx(float(newest.mean()), rel=1e-5)
    late = masses[..., SINK_ROWS:]
    beyond = masses[..., moment.prompt - BUDGET :].sum(axis=-1) / late.sum(axis=-1)
    assert window.beyond_sinks == pytest.approx(float(beyond.mean()), rel=1e-5)
    assert window.first_topic == 0.0
    best = np.sort(masses, axis=-1)[..., -BUDGET:].sum(axis=-1) / masses.sum(axis=-1)
    assert oracle.mass == pytest.approx(float(best.mean()), rel=1e-5)
    assert (oracle.method, oracle.rows, window.rows) == (ORACLE, BUDGET, BUDGET)


def test_every_method_is_below_the_oracle_and_a_budget_over_the_prompt_recalls_everything(
    loaded: LoadedModel, both: list[Moment]
) -> None:
    labels = [label for label in real_labels(["morphkv"], "all") if METHODS[label.partition(":")[0]].evicts]
    found = list(recalls(loaded, [(label, BLOCK) for label in labels], both[1:], BUDGET))
    oracle = found[0]
    assert isinstance(oracle, Recall)
    for one in found[1:]:
        if isinstance(one, Refused):
            assert (one.method, "calibrate" in one.reason) == ("qfilters:paper", True)  # nobody calibrated it
            continue
        assert 0 < one.mass <= oracle.mass + 1e-6, one
        assert one.rows <= BUDGET + 1e-6, one
    assert {one.method for one in found} == {ORACLE, *labels}
    [_, everything] = recalls(loaded, [("morphkv", None)], both[1:], both[1].prompt)
    assert isinstance(everything, Recall)
    assert (everything.mass, everything.beyond_sinks) == (pytest.approx(1.0), pytest.approx(1.0))


def test_windows_are_clipped_where_they_would_not_fit() -> None:
    assert fitted("qfilters:paper", 40).params["window"] == 39
    assert fitted("morphkv", 40).params["window"] == 8


def test_a_text_beyond_the_models_context_is_refused(loaded: LoadedModel) -> None:
    long = ShiftingText("long", "a " * 10_000, "b", "c")
    with pytest.raises(ConfigError, match="'long' has"):
        moments(loaded, [long])


def test_bundled_texts_shift_and_come_back() -> None:
    """The third part takes up the first one's rare words, the second has none of them."""
    texts, digest = shifting_texts()
    assert (len(texts), len(digest)) == (8, 64)
    for text in texts:
        first, second, back = (
            {w.strip(".,;:").lower() for w in p.split()} for p in (text.first, text.second, text.back)
        )
        rare = {word for word in first if len(word) > 4}
        assert len(rare & back) >= 8 > 3 * len(rare & second & back), text.name


def test_a_study_has_every_method_by_moment_and_its_tests(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [replace(TEXT, name=str(number), first=TEXT.first + " It turned." * number) for number in range(2)]
    monkeypatch.setattr("velox_eval.mechanism.real.shifting_texts", lambda: (texts, "digest"))
    study = run_real(loaded, ["streaming_llm", "morphkv", "morphkv:paper"], budget=BUDGET)
    assert study.methods() == [ORACLE, "streaming_llm", "morphkv", "morphkv:paper"]
    for method in study.methods():
        assert len(study.values(method, RETURNS, "mass")) == len(study.values(method, STAYS, "mass")) == 2
    assert len(study.values("morphkv", RETURNS, "mass", None)) == 2  # in one chunk, too
    assert set(study.tests) == {
        ("morphkv", "streaming_llm"),
        ("morphkv:paper", "streaming_llm"),
        ("morphkv:paper", "morphkv"),
    }
    assert all(tested.holds is None for tested in study.tests.values())  # two texts decide nothing
    document = json.loads(json.dumps(study.document(), allow_nan=False))
    assert len(document["recalls"]) == 2 * 2 * 4 + 2 * 2


@pytest.mark.model
def test_on_the_real_model_queries_find_what_keys_do_not(real_model: LoadedModel) -> None:
    """The topic returns in three texts: the model's queries know what will be read, its keys know less than chance."""
    chosen = [moment for moment in moments(real_model, shifting_texts()[0][:3]) if moment.kind == RETURNS]
    plan = [(label, BLOCK) for label in ("random", "morphkv", "morphkv:paper")]
    found = [one for one in recalls(real_model, plan, chosen, 64) if isinstance(one, Recall)]
    recall = {
        name: np.array([one.beyond_sinks for one in found if one.method == name])
        for name in (ORACLE, "random", "morphkv", "morphkv:paper")
    }
    assert all(len(values) == 3 for values in recall.values())
    assert (recall["morphkv"] < recall["random"]).all()
    assert (recall["random"] < recall["morphkv:paper"]).all()
    assert (recall["morphkv:paper"] < recall[ORACLE]).all()
