"""The installed package's caches under our accounting: every method it has, what is counted, what is refused."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import make_tiny_llama
from velox_eval.caches.session import MethodSession, cache_use, make_caches
from velox_eval.caches.veloxquant import BridgedCache
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import load_model
from velox_eval.engine.requests import Generate, Generation
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods import METHODS, resolve
from velox_eval.methods.veloxquant import INSTALLED, NOT_SERVED, installed_spec
from velox_eval.mlx import mx

TOKENS = np.random.default_rng(0).integers(0, 250, size=200).tolist()
PROMPT = 130  # more than qfilters waits for
BUDGET = 40
ALWAYS_CUT = ("nestedkv", "pyramidkv", "squeeze")  # by their scores, and by small shares of a large budget
ATTENDS_TO_WHAT_IS_LEFT = ("pyramidkv", "squeeze")  # evict before attention


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny llama whose heads are wide enough for every method's groups."""
    return make_tiny_llama(hidden_size=128, head_dim=32)


@contextmanager
def fed(model: Any, name: str, budget: int | None = BUDGET, decoded: int = 40, **params: Any) -> Iterator[Any]:
    """A session that read a prompt in three chunks and wrote `decoded` tokens."""
    method = resolve(name, params, budget=budget)
    block = None if name.startswith("veloxquant/") or name == "full" else 1
    with MethodSession(model, method, budget=method.budget, evict_block=block) as session:
        for start, end in ((0, 50), (50, PROMPT - 1), (PROMPT - 1, PROMPT)):
            session.model(mx.array([TOKENS[start:end]]), cache=session.caches)
            mx.eval([cache.state for cache in session.caches])
        session.after_prefill(TOKENS[:PROMPT])
        for token in TOKENS[PROMPT : PROMPT + decoded]:
            logits = session.model(mx.array([[token]]), cache=session.caches)
            mx.eval(logits, [cache.state for cache in session.caches])
        if decoded:
            assert bool(mx.isfinite(logits).all())
        yield session


def test_every_method_of_the_package_is_served_or_refused_by_name() -> None:
    from veloxquant_mlx.cache import base

    names = set(typing.get_args(base.MethodName))
    assert len(names) == 43
    assert set(INSTALLED) | set(NOT_SERVED) == names
    assert not set(INSTALLED) & set(NOT_SERVED)
    assert len(INSTALLED) == 36


@pytest.mark.parametrize("name", sorted(INSTALLED))
def test_runs_and_is_counted(model: Any, name: str) -> None:
    with fed(model, f"veloxquant/{name}") as session:
        before = [cache.rows[0] for cache in session.caches]
        use = cache_use(session.caches, 0)
        seen = PROMPT + 40
        assert use.kept_tokens == tuple(before)
        assert use.tokens_seen == seen
        assert use.full_cache_bytes == 2 * seen * 512  # two layers of 2 heads x 32 x float32 x (key and value)
        assert 0 < use.end_cache_bytes <= use.peak_cache_bytes <= use.peak_total_bytes
        assert use.end_cache_bytes <= use.allocated_cache_bytes
        assert use.reported["nbytes"] > 0
        for cache in session.caches:
            assert type(cache) is BridgedCache
            assert cache.offset == seen
            assert cache.row_bytes in (512, 292, 256)  # float32, packed keys, float16
        if INSTALLED[name].budgeted:
            assert use.evicted_tokens == sum(seen - rows for rows in before) > 0
            grown = 41 if INSTALLED[name].capacity.endswith("generated") else 0  # the prompt's last token comes alone
            assert sum(before) <= 2 * (BUDGET + grown)
        elif name != "rocketkv":
            assert use.evicted_tokens == 0
            assert use.early_share == pytest.approx(0.1)
        if name not in ATTENDS_TO_WHAT_IS_LEFT:  # the rows counted are those that the next step attends to
            row = mx.ones((1, 2, 1, 32))
            attended, _ = session.caches[-1].update_and_fetch(row, row)
            assert attended.shape[2] == before[-1] + 1


@pytest.mark.parametrize("name", ["h2o", "tova", "morphkv", "kvzip", "knorm", "streaming_llm", "keyformer", "chunkkv"])
def test_positions_are_those_of_the_rows_held(model: Any, name: str) -> None:
    """Row by row: a kept value is the one that came in at the position the cache names."""
    cache = make_caches(model, f"veloxquant/{name}", budget=BUDGET)[0]
    rng = np.random.default_rng(1)
    keys, values = rng.normal(size=(2, 1, 2, 90, 32)).astype(np.float16).astype(np.float32)
    for start, end in ((0, 60), *((i, i + 1) for i in range(60, 90))):
        cache.update_and_fetch(mx.array(keys[:, :, start:end]), mx.array(values[:, :, start:end]))
    positions = np.array(cache.kept_positions())
    stored = np.array(cache.theirs.values[:, :, : cache.rows[0]])
    assert positions.shape == (1, 2, cache.rows[0])
    np.testing.assert_array_equal(stored, np.take_along_axis(values, positions[..., None], axis=2))


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "squeeze"])
def test_positions_the_package_does_not_tell_are_unknown(model: Any, name: str) -> None:
    with fed(model, f"veloxquant/{name}") as session:
        assert (np.array(session.caches[0].kept_positions()) == -1).all()
        assert cache_use(session.caches, 0).early_share is None


@pytest.mark.parametrize("name", ["morphkv", "kvzip", "tova", "knorm", "h2o"])
def test_keeps_the_rows_that_our_adapted_method_keeps(name: str) -> None:
    """Through a model whose own type is float16, so that the package's cast changes nothing."""
    model = make_tiny_llama(hidden_size=128, head_dim=32)
    model.set_dtype(mx.float16)
    with fed(model, name) as ours, fed(model, f"veloxquant/{name}") as theirs:
        for one, other in zip(ours.caches, theirs.caches, strict=True):
            assert held(one) == held(other)


def held(cache: Any) -> list[list[int]]:
    """Positions of each head, ascending."""
    return [sorted(int(p) for p in head if p >= 0) for head in np.array(cache.kept_positions())[0]]


@pytest.mark.parametrize("name", sorted(n for n in INSTALLED if INSTALLED[n].budgeted and n not in ALWAYS_CUT))
def test_a_budget_above_the_length_keeps_everything(model: Any, name: str) -> None:
    with fed(model, f"veloxquant/{name}", budget=PROMPT + 10, decoded=5) as session:
        assert [cache.rows for cache in session.caches] == [[PROMPT + 5], [PROMPT + 5]]
        assert cache_use(session.caches, 0).early_share == pytest.approx(14 / 135)
    with MethodSession(
        model, resolve(f"veloxquant/{name}", budget=BUDGET), budget=None
    ) as session:  # the package's own
        session.model(mx.array([TOKENS[:60]]), cache=session.caches)
        assert [cache.rows for cache in session.caches] == [[60], [60]]


def test_mlx_lm_cannot_swap_it_for_a_plain_cache(model: Any) -> None:
    from mlx_lm.generate import BatchGenerator, generate_step

    caches = make_caches(model, "veloxquant/morphkv", budget=BUDGET)
    for attribute in ("merge", "to_quantized", "bits", "group_size"):
        assert not hasattr(caches[0], attribute)
    for _ in zip(
        range(60), generate_step(mx.array(TOKENS[:50]), model, max_tokens=60, prompt_cache=caches), strict=False
    ):
        pass
    assert all(type(cache) is BridgedCache for cache in caches)
    assert [cache.rows[0] for cache in caches] == [BUDGET, BUDGET]
    generator = BatchGenerator(model, max_tokens=2)
    generator.insert([TOKENS[:5]], caches=[make_caches(model, "veloxquant/morphkv", budget=BUDGET)])
    with pytest.raises((AttributeError, ValueError), match=r"merge|Cache"):
        generator.next()


def test_memory_it_holds_twice_is_counted_once_and_second_copies_are_counted(model: Any) -> None:
    """Reshaped views of the rows are no memory; a padded copy beside them and what was last returned are."""
    with fed(model, "veloxquant/h2o") as session:
        cache = session.caches[0]
        scores_and_positions = cache.theirs._bh_scores.nbytes + cache.theirs._bh_positions.nbytes
        assert scores_and_positions <= cache.aux_bytes <= 2 * scores_and_positions
        assert cache.allocated_bytes == BUDGET * 256
    with fed(model, "veloxquant/tova") as session:
        assert session.caches[0].aux_bytes >= (BUDGET + 1) * 256
    with fed(model, "veloxquant/squeeze") as session:
        assert session.caches[0].aux_bytes >= session.caches[0].rows[0] * 256


def test_what_layers_share_is_counted_once(model: Any) -> None:
    with fed(model, "veloxquant/xkv", decoded=2) as session:
        first, second = (cache.aux_bytes for cache in session.caches)
        assert first > 0
        assert second == 0  # its basis is the coordinator's own array


def test_a_mask_of_other_rows_is_replaced(model: Any) -> None:
    with fed(model, "veloxquant/chunkkv", decoded=0) as session:
        cache = session.caches[0]
    wrong, right = mx.ones((1, 1, 8, 30), mx.bool_), mx.ones((1, 1, 8, 48), mx.bool_)
    assert cache.mask_for(8, 48, wrong) == "causal"
    assert cache.mask_for(8, 48, right) is right
    assert cache.mask_for(1, 41, wrong[:, :, :1]) is None
    with pytest.raises(MethodError, match="adds scores through its mask"):
        cache.mask_for(8, 48, mx.zeros((1, 1, 8, 30)))


@pytest.mark.model
def test_layers_of_a_real_model_hold_different_rows(real_model: Any) -> None:
    """With mlx-lm alone the package's chunkkv fails here: one layer's mask goes to all."""
    with fed(real_model.model, "veloxquant/chunkkv", budget=48, decoded=2) as session:
        assert len({cache.rows[0] for cache in session.caches}) > 1


def test_settings_reach_the_package(model: Any) -> None:
    cache = make_caches(model, "veloxquant/morphkv", budget=30, window=16, n_sink="2")[0]
    assert (cache.theirs._budget, cache.theirs._window, cache.theirs._n_sink) == (30, 16, 2)
    window = make_caches(model, "veloxquant/streaming_llm", budget=30)[0]
    assert (window.theirs._window_size, window.theirs._n_sink) == (26, 4)
    svdq = resolve("veloxquant/svdq", {"bit_schedule": "8,4,4,2,2,1,1,0", "rank": 9})
    assert (svdq.params["bit_schedule"], svdq.params["rank"], svdq.budget) == ("8,4,4,2,2,1,1,0", 9, None)
    assert resolve("veloxquant/svdq").params["rank"] == "none"
    assert resolve("veloxquant/h2o", keep=0.01).budget_for(300) == 21  # sinks, grace and one row


@pytest.mark.parametrize(
    ("name", "settings", "budget", "message"),
    [
        ("veloxquant/morphkw", {}, None, "did you mean 'veloxquant/morphkv'"),
        ("veloxquant/qjl", {}, None, "veloxquant/qjl cannot run: the package has no cache"),
        ("veloxquant/vecinfer", {}, None, "trained codebook"),
        ("veloxquant/morphkv:paper", {}, None, "variant of veloxquant/morphkv"),
        ("veloxquant/morphkv", {"windou": 3}, None, "did you mean 'window'"),
        ("veloxquant/morphkv", {"window": "many"}, None, "not a valid int"),
        ("veloxquant/svdq", {"bit_schedule": "8;4"}, None, "whole numbers with commas"),
        ("veloxquant/morphkv", {}, 8, "veloxquant/morphkv refuses budget=8"),
        ("veloxquant/h2o", {}, 10, "n_sink"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_named(name: str, settings: Any, budget: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(name, settings, budget=budget)


def test_what_the_package_refuses_later_is_refused_when_the_session_is_made(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"veloxquant/nsnquant: .* must be 1 or 2, got 3"):
        MethodSession(model, resolve("veloxquant/nsnquant", {"bits": 3}), budget=None)
    with pytest.raises(ConfigError, match="evict_block=1: veloxquant/morphkv has its own order"):
        MethodSession(model, resolve("veloxquant/morphkv"), budget=512, evict_block=1)


def test_one_sequence_at_a_time(model: Any) -> None:
    caches = make_caches(model, "veloxquant/morphkv", budget=BUDGET)
    with pytest.raises(MethodError, match="one sequence, but 2 came in"):
        model(mx.zeros((2, 5), mx.int32), cache=caches)
    session = MethodSession(model, resolve("veloxquant/morphkv"), budget=512)
    assert session.unbatched == "the installed package's caches"


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r'pip install "velox-eval\[veloxquant\]"'):
        resolve("veloxquant/morphkv")


def test_another_version_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velox_eval.methods.veloxquant.version", lambda _name: "0.95.0")
    with pytest.raises(ConfigError, match=r"0\.95\.0 is installed.*0\.94\.15"):
        resolve("veloxquant/morphkv")


def test_listing_methods_loads_neither_the_package_nor_mlx() -> None:
    code = (
        "import sys; import velox_eval.methods as m; m.resolve('morphkv'); "
        "sys.exit(' '.join(n for n in ('mlx', 'veloxquant_mlx', 'numpy') if n in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not any(name.startswith("veloxquant") for name in METHODS)
    assert installed_spec("veloxquant/morphkv").family == "veloxquant"


def test_the_engine_runs_it_one_at_a_time(tiny_model_dir: Path) -> None:
    loaded = load_model(str(tiny_model_dir))
    method = resolve("veloxquant/morphkv", budget=32)
    with pytest.raises(ConfigError, match="batch_size=2: the installed package's caches decode one at a time"):
        Engine(loaded, method, batch_size=2)
    with pytest.raises(ConfigError, match="use 1, with no memory limit"):
        Engine(loaded, method, memory_limit=10**9)
    engine = Engine(loaded, method, batch_size=None)
    answers = list(engine.generate([Generate(f"{i}", "a prompt of some length " * 3, 20) for i in range(2)]))
    for answer in answers:
        assert isinstance(answer, Generation), answer
        assert answer.cache.kept_tokens == (32, 32)
        assert answer.cache.reported["morphkv_kept_bytes"] == answer.cache.end_cache_bytes
    assert engine.report().batch_sizes == (1,)


def test_the_command_line_lists_and_describes_it() -> None:
    command = [sys.executable, "-m", "velox_eval.cli", "methods"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "veloxquant/turboquant_rvq" in listed
    one = subprocess.run([*command, "veloxquant/chunkkv", "--json"], capture_output=True, text=True, check=True).stdout
    document = json.loads(one)
    variant = document["variants"]["adapted"]
    assert [parameter["name"] for parameter in variant["parameters"]] == [
        "chunk_size",
        "n_sink",
        "score",
        "reuse_layers",
    ]
    assert (document["default_budget"], variant["min_budget"], variant["capacity"]) == (512, 5, "at most budget")


def test_a_method_without_a_budget_may_evict_all_the_same() -> None:
    assert [name for name in INSTALLED if installed_spec(f"veloxquant/{name}").evicts_unasked] == ["rocketkv"]
    assert installed_spec("veloxquant/rocketkv").evicts
    assert not installed_spec("veloxquant/kivi").evicts
    assert METHODS["morphkv"].evicts
    assert not METHODS["full"].evicts
