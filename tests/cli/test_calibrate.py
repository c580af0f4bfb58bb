"""`velox-eval calibrate`: measures once, says where and how to use it, and a run finds it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


def test_a_calibrated_model_runs_the_method(
    velox_eval: Command, run_arguments: list[str], tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "VELOX_EVAL_CACHE", str(tmp_path / "cache"))
    run = [*run_arguments, "--method", "qfilters:paper", "--set", "window=8", "--max-tokens", "8"]
    refused = velox_eval(*run)
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines() == [
        "velox-eval: error: qfilters:paper needs directions of this model (calibration=bundled): "
        f"run `velox-eval calibrate {tiny_model_dir}`"
    ]
    done = velox_eval("calibrate", str(tiny_model_dir))
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "cache" / "calibration") in done.stdout
    assert done.stdout.splitlines()[-1] == "use it with: --method qfilters:paper"
    assert velox_eval(*run).returncode == 0


def test_a_text_of_ones_own_is_named_by_its_content(
    velox_eval: Command, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "VELOX_EVAL_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("Words of one's own. " * 40)
    done = velox_eval("calibrate", str(tiny_model_dir), "--text", str(text))
    assert done.returncode == 0, done.stderr
    name = done.stdout.split("calibration=")[1].strip()
    assert (len(name), (list((tmp_path / "cache").rglob(f"{name}.safetensors")) != [])) == (12, True)
    monkeypatch.setitem(os.environ, "VELOX_EVAL_CACHE", str(text))
    nowhere = velox_eval("calibrate", str(tiny_model_dir))
    assert (nowhere.returncode, nowhere.stderr) == (
        2,
        f"velox-eval: error: cannot write into {text}: {text} is a file\n",
    )
    missing = velox_eval("calibrate", str(tiny_model_dir), "--text", "nowhere.txt")
    assert (missing.returncode, "nowhere.txt" in missing.stderr, missing.stderr.count("\n")) == (2, True, 1)
