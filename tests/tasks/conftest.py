"""Rows of the official LongGenBench schema in our own words, and files of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Writer = Callable[..., Path]


def make_row(**changes: Any) -> dict[str, Any]:
    """Returns one valid row; keyword arguments replace fields."""
    row = {
        "prompt": "Plan four floors.\n*** started ***\n#*# Floor 1:",
        "checks_once": {"2": "bakery"},
        "checks_range": {"3": "hotel rooms", "4": "hotel rooms"},
        "checks_periodic": {},
        "type": "Floor",
        "prefix": "#*# Floor 1:",
        "number": 4,
    }
    return {**row, **changes}


@pytest.fixture
def write_rows(tmp_path: Path) -> Writer:
    """Writes rows as a JSON array, or as JSONL when the name says so."""

    def write(*rows: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        text = "\n".join(json.dumps(row) for row in rows) + "\n" if name.endswith("l") else json.dumps(list(rows))
        path.write_text(text, encoding="utf-8")
        return path

    return write
