"""SnapKV's faults as users met them: windows longer than the prompt (U11), equal budgets for every method (U15)."""

from __future__ import annotations

from typing import Any

import pytest

from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Generate, Generation
from velox_eval.errors import ConfigError
from velox_eval.methods import METHODS, resolve


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Any) -> LoadedModel:
    return load_model(str(tiny_model_dir))


def answer(loaded: LoadedModel, method: Any, prompt: str, max_tokens: int) -> Generation:
    (got,) = Engine(loaded, method).generate([Generate("a", prompt, max_tokens)])
    assert isinstance(got, Generation), got
    return got


@pytest.mark.parametrize(("name", "window"), [("snapkv", "obs_window"), ("snapkv:paper", "window")])
def test_a_prompt_shorter_than_the_window_stays_whole(loaded: LoadedModel, name: str, window: str) -> None:
    """U11: 17 tokens, window and budget 64."""
    prompt = "seventeen letters"
    full = answer(loaded, resolve("full"), prompt, 40)
    got = answer(loaded, resolve(name, {window: 64}, budget=64), prompt, 40)
    assert got.prompt_tokens == 17
    assert got.tokens == full.tokens
    assert (got.cache.kept_tokens, got.cache.evicted_tokens) == ((56, 56), 0)
    with pytest.raises(ConfigError, match=r"window=64 .*budget=8\b"):
        resolve(name, {window: 64}, budget=8)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("snapkv", {"obs_window": 32}),
        ("snapkv:paper", {"window": 32}),
        ("pyramidkv", {}),
        ("pyramidkv:paper", {"window": 32}),
        ("streaming_llm", {"n_sink": 4}),
        ("h2o", {}),
        ("h2o:paper", {}),
    ],
)
def test_one_budget_means_the_same_rows_for_every_method(loaded: LoadedModel, name: str, params: Any) -> None:
    """U15: of 512 tokens 128 rows stay, as a mean over layers where these differ; deviations are stated."""
    got = answer(loaded, resolve(name, params, budget=128), "word " * 102 + "ok", 1)
    assert got.prompt_tokens == 512
    assert sum(got.cache.kept_tokens) == 2 * 128
    if "pyramidkv" not in name:
        assert got.cache.kept_tokens == (128, 128)


def test_every_variant_says_how_it_differs() -> None:
    for spec in METHODS.values():
        for name, variant in spec.variants.items():
            assert variant.differs, f"{spec.name}:{name}"
            assert variant.capacity


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="kernel=4 must be odd"):
        resolve("snapkv:paper", {"kernel": 4}, budget=64)
