"""The bundled scenarios: the official schema, made the same everywhere from a seed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox_eval.tasks import TaskData, TaskOptions, get_task
from velox_eval.tasks.scenarios import scenarios

CATEGORIES = ("checks_once", "checks_range", "checks_periodic")


def load(**options: Any) -> TaskData:
    return get_task("longgenbench", TaskOptions(**options)).load()


def test_the_default_set_is_these_very_samples() -> None:
    """Pinned: other bytes on another machine, or after a change of words, need a new generator version."""
    data = load(limit=40)
    assert data.sha256 == "a17b57d3c355e8857e480fbf283c239ebc5a7aefecd22a2127b3655820721b62"
    assert data.origin == "velox-eval scenarios 1, seed 0, 12 entries"
    assert (data.source, data.total, data.incomplete, data.notes) == ("bundled", 40, None, ())


def test_families_take_turns_so_that_a_limit_of_four_has_each() -> None:
    assert [sample.stratum for sample in load(limit=4).samples] == ["Week", "Floor", "Menu Week", "Block"]
    small, large = load(limit=4), load(limit=12)
    assert list(large.samples[:4]) == list(small.samples)
    assert len({sample.sample_id for sample in load(limit=40).samples}) == 40


def test_without_a_limit_the_definitions_own_one_holds_and_is_said() -> None:
    task = get_task("longgenbench")
    limit = task.info.settings["bundled"]["limit"]
    data = task.load()
    assert len(data.samples) == limit
    assert data.incomplete == f"first {limit} of 40 samples"


def test_another_seed_gives_other_samples() -> None:
    assert load(data_seed=1).sha256 != load().sha256
    assert load(data_seed=1) == load(data_seed=1)


@given(st.integers(0, 10**9), st.integers(8, 400), st.integers(1, 8))
def test_every_scenario_is_sound(seed: int, entries: int, count: int) -> None:
    rows = scenarios(seed, entries, count)
    assert rows == scenarios(seed, entries, count)
    assert len(rows) == count
    for row in rows:
        assert row["number"] == entries
        assert row["prompt"].endswith("\n*** started ***\n" + row["prefix"])
        assert row["prefix"] == f"#*# {row['type']} 1:"
        assert f"after {row['type'].split()[-1]} {entries} comes '*** finished'" in row["prompt"]
        for category in CATEGORIES:
            ids = [int(key) for key in row[category]]
            assert ids
            assert all(3 <= entry <= entries for entry in ids)  # 1 and 2 are the prompt's examples
        assert len(row["checks_once"]) >= 3
        assert len(set(row["checks_once"].values())) == len(row["checks_once"])


@given(st.integers(0, 10**6), st.integers(8, 400))
def test_the_prompt_states_each_check_exactly(seed: int, entries: int) -> None:
    for row in scenarios(seed, entries, 4):
        assert _demanded(row["prompt"], row["type"].split()[-1], entries) == {name: row[name] for name in CATEGORIES}


def _demanded(prompt: str, word: str, entries: int) -> dict[str, dict[str, str]]:
    """What a reader of the prompt would check."""
    once = {key: text for key, text in re.findall(rf"^{word} (\d+): (.+)$", prompt, re.MULTILINE) if int(key) > 2}
    (ranged,) = re.findall(rf"^{word} (\d+) to {word} (\d+): (.+)$", prompt, re.MULTILINE)
    (every,) = re.findall(rf"^Every (\d+) \w+ from {word} (\d+) on: (.+)$", prompt, re.MULTILINE)
    return {
        "checks_once": once,
        "checks_range": {str(entry): ranged[2] for entry in range(int(ranged[0]), int(ranged[1]) + 1)},
        "checks_periodic": {str(entry): every[2] for entry in range(int(every[1]), entries + 1, int(every[0]))},
    }


def test_the_entries_of_a_request_set_its_token_limit() -> None:
    for entries in (12, 24):
        task = get_task("longgenbench", TaskOptions(entries=entries, limit=1))
        request = task.request(task.load().samples[0])
        assert request.max_tokens == task.info.settings["bundled"]["max_tokens"] * entries // 12
        assert request.stop == ("*** finished",)
        assert not request.chat
    task = get_task("longgenbench", TaskOptions(max_tokens=7))
    assert {task.request(sample).max_tokens for sample in task.load().samples} == {7}


@pytest.mark.model
def test_prompts_are_short_for_the_default_model(real_model: Any) -> None:
    task = get_task("longgenbench", TaskOptions(limit=40))
    lengths = [len(real_model.tokenizer.encode(task.request(sample).prompt)) for sample in task.load().samples]
    assert min(lengths) > 150
    assert max(lengths) < 260
    assert 190 < sum(lengths) / len(lengths) < 220
