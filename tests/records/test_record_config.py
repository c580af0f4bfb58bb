"""The hash covers what changes answers, and nothing else; bad settings say what is allowed."""

from __future__ import annotations

import pytest

from velox_eval.errors import ConfigError
from velox_eval.records.config import Performance, RunConfig, TaskChoice, build_config, canonical_json, config_hash


@pytest.mark.parametrize(
    "change",
    [
        {"method": "tova"},
        {"params": {"n_sink": 4, "window": 9}},
        {"budget": 65},
        {"budget": None, "keep": 0.5},
        {"prefill_step": 64},
        {"evict_block": 1},
        {"temperature": 0.7},
        {"top_p": 0.9},
        {"seed": 1},
        {"task": TaskChoice(name="longwriter", source="bundled")},
        {"task": TaskChoice(name="longgenbench", source="data")},
    ],
)
def test_a_setting_that_changes_answers_changes_the_hash(config, identity, change):
    assert config_hash(config(**change), identity()) != config_hash(config(), identity())


@pytest.mark.parametrize(
    "change",
    [
        {"data_sha256": "0" * 64},
        {"requests_sha256": "0" * 64},
        {"model_sha256": "0" * 64},
        {"task_version": 2},
        {"judge": "rules@3"},
        {"code_sha256": "c" * 64},
        {"versions": {"mlx": "0.32.5"}},
        {"device": "gpu"},
        {"route": "bfloat16"},
        {"rescored_from": "abc-1"},
    ],
)
def test_a_content_that_changes_answers_changes_the_hash(config, identity, change):
    assert config_hash(config(), identity(**change)) != config_hash(config(), identity())


@pytest.mark.parametrize(
    "change",
    [
        {"performance": Performance(batch_size=8, memory_limit=10**9)},
        {"model": "/another/place"},
        {"params": {"window": 8, "n_sink": 4}},
        {"task": TaskChoice(name="longgenbench", source="bundled", data="/another/copy.json")},
    ],
)
def test_speed_settings_names_and_order_do_not(config, identity, change):
    assert config_hash(config(**change), identity()) == config_hash(config(), identity())


def test_hash_is_stable_through_json(config, identity):
    again = RunConfig.model_validate_json(config(params={"a": 1, "b": 1.0, "c": True}).model_dump_json())
    assert config_hash(again, identity()) == config_hash(config(params={"a": 1, "b": 1.0, "c": True}), identity())
    assert config_hash(again, identity()) != config_hash(config(params={"a": 1, "b": 1, "c": True}), identity())


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"budget": 64, "keep": 0.5}, "budget=64 and keep=0.5 are both given"),
        ({"temperature": -0.1}, "temperature=-0.1: must be at least 0"),
        ({"top_p": 0.0}, "top_p=0.0: must be above 0"),
        ({"top_p": 1.5}, "top_p=1.5: must be at most 1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"prefill_step": 0}, "prefill_step=0: must be at least 1"),
        ({"evict_block": 0}, "evict_block=0: must be at least 1"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"task": {"name": "x", "limit": 0}}, "limit=0: must be at least 1"),
        ({"task": {"name": "x", "max_tokens": -3}}, "max_tokens=-3: must be at least 1"),
        ({"performance": {"batch_size": 0}}, "batch_size=0: must be at least 1"),
        ({"no_such": 1}, "no_such=1"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_value(bad, says):
    good = {"task": {"name": "longgenbench"}, "model": "tiny", "method": "full"}
    build_config(**good)
    with pytest.raises(ConfigError, match=f"^{says.replace('(', '.').replace(')', '.')}"):
        build_config(**(good | bad))


def test_canonical_json_has_no_nan():
    with pytest.raises(ValueError):
        canonical_json({"x": float("nan")})
