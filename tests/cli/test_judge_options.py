"""Judges from the command line: what works, and the one line that says what does not."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from tests.judges.server import JudgeServer, words

KEY = "sk-velox-test-1357924680"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("VELOX_EVAL_JUDGE_KEY", KEY)
    with contextlib.closing(JudgeServer()) as made:
        yield made


def test_a_stored_run_is_judged_again_and_a_finished_one_shown(velox_eval, run_arguments, server, tmp_path):
    server.say = lambda prompt, number: words("no" if number == 1 else "yes")
    done = velox_eval(*run_arguments, "--json", "--quiet")
    run_id = json.loads(done.stdout)["run_id"]
    asks = ["--judge", server.judge, "--judge-repeats", "3", "--judge-cache", str(tmp_path / "replies")]
    scored = velox_eval("score", run_id, *asks, "--json")
    assert scored.returncode == 0, scored.stderr
    header = json.loads(scored.stdout)
    assert header["identity"]["judge"] == f"{server.id} x3"
    assert header["summary"]["judging"]["repeats"] == 3
    asked = len(server.asked)
    shown = velox_eval("score", run_id, *asks)
    assert "of its pairs of replies to one question differ" in " ".join(shown.stdout.replace("│", " ").split())
    assert len(server.asked) == asked
    for text in (done.stdout, done.stderr, scored.stdout, scored.stderr, shown.stdout, shown.stderr):
        assert KEY not in text


def test_rules_need_no_key_and_no_network(velox_eval, run_arguments, monkeypatch):
    for name in ("OPENAI_API_KEY", "VELOX_EVAL_JUDGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    done = velox_eval(*run_arguments, "--judge", "rules", "--json", "--quiet")
    assert (done.returncode, json.loads(done.stdout)["identity"]["judge"]) == (0, "rules@2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--judge", "openai:m@https://user:hunter2@host/v1"), "put a key in $VELOX_EVAL_JUDGE_KEY instead"),
        (("--judge", "ruels"), "did you mean 'rules'"),
        (("--judge", "mlx:no-such-model"), "judge mlx:no-such-model"),
        (("--judge-repeats", "0"), "judge_repeats=0"),
        (("--judge-concurrency", "0"), "judge_concurrency=0 must be at least 1"),
        (("--judge-timeout", "nan"), "judge_timeout=nan must be a number of seconds above 0"),
        (("--judge", "openai:m@http://127.0.0.1:1/v1"), "judge m at http://127.0.0.1:1/v1: no reply"),
    ],
)
def test_what_cannot_work_is_one_line_and_writes_nothing(velox_eval, run_arguments, tmp_path, arguments, says):
    failed = velox_eval(*run_arguments, *arguments, "--quiet")
    assert failed.returncode == 2
    assert says in failed.stderr
    assert "hunter2" not in failed.stdout + failed.stderr
    assert "Traceback" not in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1
    assert not list(Path(tmp_path).rglob("run.json"))
