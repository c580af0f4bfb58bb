"""A small data file in the benchmark's own form, and options that run it on the tiny model in a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velox_eval.runs.plan import RunOptions


def make_rows(count: int, too_long: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Rows of LongGenBench's schema; those in `too_long` exceed the tiny model's context of 4096."""
    return [
        {
            "prompt": f"Plan floor {index} of a tower. {'x' * (5000 if index in too_long else 40)}\n#*# Floor 1:",
            "prefix": "#*# Floor 1:",
            "type": "Floor",
            "number": 4,
            "checks_once": {"1": "a gym", "2": "a pool"},
            "checks_range": {"3": "a garden"},
            "checks_periodic": {"4": "a lift"},
        }
        for index in range(count)
    ]


@pytest.fixture
def data_file(tmp_path: Path) -> Callable[..., Path]:
    def write(count: int = 3, too_long: tuple[int, ...] = (), name: str = "data.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(make_rows(count, too_long)))
        return path

    return write


@pytest.fixture
def options(tmp_path: Path, tiny_model_dir: Path, data_file: Callable[..., Path]) -> Callable[..., RunOptions]:
    """Makes run options: three samples, 12 tokens each, morphkv at 32 rows."""
    default = data_file(name="default.json")

    def make(**changes: Any) -> RunOptions:
        fields: dict[str, Any] = {
            "model": str(tiny_model_dir),
            "data": str(default),
            "budget": 32,
            "max_tokens": 12,
            "results": tmp_path / "results",
        }
        return RunOptions(**(fields | changes))

    return make
