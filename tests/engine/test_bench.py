"""The bench's constructions: turns, pinned rows, steady state, the caches' part alone. No time is judged here."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.engine.bench import Bench, DecodeTimes, PrefillTimes
from velox_eval.engine.bench_lanes import CachesAlone, Lane, feed, method_lane, plain_caches, plain_lane
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.timing import interleaved, ratio, spread
from velox_eval.errors import ConfigError
from velox_eval.methods import resolve
from velox_eval.mlx import mx

BUDGET, BATCH = 32, 3
TEXTS = ("The old harbour town woke slowly. ", "Gulls over the roofs, bread in the ovens. ")
ROW = 128  # bytes of a row of one layer of the tiny llama, which has two


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Any) -> LoadedModel:
    return load_model(str(tiny_model_dir))


@pytest.fixture(scope="module")
def bench(loaded: LoadedModel) -> Bench:
    return Bench(loaded, TEXTS, prefill_step=16, steps=2)


def lane_of(loaded: LoadedModel, bench: Bench, method: str, batch: int) -> Lane:
    engine = Engine(loaded, resolve(method, budget=BUDGET), prefill_step=16, batch_size=batch)
    return method_lane(engine, bench.text, BUDGET, batch)


def test_every_arm_is_timed_once_a_repeat_in_an_order_that_rotates() -> None:
    order: list[str] = []
    clock = itertools.count()

    def arm(name: str) -> Any:
        return lambda: order.append(name) or float(next(clock))

    found = interleaved({name: arm(name) for name in "abc"}, 4)
    assert "".join(order) == "abcbcacababc"
    assert found == {"a": [0, 5, 7, 9], "b": [1, 3, 8, 10], "c": [2, 4, 6, 11]}


def test_an_arm_at_its_limit_is_left_out_of_later_repeats() -> None:
    found = interleaved({"quick": lambda: 1.0, "slow": lambda: 4.0, "slowest": lambda: 99.0}, 5, limits={"slow": 7.0})
    assert [len(found[name]) for name in ("quick", "slow", "slowest")] == [5, 2, 5]
    assert len(interleaved({"a": lambda: 9.0}, 3, limits={"a": 1.0})["a"]) == 1  # once in any case


def test_a_ratio_is_of_medians_and_shows_the_spread_within_repeats() -> None:
    one, two = [2.0, 8.0, 3.0], [1.0, 2.0, 3.0]
    got = ratio(one, two)
    assert (got.value, got.low, got.high) == (3.0 / 2.0, 1.0, 4.0)
    assert ratio([2.0], two).value == 1.0
    assert (spread(one).median, spread(one).low, spread(one).high, spread(one).n) == (3.0, 2.0, 8.0, 3)
    with pytest.raises(ValueError):
        spread([])


@pytest.mark.parametrize("rows", [BUDGET, 2 * BUDGET + 5])
def test_a_pinned_lane_attends_to_as_many_rows_every_step(loaded: LoadedModel, bench: Bench, rows: int) -> None:
    """Its step is that of a plain cache that holds these rows, again and again."""
    model = loaded.model
    source = plain_caches(model, bench.passage(BUDGET), 16)
    lane = plain_lane(model, source, rows, BATCH)
    assert [cache.offset for cache in lane.caches] == [rows, rows]
    assert [cache.offset for cache in source] == [BUDGET, BUDGET]
    for cache, fed in zip(lane.caches, source, strict=True):
        held = np.array(fed.keys[:, :, :BUDGET])
        for sequence in range(BATCH):
            kept = np.array(cache.keys[sequence : sequence + 1, :, :rows])
            np.testing.assert_array_equal(kept, np.take(held, np.arange(rows) % BUDGET, axis=2))
    first = []
    for _ in range(3):
        lane.last = [7] * BATCH
        lane.step()
        first.append(list(lane.last))
        assert [cache.offset for cache in lane.caches] == [rows, rows]
        assert all(cache.keys.shape[2] <= rows + 256 for cache in lane.caches)
    assert first[0] == first[1] == first[2]
    if rows == BUDGET:  # the prompt's own rows at their own places: plain decoding
        logits = model(mx.array([[7]]), cache=source)[:, -1]
        assert first[0] == [int(mx.argmax(logits))] * BATCH


@pytest.mark.parametrize(
    "method", ["morphkv", "kvzip", "h2o", "tova:paper", "streaming_llm:paper", "pyramidkv", "squeeze"]
)
def test_a_method_lane_is_the_engines_batch_in_steady_state(loaded: LoadedModel, bench: Bench, method: str) -> None:
    """Every layer is full, they hold `budget` rows in the mean, and rows and tokens are those of one alone."""
    with attention_tap(loaded.model):
        together, alone = (lane_of(loaded, bench, method, batch) for batch in (BATCH, 1))
        for _ in range(6):
            together.step()
            alone.step()
            assert together.last == alone.last * BATCH
    for many, one in zip(together.caches, alone.caches, strict=True):
        assert many.rows == many.budgets
        assert many.evicted_rows[0] >= 6
        kept = np.sort(np.array(many.kept_positions()), axis=-1)
        expected = np.sort(np.array(one.kept_positions()), axis=-1)
        np.testing.assert_array_equal(kept, np.repeat(expected, BATCH, axis=0))
    assert sum(cache.rows[0] for cache in together.caches) == BUDGET * len(together.caches)


@pytest.mark.parametrize("method", ["morphkv", "tova:paper"])
def test_the_caches_alone_get_what_the_step_brought_them(loaded: LoadedModel, bench: Bench, method: str) -> None:
    with attention_tap(loaded.model):
        lane = lane_of(loaded, bench, method, BATCH)
        lane.step()
        seen = lane.caches[0].tokens_seen[0]
        inputs = lane.recorded()
        for cache, new in zip(lane.caches, inputs, strict=True):
            assert not {"update_and_fetch", "attended"} & vars(cache).keys()
            newest = np.array(cache.kept_positions()) == seen
            np.testing.assert_array_equal(
                np.array(cache.slots.keys)[newest], np.array(new.keys)[:, :, 0].reshape(-1, 8)
            )
            assert new.queries is not None
        CachesAlone(lane.caches, inputs).timed(3)
        for cache in lane.caches:
            assert cache.tokens_seen == [seen + 4] * BATCH
            assert cache.rows == [BUDGET] * BATCH
            assert not cache.awaits_queries
        lane.step()  # and it goes on


def test_decode_compares_medians_and_counts_bytes_from_the_caches(bench: Bench) -> None:
    times = bench.decode(
        resolve("morphkv", {"window": 4}, budget=BUDGET),
        batch=BATCH,
        repeats=3,
        context=80,
        veloxquant=resolve("veloxquant/morphkv", budget=BUDGET),
    )
    assert isinstance(times, DecodeTimes)
    assert (times.method, times.params["window"], times.budget, times.batch) == ("morphkv", 4, BUDGET, BATCH)
    assert times.full_ms is not None
    assert times.full_over is not None
    assert times.veloxquant_ms is not None
    assert times.veloxquant_over is not None
    assert times.cache_ms is not None
    assert {s.n for s in (times.step_ms, times.cache_ms, times.pinned_ms, times.full_ms, times.veloxquant_ms)} == {3}
    assert times.over_pinned.value == pytest.approx(times.step_ms.median / times.pinned_ms.median)
    assert times.full_over.value == pytest.approx(times.full_ms.median / times.step_ms.median)
    assert times.veloxquant_over.value == pytest.approx(times.veloxquant_ms.median / times.step_ms.median * BATCH)
    assert times.tokens_per_second == pytest.approx(BATCH / times.step_ms.median * 1000)
    assert times.bytes.kept == BUDGET * ROW * 2
    assert times.bytes.allocated == (BUDGET + 1) * ROW * 2
    assert times.bytes.full == 80 * ROW * 2
    window = 4 * 2 * 4 * (8 + BUDGET + 1 + 1)  # of each layer's 2 heads in float32: 4 voters, what they pay, bases
    positions = 2 * 4 * (BUDGET + 1 + 1)  # and the hole
    assert times.bytes.aux == 2 * (window + positions)


def test_what_is_not_asked_for_is_not_timed(bench: Bench) -> None:
    times = bench.decode(resolve("snapkv", {"obs_window": 4}, budget=BUDGET), batch=1, repeats=1)
    assert (times.context, times.full_ms, times.full_over, times.bytes.full) == (None,) * 4
    assert (times.veloxquant_ms, times.veloxquant_over) == (None, None)
    assert times.bytes.kept > BUDGET * ROW * 2  # every decoded row stays


def test_the_packages_caches_can_be_timed_themselves(bench: Bench) -> None:
    times = bench.decode(resolve("veloxquant/tova", budget=BUDGET), batch=1, repeats=1)
    assert times.method == "veloxquant/tova"
    assert times.cache_ms is None  # their step cannot be told apart
    with pytest.raises(ConfigError, match="one at a time"):
        bench.decode(resolve("veloxquant/tova", budget=BUDGET), batch=2, repeats=1)


def test_prompts_of_several_methods_are_timed_together(bench: Bench) -> None:
    methods = [resolve("morphkv", budget=BUDGET), resolve("morphkv", {"window": 4}, budget=BUDGET)]
    got = bench.prefill(
        methods, context=128, repeats=3, veloxquant={1: resolve("veloxquant/morphkv", budget=BUDGET)}, seconds=0.0
    )
    assert all(isinstance(times, PrefillTimes) for times in got)
    assert [times.params["window"] for times in got] == [8, 4]
    assert [times.prompt_tokens for times in got] == [128, 128]
    assert got[0].full_seconds == got[1].full_seconds
    assert got[0].veloxquant_seconds is None
    assert got[1].veloxquant_seconds is not None
    assert got[1].veloxquant_seconds.n == 1  # its time was up after the first
    for times in got:
        assert times.seconds.n == 3
        assert times.over_full.value == pytest.approx(times.seconds.median / times.full_seconds.median)
        assert times.tokens_per_second == pytest.approx(128 / times.seconds.median)


def test_what_cannot_work_is_refused(bench: Bench) -> None:
    method = resolve("morphkv", budget=BUDGET)
    with pytest.raises(ConfigError, match=f"context=20 must be at least budget={BUDGET}"):
        bench.decode(method, batch=1, repeats=1, context=20)
    with pytest.raises(ConfigError, match="context=4096 must be below the model's context of 4096"):
        bench.prefill([method], context=4096, repeats=1)
    with pytest.raises(ConfigError, match="full has no budget"):
        bench.decode(resolve("full"), batch=1, repeats=1)
    with pytest.raises(ConfigError, match=r"batch=99999999 takes [\d,]+ bytes of caches, and this machine has [\d,]+"):
        bench.decode(method, batch=99_999_999, repeats=1)


def test_feeding_in_chunks_is_feeding_at_once(loaded: LoadedModel, bench: Bench) -> None:
    whole = plain_caches(loaded.model, bench.passage(40), 64)
    chunks = plain_caches(loaded.model, bench.passage(24), 7)
    feed(loaded.model, bench.passage(40)[24:], chunks, 5)
    for one, other in zip(whole, chunks, strict=True):
        assert one.offset == other.offset == 40
        np.testing.assert_allclose(np.array(one.keys[:, :, :40]), np.array(other.keys[:, :, :40]), atol=1e-4)
