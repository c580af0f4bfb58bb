"""`velox-eval score` for answers from a file: what it prints, what it refuses, and comparing what it made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Scores two answers to two prompts."""
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    rows = [{"prompt": f"Write {count} words.", "type": "any", "length": count} for count in (10, 20)]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    answers.write_text(json.dumps([{"q": row["prompt"], "text": "word " * 10} for row in rows]))
    fields = ["--field", "response=text", "--field", "prompt=q"]
    return ["score", "--task", "longwriter", "--data", str(prompts), "--responses", str(answers), *fields]


def test_answers_from_a_file_become_a_run(velox_eval, arguments):
    done = velox_eval(*arguments, "--name", "mine", "--model", "big-model")
    assert done.returncode == 0, done.stderr
    for what in (
        "responses/mine",
        "big-model (as claimed; not run here)",
        "2 rows read from out.json",
        "s_l",
        "75.000",
    ):
        assert what in " ".join(done.stdout.split()).replace(" │ │ ", " ")
    assert "not known: this harness did not write the" in done.stdout
    document = json.loads(velox_eval(*arguments, "--name", "mine", "--model", "big-model", "--json").stdout)
    assert document["state"] == "finished"
    assert document["responses"]["fields"] == {"response": "text", "prompt": "q"}
    again = velox_eval("score", document["run_id"], "--json", "--data", arguments[4])
    assert json.loads(again.stdout)["responses"]["file"] == "out.json"


def test_two_files_can_be_compared(velox_eval, arguments, tmp_path):
    for name in ("one", "two"):
        assert velox_eval(*arguments, "--name", name).returncode == 0
    runs = [str(path) for path in (tmp_path / "work" / "results").iterdir() if path.is_dir()]
    done = velox_eval("compare", *runs, "--baseline", "one")
    assert done.returncode == 0, done.stderr
    assert "same answers" in done.stdout


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["score"], "give either a stored run, as in: score RUN, or answers"),
        (["score", "x", "--responses", "y"], "give either a stored run"),
        (["score", "--responses", "y"], "needs the task it answers: --task NAME"),
        (["score", "x", "--name", "y"], "--name is for answers from a file"),
        (["score", "x", "--field", "response=y"], "--field is for answers from a file"),
        (["score", "--task", "longwriter", "--responses", "y", "--field", "text"], "--field 'text' is not NAME=VALUE"),
        (["score", "--task", "longwriter", "--responses", "none.jsonl"], "none.jsonl: no such file"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(velox_eval, changed, message):
    done = velox_eval(*changed)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
