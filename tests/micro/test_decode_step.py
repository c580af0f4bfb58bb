"""The caches' work in one decode step, per method: batch 8, 512 rows, the default model's heads, two layers.

A normal test run only checks that each runs. To time them: pytest tests/micro --benchmark-enable
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.conftest import make_tiny_llama
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.engine.bench_lanes import CachesAlone, method_lane
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.methods import resolve
from velox_eval.runs.bench_suite import constant_size_methods

BUDGET, BATCH, WARM_UP = 512, 8, 3
HEADS = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
TEXT = "The old harbour town woke slowly. " * 100  # a byte is a token
QUERIES = ("morphkv:paper", "h2o:paper", "tova:paper")  # variants that rank by the model's queries


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Any) -> LoadedModel:
    return dataclasses.replace(load_model(str(tiny_model_dir)), model=make_tiny_llama(**HEADS))


@pytest.mark.parametrize("name", [*constant_size_methods(), *QUERIES])
def test_cache_work_of_a_decode_step(benchmark: Any, loaded: LoadedModel, name: str) -> None:
    engine = Engine(loaded, resolve(name, budget=BUDGET), batch_size=BATCH)
    with attention_tap(loaded.model):
        lane = method_lane(engine, lambda count: TEXT[:count], BUDGET, BATCH)
        lane.timed(WARM_UP)
        alone = CachesAlone(lane.caches, lane.recorded())
        benchmark(alone.step)
    rows = sum(sum(cache.rows) for cache in lane.caches)
    assert rows == BUDGET * BATCH * len(lane.caches)  # layer budgets have this mean too
