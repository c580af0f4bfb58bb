"""`velox-eval plan` and `advise` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from velox_eval.cli import app
from velox_eval.errors import ConfigError


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_plan_prints_a_table_and_one_json_document(tiny_model_dir: Path) -> None:
    asked = ["plan", "--model", str(tiny_model_dir), "--prompt", "1k", "--answer", "512", "--budget", "128"]
    asked += ["--memory", "10MB", "--device", "cpu"]
    shown = call(*asked)
    assert shown.exit_code == 0, shown.output
    assert "morphkv:paper@128" in shown.output
    assert "1,024 + 512 tokens" in shown.output
    found = json.loads(call(*asked, "--json").stdout)
    assert found["memory_bytes"] == 10_000_000
    assert found["rows"][0]["method"] == "full"
    assert found["rows"][0]["allocated_bytes"] == 1536 * found["row_bytes"]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_plan_draws(tiny_model_dir: Path, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plan.{ending}"
    drawn = call("plan", "--model", str(tiny_model_dir), "--budget", "256", "--memory", "10MB", "-o", str(file))
    assert drawn.exit_code == 0, drawn.output
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"morphkv:paper@256" in content


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (["--memory", "lots"], ConfigError, "memory='lots'"),
        (["--prompt", "4x"], ConfigError, "prompt='4x'"),
        (["--answer", "0"], ConfigError, "answer='0'"),
        (["--device", "tpu"], ConfigError, "tpu"),
        (["--budget", "64", "--keep", "0.5"], ConfigError, "both"),
        (["--budget", "0"], ConfigError, "budget=0 must be at least 1"),
        (["--keep", "nan"], ConfigError, "keep=nan must be above 0 and at most 1"),
        (["--keep", "0"], ConfigError, "keep=0 must be above 0 and at most 1"),
        (["--keep", "1.5"], ConfigError, "keep=1.5 must be above 0 and at most 1"),
        (["-o", "/dev/null/plan.svg"], ConfigError, "there is no folder /dev/null"),
    ],
)
def test_plan_refuses_in_one_line(tiny_model_dir: Path, options: list[str], error: type[Exception], said: str) -> None:
    result = call("plan", "--model", str(tiny_model_dir), *options)
    assert isinstance(result.exception, error)
    assert said in str(result.exception)


def test_advise_says_what_was_never_measured(tiny_model_dir: Path, tmp_path: Path) -> None:
    suite = tmp_path / "more.toml"
    asked = ["advise", "--model", str(tiny_model_dir), "--results", str(tmp_path), "--prompt", "300", "--answer", "32"]
    shown = call(*asked, "--memory", "50MB", "--suite", str(suite))
    assert shown.exit_code == 0, shown.output
    assert "no measured run of" in shown.output  # what comes with velox-eval is another model's
    assert "other models: fidelity" in shown.output
    assert f"velox-eval sweep {suite}" in shown.output
    assert suite.read_text().count("[[method]]") == 6
    found = json.loads(call(*asked, "--json").stdout)
    assert {table["where"] for table in found["tables"]} == {"other models"}
    alone = json.loads(call(*asked, "--no-bundled", "--json").stdout)
    assert alone["tables"] == []
    missing = call("advise", "--model", str(tiny_model_dir), "--results", str(tmp_path / "reslts"))
    assert isinstance(missing.exception, ConfigError)
    assert "reslts: there is no such folder" in str(missing.exception)
    wrong = call(*asked, "--suite", str(tmp_path / "more.txt"))
    assert isinstance(wrong.exception, ConfigError)


@pytest.mark.model
def test_advise_on_the_real_model_has_evidence(tmp_path: Path) -> None:
    asked = ["advise", "--prompt", "300", "--answer", "40", "--memory", "2GB", "--results", str(tmp_path), "--json"]
    found = json.loads(call(*asked, "--device", "cpu").stdout)
    assert found["tables"][0]["where"] == "this model and length"
    front = [choice["evidence"] for choice in found["tables"][0]["choices"] if choice["front"]]
    assert "h2o:paper" in {row["method"] for row in front}
    assert all(row["loss"] > 0 for row in front)
