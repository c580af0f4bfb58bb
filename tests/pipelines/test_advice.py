"""Advice from measured rows: where they are from, what fits, the front, what is missing. Evidence from real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import pytest

from velox_eval.compare import compare, load_runs
from velox_eval.engine.skeleton import Skeleton, build_skeleton
from velox_eval.errors import ConfigError, StoreError
from velox_eval.methods import resolve
from velox_eval.pipelines.advice import Advice, Choice, advise
from velox_eval.pipelines.capacity import Planner
from velox_eval.pipelines.evidence import Measured, gather, measured_rows, read_measured, reference_file
from velox_eval.pipelines.suite import matrix, read_suite
from velox_eval.runs.plan import RunOptions
from velox_eval.runs.runner import run

MB = 10**6


@pytest.fixture(scope="module")
def results(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs of the tiny model: full and three others on three texts."""
    folder = tmp_path_factory.mktemp("runs")
    for method, budget in [("full", None), ("streaming_llm", 64), ("streaming_llm", 128), ("knorm", 64)]:
        run(
            RunOptions(
                method=method,
                task="fidelity",
                model=str(tiny_model_dir),
                budget=budget,
                limit=3,
                max_tokens=12,
                prefill_step=64,
                results=folder,
            )
        )
    return folder


@pytest.fixture(scope="module")
def rows(results: Path) -> list[Measured]:
    return gather(results, bundled=False)


@pytest.fixture(scope="module")
def skeleton(tiny_model_dir: Path) -> Skeleton:
    return build_skeleton(str(tiny_model_dir), "cpu")


class Lengths(TypedDict):
    """Tokens of prompt and answer."""

    prompt: int
    answer: int


def lengths(rows: list[Measured]) -> Lengths:
    return {"prompt": rows[0].prompt_tokens, "answer": rows[0].answer_tokens}


def choices(found: Advice) -> list[Choice]:
    return [choice for table in found.tables for choice in table.choices]


def test_rows_say_what_compare_says(results: Path, rows: list[Measured]) -> None:
    (section,) = compare(load_runs([results]), "full").sections
    arms = {arm.run_id: arm for arm in section.arms if not arm.baseline}
    assert {row.run_id for row in rows} == set(arms)
    for row in rows:
        arm = arms[row.run_id]
        assert arm.difference is not None
        assert row.loss == arm.difference.value  # mean_kl: more of it is worse
        assert (row.loss_low, row.loss_high) == (arm.difference.low, arm.difference.high)
        assert (row.pairs, row.verdict) == (3, arm.difference.verdict)
        assert row.peak_cache_bytes == arm.cost.peak_cache_bytes
        assert row.answer_tokens == 12


def test_runs_without_full_are_no_evidence(results: Path) -> None:
    runs = [stored for stored in load_runs([results]) if stored.header.config.method != "full"]
    assert measured_rows(runs) == []


def test_evidence_at_the_length_asked(skeleton: Skeleton, rows: list[Measured]) -> None:
    """Everything fits: bytes are the plan's, the front is what nothing beats."""
    found = advise(skeleton, rows, **lengths(rows), memory=100 * MB)
    (table,) = found.tables
    assert table.where == "this model and length"
    assert found.missing == []
    assert len(table.choices) == 3
    planner = Planner(skeleton, 64)
    for choice in table.choices:
        method = resolve(choice.evidence.method, budget=choice.evidence.budget)
        need = planner.need(method, found.prompt, found.answer, batch=1, room=found.cache_room)
        assert (choice.bytes, choice.most) == (need.batch_bytes, need.most)
        beaten = [
            other
            for other in table.choices
            if other.evidence.loss < choice.evidence.loss
            and other.bytes < choice.bytes
            and (other.evidence.decode_ratio or 0) > (choice.evidence.decode_ratio or 0)
        ]
        assert not (choice.front and beaten)
    assert table.choices[0].front or found.full_bytes <= table.choices[0].bytes
    assert any("rough" in note for note in found.notes)  # three samples


def test_other_lengths_and_models_stand_apart(skeleton: Skeleton, rows: list[Measured], tmp_path: Path) -> None:
    longer = advise(skeleton, rows, prompt=3000, answer=1000, memory=100 * MB)
    assert [table.where for table in longer.tables] == ["this model, other lengths"]
    assert "no measured run" in longer.missing[0]
    assert f"{rows[0].prompt_tokens:,} + 12" in longer.missing[0]
    file = tmp_path / "config.json"
    config = json.loads((Path(skeleton.name) / "config.json").read_text())
    file.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    other = advise(build_skeleton(str(file), "cpu"), rows, **lengths(rows), memory=100 * MB)
    assert [table.where for table in other.tables] == ["other models"]
    assert rows[0].model in other.missing[0]


def test_what_does_not_fit_is_named(skeleton: Skeleton, rows: list[Measured]) -> None:
    """Room for 64 rows a layer, not for 128, nor for full."""
    planner = Planner(skeleton, 64)
    sizes = {
        budget: planner.need(resolve("streaming_llm", budget=budget), **lengths(rows), batch=1, room=MB).batch_bytes
        for budget in (64, 128)
    }
    memory = skeleton.weights_bytes + (sizes[64] + sizes[128]) // 2
    found = advise(skeleton, rows, **lengths(rows), memory=memory)
    assert found.full_most == 0
    assert "streaming_llm@128" in found.tables[0].too_big
    assert "streaming_llm@64" in [choice.evidence.label for choice in choices(found)]


def test_no_evidence_is_said_plainly_and_the_sweep_for_it_runs(skeleton: Skeleton, tmp_path: Path) -> None:
    found = advise(skeleton, [], prompt=100, answer=400, memory=100 * MB)
    assert found.tables == []
    assert "at all" in found.missing[0]
    file = tmp_path / "advise.toml"
    file.write_text(found.suite)
    runs = list(matrix(read_suite(str(file)), results=tmp_path))
    assert {options.model for options in runs} == {skeleton.name}
    assert {options.max_tokens for options in runs} == {400}
    assert {options.budget for options in runs} - {None} == set(found.budgets)


def test_a_task_limits_the_evidence(skeleton: Skeleton, rows: list[Measured]) -> None:
    found = advise(skeleton, rows, **lengths(rows), memory=100 * MB, task="longwriter")
    assert found.tables == []
    assert "longwriter" in found.missing[0]
    assert 'name = "longwriter"' in found.suite
    with pytest.raises(ConfigError, match="nothing"):
        advise(skeleton, rows, prompt=1, answer=1, task="nothing")


def test_bundled_rows_are_whole_and_of_real_runs() -> None:
    file = reference_file()
    assert file is not None
    bundled = read_measured(file)
    assert {row.task for row in bundled} == {"fidelity", "longgenbench"}
    for row in bundled:
        assert row.bundled
        assert row.run_id != row.baseline_run_id
        assert row.loss_low is None or row.loss_low <= row.loss <= (row.loss_high or row.loss)
        resolve(row.method, dict(row.params), budget=row.budget, keep=row.keep)
    assert gather(None) == bundled


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "measured.jsonl"
    file.write_text('{"run_id": "a"}\n')
    with pytest.raises(StoreError, match="line 1"):
        read_measured(file)
