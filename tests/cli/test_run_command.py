"""`velox-eval run` and `score` as a user meets them: output, exit codes, kill -9 and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from velox_eval.records.store import load_run

COMMAND = [sys.executable, "-m", "velox_eval.cli"]


def only_run(folder: Path) -> Path:
    [path] = [p for p in folder.iterdir() if p.is_dir()]
    return path


def test_a_run_shows_a_table_the_records_and_the_first_answer(velox_eval, run_arguments, tmp_path):
    done = velox_eval(*run_arguments, "--max-tokens", "20")
    assert done.returncode == 0, done.stderr
    for what in ("morphkv, budget 32", "stic_2", "accuracy", "repetition rate", "peak cache", "tokens/s", "evicted"):
        assert what in done.stdout
    assert "in 2 of 2 samples" in done.stdout
    run = only_run(tmp_path / "work" / "results")
    assert str(Path("results") / run.name / "samples.jsonl") in done.stdout
    assert "first answer (" in done.stdout
    assert not [c for c in done.stdout if ord(c) < 32 and c not in "\n\t"]
    assert "2/2" in done.stderr  # the progress bar
    assert len(load_run(run).samples) == 2


def test_json_is_one_document_and_nothing_else(velox_eval, run_arguments):
    done = velox_eval(*run_arguments, "--max-tokens", "12", "--json")
    document = json.loads(done.stdout)
    assert document["status"] == "success"
    assert document["summary"]["n"] == 2
    assert document["summary"]["peak_cache_bytes"] > 0
    assert (document["state"], Path(document["path"]).name) == ("new", document["run_id"])
    again = velox_eval(*run_arguments, "--max-tokens", "12", "--json", "--quiet")
    assert json.loads(again.stdout)["state"] == "finished"
    assert again.stderr.strip() == "This run was finished before; nothing was run. --again repeats it."


def test_a_failed_sample_gives_exit_code_1(velox_eval, run_arguments):
    arguments = [*run_arguments, "--max-tokens", "12", "--limit", "3"]
    done = velox_eval(*arguments)
    assert done.returncode == 1
    assert "1 of 3 samples failed" in done.stderr
    assert "leave no room in the model's context" in done.stderr
    assert "Traceback" not in done.stderr
    assert velox_eval(*arguments, "--max-error-share", "0.5").returncode == 0


def test_what_could_not_be_recorded_is_said_before_the_model_is_loaded(velox_eval, run_arguments, tmp_path):
    arguments = [*run_arguments[:2], "no-such-model", *run_arguments[3:]]
    results = tmp_path / "work" / "results"
    results.mkdir()
    (results / "runs.jsonl").write_text("{}\n[]\n")
    damaged = velox_eval(*arguments)
    (results / "runs.jsonl").unlink()
    results.rmdir()
    results.write_text("")
    file = velox_eval(*arguments)
    for refused, says in (
        (damaged, "results/runs.jsonl:2: not a JSON object"),
        (file, "cannot use the results folder results: results is a file"),
    ):
        assert refused.returncode == 2
        assert says in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1


def test_score_needs_no_model(velox_eval, run_arguments, tmp_path):
    velox_eval(*run_arguments, "--max-tokens", "12")
    run = only_run(tmp_path / "work" / "results")
    code = (
        "import sys; from velox_eval.cli import app;"
        f"app(['score', {run.name!r}, '--json'], standalone_mode=False);"
        "print([m for m in ('mlx', 'mlx_lm') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([COMMAND[0], "-c", code], cwd=tmp_path / "work", capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    document = json.loads(done.stdout)
    assert document["identity"]["rescored_from"] == run.name
    assert document["summary"]["n"] == 2


@pytest.fixture
def long_run(tiny_model_dir, tmp_path, data):
    """Eight samples of some tenths of a second each, one after another."""
    rows = json.loads(data.read_text())[:1]
    many = tmp_path / "many.json"
    many.write_text(json.dumps([rows[0] | {"prompt": f"{i} {rows[0]['prompt']}"} for i in range(8)]))
    model = ["--model", str(tiny_model_dir), "--data", str(many)]
    return ["run", *model, "--budget", "64", "--max-tokens", "300", "--batch-size", "1"]


def test_kill_9_then_the_same_command_finishes_it(velox_eval, started, wait_for_samples, long_run, tmp_path):
    folder = tmp_path / "work"
    for wanted in (1, 3):
        with started(long_run, folder) as process:
            wait_for_samples(folder, wanted)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
        before = (only_run(folder / "results") / "samples.jsonl").read_bytes()
        assert load_run(only_run(folder / "results")).header.status == "started"
    done = velox_eval(*long_run)
    assert done.returncode == 0, done.stderr
    assert "Resuming: " in done.stderr
    run = only_run(folder / "results")
    whole = before[: before.rindex(b"\n") + 1]
    assert (run / "samples.jsonl").read_bytes().startswith(whole)  # nothing done was done again
    stored = load_run(run)
    assert [record.index for record in stored.samples] == list(range(8))
    assert stored.header.status == "success"


def test_ctrl_c_says_how_to_go_on_and_a_second_process_is_refused(
    velox_eval, started, wait_for_samples, long_run, tmp_path
):
    folder = tmp_path / "work"
    with started([*long_run, "--again"], folder) as process:
        wait_for_samples(folder, 1)
        process.send_signal(signal.SIGSTOP)  # however slow the second process is, the first is still at work
        refused = velox_eval(*long_run)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert refused.returncode == 2
    assert f"is being worked on by process {process.pid};" in refused.stderr
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "cancelled" in out
    [line] = [line for line in err.splitlines() if line.startswith("Interrupted. To go on: ")]
    assert line == f"Interrupted. To go on: velox-eval {' '.join(long_run)}"
    stored = load_run(only_run(folder / "results"))
    assert (stored.header.status, stored.header.summary.n) == ("cancelled", len(stored.samples))
    done = velox_eval(*long_run)
    assert done.returncode == 0, done.stderr
    assert [record.index for record in load_run(only_run(folder / "results")).samples] == list(range(8))
