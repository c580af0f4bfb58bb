"""Runs the real command in a process of its own, as a user does."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "velox_eval.cli"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three prompts of the benchmark's schema; the last one, cut off by --limit 2, is beyond the model's context."""
    rows = [
        {
            "prompt": f"Plan floor {index} of a tower. {'x' * size}\n#*# Floor 1:",
            "prefix": "#*# Floor 1:",
            "type": "Floor",
            "number": 4,
            "checks_once": {"1": "a gym"},
            "checks_range": {"3": "a garden"},
            "checks_periodic": {"4": "a lift"},
        }
        for index, size in enumerate((40, 40, 5000))
    ]
    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.fixture
def velox_eval(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `velox-eval ARGUMENTS` in an empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )

    return call


@pytest.fixture
def run_arguments(tiny_model_dir: Path, data: Path) -> list[str]:
    """A run of two samples that takes a second."""
    return ["run", "--model", str(tiny_model_dir), "--data", str(data), "--limit", "2", "--budget", "32"]


@pytest.fixture
def started() -> Callable[[list[str], Path], AbstractContextManager[subprocess.Popen[str]]]:
    """Runs `velox-eval ARGUMENTS` beside the test; it is gone afterwards whatever the test did."""

    @contextlib.contextmanager
    def start(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return start


@pytest.fixture
def wait_for_samples() -> Callable[[Path, int], None]:
    """Waits until the runs in `folder / results` have so many samples on record."""

    def wait(folder: Path, count: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if sum(file.read_bytes().count(b"\n") for file in folder.glob("results/*/samples.jsonl")) >= count:
                return
            time.sleep(0.01)
        raise AssertionError("no sample was recorded in a minute")

    return wait
