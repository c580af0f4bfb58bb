"""`velox-eval inspect`: a sample of a stored run again, its positions and the picture of them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs.conftest import make_rows
from velox_eval.errors import ConfigError, DataError, MethodError, ModelError, StoreError
from velox_eval.records.store import load_run
from velox_eval.runs.inspect import inspect_run
from velox_eval.runs.kept_plot import MOST_PANELS, _spread, draw
from velox_eval.runs.plan import RunOptions
from velox_eval.runs.recorder import RunResult
from velox_eval.runs.runner import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inspect")


@pytest.fixture(scope="module")
def settings(folder: Path, tiny_model_dir: Path) -> Any:
    """Options of a short run; one of three samples is too long for the model."""
    data = folder / "rows.json"
    data.write_text(json.dumps(make_rows(3, too_long=(1,))))

    def make(**changes: Any) -> RunOptions:
        fields: dict[str, Any] = {
            "model": str(tiny_model_dir),
            "data": str(data),
            "budget": 32,
            "max_tokens": 40,
            "results": folder / "results",
            "max_error_share": 1.0,
        }
        return RunOptions(**(fields | changes))

    return make


@pytest.fixture(scope="module")
def answers(settings: Any) -> RunResult:
    return run(settings())


@pytest.fixture(scope="module")
def comparisons(settings: Any, folder: Path) -> RunResult:
    data = folder / "texts.jsonl"
    data.write_text(json.dumps({"prompt": "The mill stood there. " * 4, "continuation": " Nobody came by." * 5}) + "\n")
    return run(settings(task="fidelity", data=str(data)))


def test_the_trace_is_what_the_run_held(answers: RunResult) -> None:
    record = answers.samples[0]
    assert record.prompt_tokens is not None
    inspection = inspect_run(answers.path, "0", every=5)
    trace = inspection.trace
    assert inspection.record == record
    fed = trace.seen[-1] - record.prompt_tokens
    assert trace.prompt_tokens == record.prompt_tokens
    assert trace.seen == tuple(record.prompt_tokens + n for n in (*range(0, fed, 5), fed))
    assert trace.layers == (0, 1)
    for seen, moment in zip(trace.seen, trace.held, strict=True):
        for positions in moment:
            assert positions.shape == (2, 32)
            assert (np.diff(positions, axis=1) > 0).all()
            assert positions[:, :4].tolist() == [[0, 1, 2, 3]] * 2  # sinks
            assert positions[:, -8:].tolist() == [list(range(seen - 8, seen))] * 2  # morphkv's window
    assert 0 < trace.early_share(-1) < 1
    assert trace.early_share(-1) == pytest.approx((trace.early_share(-1, 0) + trace.early_share(-1, 1)) / 2)


def test_stored_tokens_give_the_records_own_numbers(comparisons: RunResult) -> None:
    for record in comparisons.samples:
        trace = inspect_run(comparisons.path, record.sample_id).trace
        assert record.teacher_forced is not None
        assert record.prompt_tokens is not None
        assert trace.seen[-1] == record.prompt_tokens + len(record.teacher_forced.tokens) - 1
        assert trace.early_share(-1) == pytest.approx(record.early_share)
        assert tuple(layer.shape[1] for layer in trace.held[-1]) == record.kept_tokens


@pytest.mark.parametrize(
    "changes", [{"method": "full", "budget": None}, {"method": "veloxquant/morphkv"}, {"budget": None, "keep": 0.3}]
)
def test_runs_of_other_kinds_can_be_inspected(settings: Any, changes: Any, tmp_path: Path) -> None:
    result = run(settings(limit=1, **changes))
    trace = inspect_run(result.path).trace
    rows = [layer.shape[1] for layer in trace.held[-1]]
    kept = result.samples[0].kept_tokens
    assert kept is not None
    if changes.get("method") == "full":
        assert rows == [trace.seen[-1]] * 2
        assert trace.early_share(-1) == pytest.approx(0.1, abs=0.01)
    else:
        assert rows == list(kept)
    picture = tmp_path / "kept.png"
    draw(inspect_run(result.path), picture)
    assert picture.stat().st_size > 10_000


def test_the_command_writes_a_picture(answers: RunResult, settings: Any, folder: Path) -> None:
    output = folder / "kept.png"
    command = ["inspect", answers.path.name, "--results", str(settings().results), "--sample", "2", "--every", "4"]
    done = _velox_eval(*command, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert f"picture: {output}" in done.stdout
    assert "early-token share" in done.stdout
    width, height = _png_size(output)
    assert width == 13 * 110
    assert 500 < height < 2000
    assert output.stat().st_size > 10_000
    document = json.loads(_velox_eval(*command, "--json").stdout)
    assert document["picture"] == str(answers.path / f"inspect-{answers.samples[2].sample_id}.png")
    assert _png_size(Path(document["picture"])) == (width, height)
    assert document["tokens_seen"][0] == document["prompt_tokens"]
    assert len(document["early_share"]) == len(document["tokens_seen"]) == len(document["rows"])


def test_what_is_drawn_is_what_is_held(answers: RunResult, tmp_path: Path) -> None:
    """The same trace gives the same picture, and another method's another one."""
    inspection = inspect_run(answers.path, "0")
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    draw(inspection, first)
    draw(inspection, second)
    assert first.read_bytes() == second.read_bytes()
    draw(inspect_run(answers.path, "2"), second)
    assert first.read_bytes() != second.read_bytes()


@pytest.mark.parametrize(
    ("sample", "message"),
    [("9", "has no sample '9'; it has 0"), ("floor", "has no sample 'floor'"), ("1", "has no answer: .*no room")],
)
def test_a_sample_that_cannot_be_inspected_is_refused(answers: RunResult, sample: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        inspect_run(answers.path, sample)


def test_other_data_or_another_model_is_refused(answers: RunResult, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "rows.json"
    rows = make_rows(3, too_long=(1,))
    other.write_text(json.dumps([{**row, "prompt": "Now " + row["prompt"]} for row in rows]))
    with pytest.raises(DataError, match="does not give the prompt of sample"):
        inspect_run(answers.path, data=str(other))
    header, _ = load_run(answers.path)
    changed = header.model_copy(update={"model": header.model.model_copy(update={"content_sha256": "0" * 64})})
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "run.json").write_text(changed.model_dump_json())
    (copy / "samples.jsonl").write_bytes((answers.path / "samples.jsonl").read_bytes())
    with pytest.raises(ModelError, match=r"used model 000000000000 .*; give that model with --model"):
        inspect_run(copy)


def test_a_sample_named_by_data_is_drawn_in_the_runs_folder(settings: Any, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    row = {"id": "../../x\n</script>", "prompt": "The mill stood there.", "type": "note", "length": 100}
    data.write_text(json.dumps(row))
    result = run(settings(task="longwriter", data=str(data), max_tokens=8, results=tmp_path / "results"))
    refused = _velox_eval("inspect", str(result.path), "--output", str(tmp_path / "kept.txt"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the name must end in .svg or .png" in refused.stderr
    done = _velox_eval("inspect", str(result.path))
    assert done.returncode == 0, done.stderr
    assert [path.relative_to(result.path).name for path in tmp_path.rglob("*.png")] == ["inspect-x-script.png"]


def test_a_cache_that_hides_its_positions_is_refused(settings: Any) -> None:
    result = run(settings(method="veloxquant/squeeze", limit=1))
    with pytest.raises(MethodError, match="veloxquant/squeeze does not say which positions it keeps"):
        inspect_run(result.path)


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'velox-eval\[report\]'"):
        draw(None, tmp_path / "x.png")  # type: ignore[arg-type]


def test_a_picture_that_cannot_be_written_is_a_plain_error(answers: RunResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*: there is no folder"):
        draw(inspect_run(answers.path), tmp_path / "no" / "such" / "folder.png")


def test_deep_models_are_drawn_by_a_spread_of_layers() -> None:
    assert _spread(30) == list(range(30))
    spread = _spread(80)
    assert (len(spread), spread[0], spread[-1]) == (MOST_PANELS, 0, 79)
    assert spread == sorted(set(spread))


def _velox_eval(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "velox_eval.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    return width, height
