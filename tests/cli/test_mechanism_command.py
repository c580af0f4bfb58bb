"""velox-eval mechanism: table, JSON, files, and the exit code of a broken mechanism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from velox_eval.cli import app
from velox_eval.methods.morphkv import MorphKV
from velox_eval.mlx import mx


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON value")


def test_json_alone_on_stdout_and_the_files(velox_eval: Any, tmp_path: Path) -> None:
    arguments = ("mechanism", "kvzip", "--methods", "snapkv:paper", "--seeds", "3", "-o", "out", "--json")
    done = velox_eval(*arguments)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout, parse_constant=no_constant)
    folder = tmp_path / "work" / "out"
    assert json.loads((folder / "results.json").read_text(), parse_constant=no_constant) == document
    assert {arm["arm"] for arm in document["arms"]} >= {"kvzip probe=context", "snapkv:paper", "sliding_window"}
    assert len(document["cells"]) == len(document["arms"]) * len(document["regimes"]) * 4
    assert all(check["holds"] is not False for check in document["checks"])
    assert document["real_model"] is None
    verdicts = {claim["claim"]: claim["verdict"] for claim in document["claims"]}
    assert verdicts.pop("kvzip probe=latest is tova") == verdicts.pop("nothing to gain on one topic") == "confirmed"
    assert set(verdicts.values()) == {"cannot decide"}  # three seeds cannot
    page = (folder / "mechanism.md").read_text()
    assert " ".join(("velox-eval", *arguments)) in page
    assert "## Claims" in page
    assert (folder / "mechanism.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mechanism", "morfkv"), "did you mean 'morphkv'"),
        (("mechanism", "kvzip", "--methods", "tovva"), "did you mean 'tova'"),
        (("mechanism", "kvzip", "--model", "no/such/model"), "no/such/model"),
    ],
)
def test_mistakes_are_one_line(velox_eval: Any, arguments: tuple[str, ...], said: str) -> None:
    done = velox_eval(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_broken_mechanism_is_named_and_exits_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MorphKV, "importance", lambda _self, rows, _state: mx.zeros(rows.positions.shape))
    done = CliRunner().invoke(app, ["mechanism", "morphkv", "--seeds", "10"])
    assert done.exit_code == 1
    assert "broken: morphkv window=8 > sliding_window" in done.output
    assert "What each arm keeps" in done.output
