"""Properties of every method on every shape: capacity, protection, determinism, what attention is handed, bytes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox_eval.caches.base import EvictionCache
from velox_eval.errors import ConfigError
from velox_eval.methods import METHODS, resolve
from velox_eval.methods.policy import Layer

from .matrix import CASES, EVICTING, Case
from .streams import Stream, end_prompt, feed, kept, new_cache, stream

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**20),
        "batch": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "dim": st.sampled_from([2, 4, 8, 16]),
        "chunks": st.lists(st.sampled_from([1, 1, 1, 2, 5, 9]), min_size=1, max_size=14),
    }
)


def test_every_method_and_variant_has_a_row() -> None:
    rows = {case.method for case in CASES}
    for spec in METHODS.values():
        for variant in spec.variants:
            assert (spec.name if variant == "adapted" else f"{spec.name}:{variant}") in rows


def declared_rows(case: Case, budget: int, prompt: int, decoded: int, prompt_done: bool) -> tuple[int, int]:
    """Fewest and most rows a case may hold after `prompt` prompt tokens and `decoded` decoded ones."""
    if case.holds_prompt and not prompt_done:
        return prompt, prompt
    if case.grows:
        rows = min(budget, prompt) + decoded
        return rows, rows
    seen = prompt + decoded
    if seen < case.warm_up:
        return seen, seen
    return min(budget, seen), min(budget + case.slack, seen)


@pytest.mark.parametrize("case", EVICTING, ids=lambda case: case.id)
@settings(max_examples=15, deadline=None)
@given(shape=shapes, decoded=st.integers(0, 12), extra=st.integers(0, 6), block=st.sampled_from([None, 1, 3]))
def test_holds_what_it_declares_no_more_and_no_less(
    case: Case,
    shape: dict[str, Any],
    decoded: int,
    extra: int,
    block: int | None,
) -> None:
    """After every step; sinks and recent rows survive; new rows are handed to attention last."""
    chunks, budget, batch = shape["chunks"], case.smallest + extra, shape["batch"]
    prompt = sum(chunks)
    data = stream(shape["seed"], batch, shape["heads"], prompt + decoded, shape["dim"])
    cache = new_cache(case.method, case.params, budget, block)
    told = cache.policy.importance

    def worth(*given: Any) -> Any:
        """What the rule says, which must be a number."""
        found = told(*given)
        assert not np.isnan(np.array(found)).any()
        return found

    cache.policy.importance = worth  # type: ignore[method-assign]
    fed = held = peak = 0
    for step, chunk in enumerate([*chunks, *[1] * decoded]):
        done = step >= len(chunks)
        if step == len(chunks):
            peak = max(peak, end_prompt(cache, data))
            held = cache.size()
            assert held <= declared_rows(case, budget, prompt, 0, prompt_done=True)[1]
        ((handed, _),) = feed(cache, data, [chunk], start=fed)
        assert handed.shape[2] == held + chunk
        if chunk > 1:
            np.testing.assert_array_equal(handed[:, :, -chunk:], data.keys[:, :, fed : fed + chunk])
        peak = max(peak, held + chunk)
        fed += chunk
        held = cache.size()
        # Single tokens of a prompt are decode steps to a cache: rules that keep those may hold them all.
        if done or not case.grows:
            low, high = declared_rows(
                case, budget, fed - (step - len(chunks) + 1 if done else 0), step - len(chunks) + 1 if done else 0, done
            )
            assert low <= held <= high
        positions = kept(cache)
        assert positions.shape[-1] == held
        assert (np.diff(positions, axis=-1) > 0).all()
        sinks = min(case.sinks, fed)
        assert (positions[..., :sinks] == np.arange(sinks)).all()
        recent = min(case.recent, fed)
        if recent:
            assert (positions[..., -recent:] == np.arange(fed - recent, fed)).all()
        assert cache.tokens_seen == [fed] * batch
    row = shape["heads"] * shape["dim"] * 2 * 4
    assert cache.kept_bytes == held * row * batch
    assert cache.peak_rows == [peak] * batch
    assert cache.full_seq_bytes == fed * row * batch
    assert cache.evicted_rows == [fed - held] * batch
    assert cache.aux_bytes > 0
    assert all(np.isfinite(np.array(array)).all() for array in cache.state)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rows_stay_together(case: Case) -> None:
    """Each key still lies with its own value and position, and a deep copy goes its own way."""
    data = stream(3, 2, 2, 40, 8)
    cache = new_cache(case.method, case.params, case.budget if case.method != "full" else None)
    feed(cache, data, [20])
    end_prompt(cache, data)
    feed(cache, data, [1] * 12, start=20)
    twin = copy.deepcopy(cache)
    feed(cache, data, [1] * 8, start=32)
    assert twin.tokens_seen == [32, 32]
    feed(twin, data, [1] * 8, start=32)
    np.testing.assert_array_equal(kept(cache), kept(twin))
    assert cache.slots is not None
    positions = np.array(cache.kept_positions())
    keys, values = np.array(cache.slots.keys), np.array(cache.slots.values)
    for sequence, head, slot in zip(*np.nonzero(positions >= 0), strict=True):
        at = (sequence, head, positions[sequence, head, slot])
        np.testing.assert_array_equal(keys[sequence, head, slot], data.keys[at])
        if not cache.policy.merges:
            np.testing.assert_array_equal(values[sequence, head, slot], data.values[at])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_budget_never_reached_changes_nothing(case: Case) -> None:
    """Also where layers share the budget unequally: no layer evicts before the whole is reached."""
    data = stream(5, 1, 2, 30, 8)
    for layer in (Layer(0, 4), Layer(3, 4)):
        cache = new_cache(case.method, case.params, 30 if case.method != "full" else None, layer=layer)
        feed(cache, data, [11])
        end_prompt(cache, data)
        handed = feed(cache, data, [1] * 19, start=11)
        np.testing.assert_array_equal(handed[-1][0], data.keys)
        np.testing.assert_array_equal(handed[-1][1], data.values)
        assert cache.evicted_rows == [0]
        assert cache.compression_ratio == 1.0


@pytest.mark.parametrize("case", EVICTING, ids=lambda case: case.id)
def test_sequences_stacked_keep_what_they_keep_alone(case: Case) -> None:
    """Different lengths, budgets and fill states decode together; leaving and joining changes nothing."""
    lengths, budgets = [25, 4, 14], [case.budget, case.budget + 5, case.budget + 2]
    data = [stream(seed, 1, 2, 60, 8) for seed in range(3)]
    alone, members = [], []
    for i in range(3):
        for group in (alone, members):
            cache = new_cache(case.method, case.params, budgets[i], layer=Layer(seed=i))
            feed(cache, data[i], [lengths[i]])
            end_prompt(cache, data[i])
            group.append(cache)
        feed(alone[i], data[i], [1] * 30, start=lengths[i])
    batch = EvictionCache.stack(members)

    def step(at: int, order: list[int]) -> None:
        parts = [data[i].part(lengths[i] + at, lengths[i] + at + 1) for i in order]
        together = Stream(
            *(np.concatenate(arrays) for arrays in zip(*((p.keys, p.values, p.queries) for p in parts), strict=True))
        )
        before = list(batch.rows)
        ((handed, _),) = feed(batch, together, [1])
        mask = batch.mask_for(1, handed.shape[2], None)
        rows = np.array(mask)[:, 0, 0].sum(axis=-1).tolist() if mask is not None else [handed.shape[2]] * len(order)
        assert rows == [count + 1 for count in before]

    for at in range(12):
        step(at, [0, 1, 2])
    batch.select([2, 0])
    for at in range(12, 30):
        step(at, [2, 0])
    positions = np.array(batch.kept_positions())
    for place, i in enumerate([2, 0]):
        held = np.sort(np.where(positions[place] < 0, 10**6, positions[place]), axis=-1)
        np.testing.assert_array_equal(held[:, : batch.rows[place]], kept(alone[i])[0])


def test_padding_slots_never_count() -> None:
    """A policy that sees free slots gives them no weight: kvzip's probe and softmax leave them out."""
    data = stream(1, 2, 2, 20, 8)
    short = new_cache("kvzip", {"n_sink": 1}, 15)
    long = new_cache("kvzip", {"n_sink": 1}, 8)
    feed(short, data.one(0), [3])
    feed(long, data.one(1), [12])
    before = kept(long)
    batch = EvictionCache.stack([short, long])
    feed(batch, data, [1] * 8, start=12)
    feed(long, data.one(1), [1] * 8, start=12)
    assert (before != kept(long)).any()
    positions = np.array(batch.kept_positions())[1]
    np.testing.assert_array_equal(np.sort(np.where(positions < 0, 99, positions), axis=-1)[:, :8], kept(long)[0])


@pytest.mark.parametrize("case", EVICTING, ids=lambda case: case.id)
def test_impossible_budgets_are_refused_when_built(case: Case) -> None:
    assert resolve(case.method, case.params, budget=case.smallest).budget == case.smallest
    for bad in range(-1, case.smallest):
        with pytest.raises(ConfigError, match=str(bad)):
            resolve(case.method, case.params, budget=bad)
    least = resolve(case.method, case.params, keep=1e-9)
    assert least.budget_for(1000) == case.smallest


@pytest.mark.parametrize(
    ("name", "params", "budget", "keep", "expected"),
    [
        ("morfkv", {}, None, None, "did you mean 'morphkv'"),
        ("morphkv:papre", {}, None, None, "papre"),
        ("morphkv", {"windw": 3}, None, None, "did you mean 'window'"),
        ("morphkv", {"window": 0}, None, None, "window=0"),
        ("morphkv", {"window": "eight"}, None, None, "eight"),
        ("morphkv", {"window": 2.5}, None, None, "2.5"),
        ("morphkv", {"window": 500, "n_sink": 12}, 512, None, "window=500"),
        ("morphkv", {"n_sink": -1}, None, None, "n_sink=-1"),
        ("kvzip", {"probe": "future"}, None, None, "context, latest"),
        ("tova", {"n_sink": 8}, 8, None, "n_sink=8"),
        ("tova", {}, 100, 0.5, "both"),
        ("tova", {}, None, 0.0, "keep=0"),
        ("tova", {}, None, 1.5, "keep=1.5"),
    ],
)
def test_bad_settings_name_the_value(name: str, params: dict, budget: int, keep: float, expected: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=expected):
        resolve(name, params, budget=budget, keep=keep)


def test_keep_is_a_share_of_the_sample_and_budget_is_rows() -> None:
    """One budget, either way to say it (a ratio of the tokens, or a number of rows)."""
    ratio = resolve("sliding_window", keep=0.5)
    assert [ratio.budget_for(total) for total in (40, 100, 1)] == [20, 50, 1]
    assert resolve("sliding_window", keep=0.7).budget_for(10) == 7
    assert resolve("sliding_window", budget=16).budget_for(40) == 16
    assert resolve("full").budget_for(40) is None
