"""What a new rule can rely on: what Rows shows it, and that its own mistakes are told or do little harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velox_eval.methods as methods
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.together import choose_together
from velox_eval.engine.requests import Failure
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods.policy import Policy, Rows, State
from velox_eval.mlx import mx

from .streams import kept, stream


class Noting(Policy):
    """Ranks by recency and notes what it was shown."""

    chooses_together = True

    def __init__(self) -> None:
        super().__init__({"n_sink": 1})
        self.seen: list[Any] = []

    def observe(self, rows: Rows, state: State) -> State:
        """Notes the new values."""
        self.seen.append(np.array(rows.new_values))
        return {"count": mx.zeros((rows.positions.shape[0], 1))}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """The older, the sooner."""
        return rows.positions.astype(mx.float32)


class Worth(Policy):
    """Ranks by what it is told: a number a position."""

    def __init__(self, worth: Any) -> None:
        super().__init__({"n_sink": 2})
        self.protected_recent = 2
        self.worth = worth

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Looks the position up."""
        return self.worth(rows)


def fed(cache: EvictionCache, chunks: list[int], seed: int = 0) -> Any:
    data = stream(seed, 2, 2, sum(chunks), 8)
    at = 0
    for size in chunks:
        part = data.part(at, at + size)
        cache.update_and_fetch(mx.array(part.keys), mx.array(part.values))
        at += size
    return data.values


@pytest.mark.parametrize("chunks", [[3, 5, 1, 1, 1, 1], [1] * 12, [9]])
def test_new_values_are_those_that_came_in(chunks: list[int]) -> None:
    policy = Noting()
    values = fed(EvictionCache(policy, 6), chunks)
    np.testing.assert_array_equal(np.concatenate(policy.seen, axis=2), values)


def test_layers_that_choose_together_have_each_its_new_values() -> None:
    caches = [EvictionCache(Noting(), 6) for _ in range(2)]
    for layer, cache in enumerate(caches):
        fed(cache, [5], seed=layer)
    choose_together(caches)
    data = [stream(layer + 7, 2, 2, 4, 8) for layer in range(2)]
    for step in range(4):
        for cache, layer in zip(caches, data, strict=True):
            part = layer.part(step, step + 1)
            cache.update_and_fetch(mx.array(part.keys), mx.array(part.values))
        shown = caches[0].policy.seen[-1]
        np.testing.assert_array_equal(shown, np.concatenate([layer.values[:, :, step : step + 1] for layer in data]))


def test_a_rule_that_needs_one_layers_rows_is_told_how_to_read_them() -> None:
    class Reading(Noting):
        def importance(self, rows: Rows, state: State) -> mx.array:
            return rows.values.sum(axis=-1)

    caches = [EvictionCache(Reading(), 6) for _ in range(2)]
    for cache in caches:
        fed(cache, [6])
    choose_together(caches)
    fed(caches[0], [1])
    with pytest.raises(MethodError, match="values_at and new_values"):
        fed(caches[1], [1])


@pytest.mark.parametrize("bad", [lambda p: p >= 0, lambda p: p == 5, lambda p: p == 7])
def test_a_worth_that_is_no_number_costs_no_protected_row(bad: Any) -> None:
    policy = Worth(lambda rows: mx.where(bad(rows.positions), mx.nan, rows.positions.astype(mx.float32)))
    cache = EvictionCache(policy, 7)
    fed(cache, [7, *[1] * 6])
    rows = kept(cache)
    assert (rows[..., :2] == [0, 1]).all()
    assert (rows[..., -2:] == [11, 12]).all()
    assert rows.shape[-1] == 7


def test_a_worth_of_another_shape_is_told() -> None:
    cache = EvictionCache(Worth(lambda rows: mx.zeros((1, 1, rows.positions.shape[-1]))), 5)
    with pytest.raises(MethodError, match=r"Worth\.importance gave \(1, 1, 8\) for rows \(2, 2, 8\)"):
        fed(cache, [8])


def test_two_files_of_one_name_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zzz_copied.py").write_text("from velox_eval.methods.knorm import SPEC\n")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    with pytest.raises(ConfigError, match=r"knorm\.py and methods/zzz_copied\.py both name 'knorm'"):
        methods._collect()


def test_an_unforeseen_error_names_the_rules_line() -> None:
    rows = object()
    try:
        Noting.__mro__[1].keep_scores(Noting(), rows, {})  # type: ignore[arg-type]
    except AttributeError as error:
        told = Failure.of("s", error).error
    assert told.startswith("AttributeError:")
    assert "(methods/" in told
    assert Failure.of("s", MethodError("no such thing")).error == "MethodError: no such thing"
