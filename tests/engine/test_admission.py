"""Batches under a memory limit: what is declared is what is held, and the limit is never passed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.test_engine import loaded, requests
from tests.methods.matrix import CASES, Case
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.session import MethodSession, Prompt
from velox_eval.engine.admission import footprint, layer_shapes, settled
from velox_eval.engine.calibration import find_directions
from velox_eval.engine.engine import Engine, _Batch
from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import Failure, Generate, Generation
from velox_eval.errors import ConfigError
from velox_eval.methods import resolve
from velox_eval.mlx import mx
from velox_eval.records.config import parse_bytes

__all__ = ["loaded"]  # the fixture


def encode(text: str) -> list[int]:
    """A token a character, as the tiny model has it."""
    return [0] * len(text)


def held_bytes(caches: list[Any]) -> int:
    return sum(cache.allocated_bytes + cache.aux_bytes for cache in caches)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize(("prompt", "new", "step"), [(90, 20, 16), (30, 40, 64), (5, 6, 16)])
def test_declared_needs_cover_what_is_held(loaded: LoadedModel, case: Case, prompt: int, new: int, step: int) -> None:
    """One sequence, fed for real: never more than declared, and not far less at the end."""
    method = resolve(case.method, case.params, budget=None if case.method == "full" else case.budget + 10)
    directions = find_directions(loaded, method)
    with attention_tap(loaded.model):
        probe = MethodSession(loaded.model, method, budget=None, directions=directions)
        mx.eval(loaded.model(mx.zeros((1, 1), mx.int32), cache=probe.caches))
        shapes = layer_shapes(probe)
        session, spent = (
            MethodSession(loaded.model, method, budget=method.budget, directions=directions, encode=encode)
            for _ in range(2)
        )
        needs = footprint(spent, shapes, Prompt(range(prompt)), new, step)
        with session.reading():
            for start in range(0, prompt - 1, step):
                loaded.model(mx.zeros((1, min(step, prompt - 1 - start)), mx.int32), cache=session.caches)
                held = sum(c.peak_slots * c.row_bytes + c.peak_aux_bytes for c in session.evicting)
                assert held <= needs.prefill_bytes
            loaded.model(mx.zeros((1, 1), mx.int32), cache=session.caches)
        if case.method == "kvzip:paper":  # its passes need text: the engine's tests run them
            return
        session.after_prefill([0] * prompt)
        needs = settled(session, needs, new)
        declared = sum(n * s.row_bytes for n, s in zip(needs.slots, shapes, strict=True)) + needs.aux_bytes
        for _ in range(new - 1):
            loaded.model(mx.zeros((1, 1), mx.int32), cache=session.caches)
            assert held_bytes(session.evicting) <= declared


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_limit_is_never_passed_and_used_well(
    loaded: LoadedModel, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit for about three sequences: several decode together, never over the limit, answers as alone."""
    method = resolve(case.method, case.params, budget=None if case.method == "full" else case.budget + 10)
    work = requests(24)
    alone = {a.sample_id: a for a in Engine(loaded, method).generate(work) if isinstance(a, Generation)}
    one = max(
        a.cache.allocated_cache_bytes + a.cache.peak_total_bytes - a.cache.peak_cache_bytes for a in alone.values()
    )
    limit = int(one * 4.5)
    held: list[int] = []
    step = _Batch.step

    def watched(batch: _Batch) -> list[Generation]:
        finished = step(batch)
        held.append(held_bytes(batch.caches))
        return finished

    monkeypatch.setattr(_Batch, "step", watched)
    engine = Engine(loaded, method, batch_size="auto", memory_limit=limit)
    together = {a.sample_id: a for a in engine.generate(work) if isinstance(a, Generation)}
    assert max(held) <= limit
    assert {k: a.tokens for k, a in together.items()} == {k: a.tokens for k, a in alone.items()}
    assert max(engine.report().batch_sizes) >= 2


def test_a_sample_that_never_fits_fails_and_says_why(loaded: LoadedModel) -> None:
    engine = Engine(loaded, resolve("full"), batch_size=2, memory_limit=70_000)
    long, short = engine.generate([Generate("long", "x" * 600, 4), Generate("short", "x" * 20, 4)])
    assert isinstance(long, Failure)
    assert "memory_limit=70,000" in long.error
    assert isinstance(short, Generation)


def test_auto_takes_what_the_machine_has(loaded: LoadedModel) -> None:
    engine = Engine(loaded, resolve("morphkv", budget=32), batch_size="auto")
    assert engine.memory_limit is not None
    list(engine.generate(requests(6)))
    assert max(engine.report().batch_sizes) == len(requests())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8GB", 8 * 10**9), ("512MiB", 512 * 2**20), ("1.5 gb", 15 * 10**8), ("1000", 1000), ("2k", None)],
)
def test_sizes_are_read_as_written(text: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="2k"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "nan", "inf", "1e30GB", "8 G B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="memory_limit"):
        parse_bytes(text)
