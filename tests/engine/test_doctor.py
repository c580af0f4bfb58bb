"""The doctor's report holds what was measured, as plain JSON, with advice that fits it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from velox_eval.cli.doctor import doctor
from velox_eval.cli.models import app as models_app
from velox_eval.engine.doctor import report
from velox_eval.mlx import mx


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_report_is_json_and_quick(cache: Path) -> None:
    mx.eval(mx.ones(1))
    started = time.perf_counter()
    found = report()
    assert time.perf_counter() - started < 5
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["packages"]["mlx"] is not None
    assert found["cores"] >= 1
    assert found["matmul_gflops_float32"] > 0
    assert found["device"]["kind"] in ("cpu", "gpu")
    assert found["device"]["name"]
    assert found["cache"] == {"path": str(cache), "bytes": 0, "writable": True}
    assert found["offline"]["HF_HUB_OFFLINE"] is True  # the test session sets it
    assert not found["models"]["smollm2-135m"]["present"]
    assert any("velox-eval models fetch smollm2-135m" in sentence for sentence in found["advice"])
    assert any("HF_HUB_OFFLINE" in sentence for sentence in found["advice"])


def in_a_process(**environment: str) -> dict[str, Any]:
    code = "import json; from velox_eval.engine.doctor import report; print(json.dumps(report()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_advice_tells_of_a_blas_switched_off(cache: Path) -> None:
    found = in_a_process(VELOX_EVAL_BLAS="off")
    if found["device"]["kind"] == "gpu" or sys.platform == "darwin":
        pytest.skip("no BLAS is looked for here")
    assert found["blas"]["kind"] == "off"
    assert "VELOX_EVAL_BLAS=off" in found["advice"][0]


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(tmp_path / "file"))
    found = report()
    assert found["cache"]["writable"] is False
    assert any("cannot be written: set VELOX_EVAL_CACHE" in sentence for sentence in found["advice"])


def test_command_prints_text_or_one_json_document(cache: Path) -> None:
    app = typer.Typer()
    app.command()(doctor)
    plain = CliRunner().invoke(app, [])
    assert plain.exit_code == 0
    for label in ("Python", "Device", "BLAS", "Cache", "Models", "Offline", "Advice"):
        assert label in plain.stdout
    as_json = CliRunner().invoke(app, ["--json"])
    assert as_json.exit_code == 0
    assert json.loads(as_json.stdout)["packages"]["mlx-lm"]


def test_models_commands_list_fetch_and_convert(cache: Path, tmp_path: Path) -> None:
    from gguf_files import write_tiny

    runner = CliRunner()
    listed = runner.invoke(models_app, ["list"])
    assert "not here: velox-eval models fetch smollm2-135m" in listed.stdout
    fetched = runner.invoke(models_app, ["fetch", "smollm2-135m"])
    assert fetched.exit_code == 0
    assert (Path(fetched.stdout.strip()) / "model.safetensors").is_file()
    (row,) = json.loads(runner.invoke(models_app, ["list", "--json"]).stdout)
    assert row["present"] is True
    assert row["licence"] == "Apache-2.0"
    out = tmp_path / "converted"
    converted = runner.invoke(models_app, ["convert", str(write_tiny(tmp_path / "tiny.gguf")), str(out)])
    assert converted.exit_code == 0
    assert (out / "config.json").is_file()
