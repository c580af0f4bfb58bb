"""Nights on the tiny model: green against themselves, red when a method is broken, holds more or gets slow."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from velox_eval.compare.conditions import NAMES
from velox_eval.errors import ConfigError, DataError
from velox_eval.methods import METHODS
from velox_eval.methods.tova import TovaPaper
from velox_eval.mlx import mx
from velox_eval.pipelines.baseline import (
    Night,
    NightRun,
    NightSample,
    check_comparable,
    read_night,
    write_night,
)
from velox_eval.pipelines.matrix import plan_sweep
from velox_eval.pipelines.nightly import NightlyResult, judge, nightly
from velox_eval.pipelines.nightly_report import markdown, write_night_report
from velox_eval.pipelines.suite import SuiteMethod, SuiteTask
from velox_eval.pipelines.sweep import SweepResult
from velox_eval.records import jsonl
from velox_eval.records.score import Score

TASKS = (SuiteTask(name="fidelity", limit=8, max_tokens=6),)
TOLERANCE = 0.5  # steps of a millisecond on a shared machine


class Wrong(TovaPaper):
    """Keeps the rows that nobody looks at."""

    def importance(self, rows: Any, state: Any) -> Any:
        return -super().importance(rows, state)


class Hoarding(TovaPaper):
    """Holds an array that nothing is made of."""

    def initial_state(self) -> Any:
        return {"hoard": mx.zeros((1, 1000))}


class Slow(TovaPaper):
    """Takes several steps' time over each."""

    def importance(self, rows: Any, state: Any) -> Any:
        time.sleep(0.005)
        return super().importance(rows, state)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    """Puts another policy in the place of tova:paper's."""

    def put(policy: type) -> None:
        spec = METHODS["tova"]
        variant = dataclasses.replace(spec.variants["paper"], policy=policy)
        monkeypatch.setitem(METHODS, "tova", dataclasses.replace(spec, variants={**spec.variants, "paper": variant}))

    return put


@pytest.fixture
def attentive_model(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """The tiny model made to look at rows like its own: what was attended to once matters again."""
    folder = tmp_path / "attentive"
    shutil.copytree(tiny_model_dir, folder)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] + 0.3
    for layer in (0, 1):
        attention = f"model.layers.{layer}.self_attn"
        keys = weights[f"{attention}.k_proj.weight"] * 3
        weights[f"{attention}.k_proj.weight"] = keys
        weights[f"{attention}.q_proj.weight"] = mx.repeat(keys.reshape(2, 8, 32), 2, axis=0).reshape(32, 32)
        for name in ("v_proj", "o_proj"):
            weights[f"{attention}.{name}.weight"] = weights[f"{attention}.{name}.weight"] * 4
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


@pytest.fixture
def night(suite, tmp_path, watching, attentive_model) -> Callable[..., NightlyResult]:
    """Runs a night of two methods, fidelity on eight samples."""

    def run(**changes: Any) -> NightlyResult:
        methods = (SuiteMethod(name="tova:paper"), SuiteMethod(name="streaming_llm"))
        asked = suite(models=(str(attentive_model),), task=TASKS, batch_size=4, method=methods, budgets=(200,))
        options = {"results": tmp_path / "results", "repeats": 5, "speed_tolerance": TOLERANCE, "observer": watching()}
        result = nightly(asked, tmp_path / "baseline.json", **(options | changes))
        assert isinstance(result, NightlyResult)
        return result

    return run


def worse(result: NightlyResult) -> dict[str, tuple[str, ...]]:
    return {line.run.method: line.regressions for line in result.regressions}


def test_nights_are_green_against_themselves_and_red_when_something_broke(night, broken, tmp_path):
    """One baseline for all: what is broken shows as what it is, and only there."""
    with pytest.raises(ConfigError, match="there is no baseline yet; --update-baseline makes"):
        night()
    first = night(update=True)
    assert (first.lines, first.updated) == ((), True)
    for _ in range(2):
        again = night()
        assert worse(again) == {}
        assert [line.changed for line in again.lines] == [0, 0, 0]
        assert [line.p for line in again.lines] == [None, None, None]
        assert all(sweep.state == "new" for sweep in again.sweep.runs)
    for run in again.night.runs.values():  # nights compare what `compare` does, at any packages
        assert set(NAMES) - run.same.keys() == {"versions"}
    full, tova, _ = again.lines
    assert (full.speed, full.speed_before) == (None, None)
    assert tova.speed > 0
    broken(Hoarding)
    hoarding = night()
    assert worse(hoarding) == {"tova:paper": ("bytes",)}
    assert "bytes of cache on 8 samples" in markdown(hoarding)
    broken(Slow)
    slow = night()
    assert worse(slow) == {"tova:paper": ("speed",)}
    assert "a decode step fits" in markdown(slow)
    broken(Wrong)
    wrong = night()
    assert worse(wrong) == {"tova:paper": ("score",)}
    [line] = wrong.regressions
    assert (line.changed, line.n_pairs, line.family) == (8, 8, 2)
    assert line.difference > 0  # a divergence: lower is better
    assert line.p <= 0.05
    text = markdown(wrong)
    assert text.startswith("# Nightly tiny: red\n")
    assert "1 of 3 runs got worse:\n- **fidelity: tova:paper, budget 200**: mean_kl" in text
    folder = tmp_path / "report"
    for result in (again, wrong):
        files = write_night_report(result, folder)
    assert {file.name for file in files} == {
        *("history.jsonl", "summary.md", "report.html", "trend-fidelity-score.svg", "trend-fidelity-speed.svg")
    }
    assert [row["verdict"] for row in jsonl.read(folder / "history.jsonl").rows] == ["green", "red"]
    assert (folder / "summary.md").read_text() == text
    assert "2 nights" in (folder / "trend-fidelity-score.svg").read_text()


def test_a_baseline_of_something_else_is_refused_before_anything_runs(suite, tmp_path, watching):
    path, watch = tmp_path / "baseline.json", watching()
    asked = suite(task=TASKS)
    found = one_night()
    for changes, says in (
        ({"suite": "other"}, "baseline of suite 'other', not 'tiny'"),
        ({"suite_sha256": "0" * 64}, "suite tiny was another when this baseline was made"),
    ):
        fields = {"suite": "tiny", "suite_sha256": asked.sha256} | changes
        write_night(path, found.model_copy(update=fields))
        with pytest.raises(ConfigError, match=says):
            nightly(asked, path, results=tmp_path / "results", observer=watch)
    path.write_text('{"schema_version": 7}')
    with pytest.raises(DataError, match="schema version 7; this velox-eval reads 1"):
        nightly(asked, path, results=tmp_path / "results", observer=watch)
    path.write_text("{")
    with pytest.raises(DataError, match="not a baseline"):
        nightly(asked, path, results=tmp_path / "results", observer=watch)
    assert not (tmp_path / "results").exists()
    assert watch.records == []


def test_another_model_or_task_version_is_named() -> None:
    same = {"model": "a" * 64, "task_version": "1", "device": "cpu"}
    tonight = changed(one_night(), "t: one", {"same": same})
    check_comparable(Path("base.json"), tonight, tonight)
    for name, value in (("model", "f" * 64), ("task_version", "0"), ("device", "gpu")):
        before = changed(tonight, "t: one", {"same": same | {name: value}})
        with pytest.raises(ConfigError, match=f"base.json: t: one: {name} was {value[:12]}"):
            check_comparable(Path("base.json"), before, tonight)
    fewer = tonight.model_copy(update={"runs": {"t: one": tonight.runs["t: one"]}})
    with pytest.raises(ConfigError, match="runs are in one night only: t: two"):
        check_comparable(Path("base.json"), fewer, tonight)


def one_night(**changes: Any) -> Night:
    """A made-up night: ten samples of two methods at one budget, all scoring 0.5."""
    samples = {
        f"s{i}": NightSample(
            stratum="a", ok=True, score=Score(num=0.5), answer=f"{i}", peak_bytes=10_000, full_bytes=2000
        )
        for i in range(10)
    }
    run = NightRun(
        task="t",
        method="m",
        budget=64,
        keep=None,
        params={},
        seed=0,
        model="x",
        same={},
        primary="score",
        higher_is_better=True,
        value=0.5,
        samples=samples,
        full_over=(2.0, 2.1, 1.9, 2.0, 2.05),
    )
    runs = {"t: one": run.model_copy(update={"method": "one"}), "t: two": run.model_copy(update={"method": "two"})}
    return Night(
        suite="tiny",
        suite_sha256="1" * 64,
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        platform="Linux",
        commit=None,
        versions={"mlx": "1"},
        runs=runs,
    ).model_copy(update=changes)


def changed(night: Night, label: str, run: dict[str, Any] | None = None, **sample: Any) -> Night:
    """The night with other fields in one run, or in all its samples."""
    old = night.runs[label]
    samples = {name: found.model_copy(update=sample) for name, found in old.samples.items()}
    new = old.model_copy(update={"samples": samples, **(run or {})})
    return night.model_copy(update={"runs": night.runs | {label: new}})


def test_the_sign_of_a_difference_counts_by_what_is_better() -> None:
    base = one_night()
    lower = changed(base, "t: one", score=Score(num=0.4))
    assert [line.regressions for line in judge(lower, base)] == [("score",), ()]
    higher = changed(base, "t: one", score=Score(num=0.6))
    assert [line.notes for line in judge(higher, base)] == [("score better",), ()]
    less = changed(one_night(), "t: one", {"higher_is_better": False}, score=Score(num=0.4))
    assert judge(less, base)[0].regressions == ()


def test_names_of_others_stay_in_their_cell_of_the_summary(suite, tmp_path) -> None:
    """A label holds a model's name and an option's text, which may be anything."""
    label = "t: one|two <b>three\nfour"
    night = one_night(runs={label: one_night().runs["t: one"]})
    lines = tuple(judge(changed(night, label, score=Score(num=0.1)), night))
    plan = plan_sweep(suite(task=TASKS), results=tmp_path)
    text = markdown(NightlyResult(plan, SweepResult((), False), night, night, lines, False, TOLERANCE))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert {len(re.split(r"(?<!\\)\|", line)) for line in table} == {11}
    assert "t: one\\|two \\<b\\>three four" in table[2]
    assert "score 0.5000" in table[2]


def test_too_few_samples_decide_nothing_and_say_so() -> None:
    few = {f"s{i}": sample for i, sample in enumerate(list(one_night().runs["t: one"].samples.values())[:5])}
    base = changed(one_night(), "t: one", {"samples": few})
    [line, _] = judge(changed(base, "t: one", score=Score(num=0.0)), base)
    assert line.regressions == ()
    assert line.notes == ("5 pairs cannot decide on the score: 7 are needed",)  # Holm over two


def test_failures_and_changed_answers() -> None:
    base = one_night()
    failing = changed(base, "t: two", ok=False, score=None, answer=None, peak_bytes=None, full_bytes=None)
    _, line = judge(failing, base)
    assert (line.regressions, line.failed, line.n_bytes) == (("failed",), 10, 0)
    other, _ = judge(changed(base, "t: one", answer="other"), base)
    assert (other.regressions, other.changed) == ((), 10)


def test_bytes_compare_where_as_much_was_seen() -> None:
    base = one_night()
    assert judge(changed(base, "t: one", peak_bytes=10_005), base)[0].regressions == ()  # within the tolerance
    assert judge(changed(base, "t: one", peak_bytes=10_100), base)[0].regressions == ("bytes",)
    assert judge(changed(base, "t: one", peak_bytes=9_000), base)[0].notes == ("fewer bytes",)
    longer = changed(base, "t: one", peak_bytes=30_000, full_bytes=4000, answer="longer")
    assert judge(longer, base)[0].notes == ("bytes not compared: no answer is as long as the baseline's",)


@pytest.mark.parametrize(
    ("full_over", "regressions"),
    [
        ((1.0, 1.05, 0.95, 1.0, 1.02), ("speed",)),  # twice as slow
        ((1.7, 1.75, 1.65, 1.7, 1.72), ()),  # 15%: within the tolerance
        ((1.5, 0.4, 2.6, 0.5, 2.7), ()),  # 25% lower, and so scattered that nothing can be said
        ((4.0, 4.1, 3.9, 4.0, 4.0), ()),
    ],
)
def test_speed_is_slower_beyond_tolerance_and_scatter(full_over, regressions) -> None:
    base = one_night()
    assert judge(changed(base, "t: one", {"full_over": full_over}), base)[0].regressions == regressions


def test_a_baseline_is_small_and_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "baseline.json"
    write_night(path, one_night())
    assert read_night(path) == one_night()
    assert "NaN" not in path.read_text()
    assert len(json.loads(path.read_text())["runs"]) == 2
