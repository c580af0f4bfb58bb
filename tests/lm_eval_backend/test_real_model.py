"""The real model through lm-eval's command line: RULER's needle offline, and our own tasks as its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from velox_eval.records.store import load_run

pytestmark = pytest.mark.model

NEEDLE = ["--tasks", "niah_single_1", "--limit", "1", "--metadata", '{"max_seq_lengths": [256]}']


def evaluated(folder: Path, method: str, *arguments: str) -> tuple[dict[str, Any], Any]:
    """lm-eval's results and our run of one task."""
    model = ["--model", "velox", "--model_args", f"pretrained=smollm2-135m,method={method}"]
    command = [sys.executable, "-m", "velox_eval.cli", "lm-eval", *model, "--output_path", "out", "--log_samples"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    [results] = (folder / "out").glob("*/results_*.json")
    [run] = (folder / "results").glob("*/run.json")
    return json.loads(results.read_text()), load_run(run.parent)


@pytest.mark.parametrize("method", ["full", "morphkv:paper,budget=64"])
def test_a_needle_is_looked_for_offline(tmp_path: Path, method: str) -> None:
    pytest.importorskip("wonderwords")
    results, run = evaluated(tmp_path, method, *NEEDLE)
    [sample] = run.samples
    assert results["results"]["niah_single_1"]["256,none"] == sample.scores["at_length"].num
    assert sample.stratum == "256"
    assert sample.method_fired == (method != "full")
    [logged] = (tmp_path / "out").glob("*/samples_*.jsonl")
    assert json.loads(logged.read_text())["velox"]["peak_cache_bytes"] == sample.peak_cache_bytes


def test_our_long_answer_task_runs_from_its_file(tmp_path: Path) -> None:
    files = Path(__file__).resolve().parents[2] / "tasks" / "lm_eval"
    arguments = ["--include_path", str(files), "--tasks", "longgenbench", "--limit", "2", "--batch_size", "2"]
    results, run = evaluated(tmp_path, "morphkv,budget=128", *arguments, "--gen_kwargs", "max_gen_toks=48")
    found = results["results"]["longgenbench"]
    assert found["completion,none"] == run.header.summary.scores["completion"].value
    assert found["stic_2,none"] == run.header.summary.primary_value
    assert found["wavg,none"] == pytest.approx(run.header.summary.derived["wavg"])
    assert [sample.generated_tokens for sample in run.samples] == [48, 48]
    assert all(sample.method_fired for sample in run.samples)
