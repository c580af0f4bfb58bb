"""Calibration: the directions are those of the model's queries, kept per model and text, and asked for by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from velox_eval.caches.session import MethodSession, make_caches
from velox_eval.engine.calibration import BUNDLED_SHA256, calibrate, find_directions, text_name, text_sha256
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Generate, Generation
from velox_eval.errors import ConfigError, MethodError, ModelError
from velox_eval.methods import resolve
from velox_eval.mlx import mx
from velox_eval.tasks.calibration_text import calibration_text

TEXT = "A ferry, a piano and a crate of lemons; the steward's knee foretells the rain. " * 9


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path) -> LoadedModel:
    return load_model(str(tiny_model_dir))


def test_directions_are_the_queries_own(loaded: LoadedModel) -> None:
    """Against the singular vectors of the first layer's queries, computed from the weights."""
    done = calibrate(loaded, TEXT)
    tokens = loaded.tokenizer.encode(TEXT)
    assert done.tokens == len(tokens) < 2048
    layer = loaded.model.layers[0]
    hidden = layer.input_layernorm(loaded.model.model.embed_tokens(mx.array([tokens])))
    queries = layer.self_attn.q_proj(hidden).reshape(1, len(tokens), 4, 8).transpose(0, 2, 1, 3)
    queries = np.array(layer.self_attn.rope(queries)[0], np.float64)
    axes = np.stack([np.linalg.svd(head)[2][0] for head in queries])
    axes *= np.sign((axes * queries.mean(axis=1)).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(np.array(done.directions[0]), axes.reshape(2, 2, 8).mean(axis=1), atol=1e-4)
    assert [array.shape for array in done.directions] == [(2, 8), (2, 8)]


def test_long_texts_are_cut_into_sequences(loaded: LoadedModel) -> None:
    """Each sequence starts anew; 20 of them at most."""
    text = calibration_text()
    assert calibrate(loaded, text * 5).tokens == 20 * 2048
    short = dataclasses.replace(loaded, context_length=300)
    one, two = (np.array(calibrate(model, TEXT).directions[1]) for model in (loaded, short))
    assert np.abs(one - two).max() > 1e-4


def test_rows_kept_are_those_far_along_the_direction(loaded: LoadedModel) -> None:
    calibrate(loaded, TEXT)
    method = resolve("qfilters:paper", {"window": 3, "calibration": text_name(TEXT)}, budget=10)
    directions = find_directions(loaded, method)
    assert directions is not None
    tokens = mx.array([[7 * i % 250 for i in range(40)]])
    full = MethodSession(loaded.model, resolve("full"), budget=None)
    mx.eval(loaded.model(tokens, cache=full.caches))
    session = MethodSession(loaded.model, method, budget=10, directions=directions)
    mx.eval(loaded.model(tokens, cache=session.caches))
    for index, (whole, cut) in enumerate(zip(full.caches, session.caches, strict=True)):
        worth = (np.array(whole.slots.keys)[0, :, :40] * np.array(directions[index](2, 8))[:, None]).sum(axis=-1)
        expected = np.sort(np.argsort(worth[:, :-3], axis=-1)[:, -7:], axis=-1)
        positions = np.array(cut.kept_positions())[0]
        for head in range(2):
            held = sorted(positions[head][positions[head] >= 0].tolist())
            assert held == [*expected[head].tolist(), 37, 38, 39]


def test_a_method_without_its_calibration_is_refused_with_the_command(loaded: LoadedModel) -> None:
    for settings, command in (({}, f"`velox-eval calibrate {loaded.name}`"), ({"calibration": "abc"}, "--text FILE`")):
        with pytest.raises(ConfigError, match="run") as refused:
            Engine(loaded, resolve("qfilters:paper", settings, budget=80))
        assert command in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(MethodError, match="velox-eval calibrate"):
        make_caches(loaded.model, "qfilters:paper", budget=80)
    assert find_directions(loaded, resolve("qfilters", budget=80)) is None


def test_each_model_and_each_text_has_its_own(loaded: LoadedModel) -> None:
    ours, other = calibrate(loaded, calibration_text()), calibrate(loaded, TEXT)
    assert (ours.name, other.name) == ("bundled", text_sha256(TEXT)[:12])
    assert ours.path != other.path
    answers = []
    for name in (ours.name, other.name):
        method = resolve("qfilters:paper", {"window": 4, "calibration": name}, budget=16)
        (answer,) = Engine(loaded, method).generate([Generate("a", TEXT[:120], 20)])
        assert isinstance(answer, Generation)
        assert answer.cache.method_fired
        answers.append(answer.tokens)
    assert answers[0] != answers[1]
    stranger = dataclasses.replace(loaded, content_sha256="0" * 64)
    with pytest.raises(ConfigError, match="velox-eval calibrate"):
        Engine(stranger, resolve("qfilters:paper", budget=80))


def test_what_is_stored_is_what_was_measured(loaded: LoadedModel) -> None:
    done = calibrate(loaded, TEXT)
    found = find_directions(loaded, resolve("qfilters:paper", {"calibration": done.name}, budget=80))
    assert found is not None
    for stored, measured in zip(found, done.directions, strict=True):
        np.testing.assert_array_equal(np.array(stored(2, 8)), np.array(measured))
        with pytest.raises(MethodError, match="3 heads x 8"):
            stored(3, 8)
    assert [path.name for path in done.path.parent.iterdir()] == [done.path.name]


def test_damaged_or_outdated_files_are_not_used(loaded: LoadedModel) -> None:
    done = calibrate(loaded, calibration_text())
    method = resolve("qfilters:paper", budget=80)
    whole = done.path.read_bytes()
    done.path.write_bytes(whole[:50])
    with pytest.raises(ConfigError, match="no calibration"):
        Engine(loaded, method)
    done.path.write_bytes(whole.replace(BUNDLED_SHA256.encode(), b"0" * 64))
    with pytest.raises(ConfigError, match="another version of the bundled text"):
        Engine(loaded, method)


def test_what_cannot_be_measured_is_refused(loaded: LoadedModel, own_cache: Path) -> None:
    with pytest.raises(ConfigError, match="at least 512"):
        calibrate(loaded, "too short")
    own_cache.write_text("a file where the cache directory should be")
    with pytest.raises(ModelError, match="VELOX_EVAL_CACHE"):
        calibrate(loaded, TEXT)


def test_the_bundled_text_is_the_one_that_is_named() -> None:
    text = calibration_text()
    assert text_sha256(text) == BUNDLED_SHA256
    assert len(text.split()) > 2000


def test_a_model_that_cannot_be_tapped_is_refused(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention goes by another way than the name that the tap replaces."""
    from mlx_lm.models import llama

    def attend(self: Any, hidden: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        count = hidden.shape[1]
        queries, keys, values = (
            projected(hidden).reshape(1, count, -1, 8).transpose(0, 2, 1, 3)
            for projected in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = (self.rope(rows, offset=cache.offset) for rows in (queries, keys))
        keys, values = cache.update_and_fetch(keys, values)
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask="causal")
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(1, count, -1))

    monkeypatch.setattr(llama.Attention, "__call__", attend)
    with pytest.raises(MethodError, match=r"layer 0 .*cannot be tapped"):
        calibrate(loaded, TEXT)
