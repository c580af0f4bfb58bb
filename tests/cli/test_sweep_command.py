"""`velox-eval sweep` and `velox-eval nightly` as a user meets them: plans, tables, one JSON document, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from velox_eval.pipelines.baseline import read_night

SUITE = """
kind = "sweep"
name = "quick"
budgets = [40]
models = ["MODEL"]

[[task]]
name = "fidelity"
limit = 2
max_tokens = 3

[[method]]
name = "tova"
"""


@pytest.fixture
def quick(tmp_path: Path, tiny_model_dir: Path) -> str:
    path = tmp_path / "quick.toml"
    path.write_text(SUITE.replace("MODEL", str(tiny_model_dir)))
    return str(path)


def test_a_plan_runs_nothing(velox_eval, quick, tmp_path):
    listed = velox_eval("sweep", "--list")
    assert listed.returncode == 0
    assert "smoke" in listed.stdout
    assert "speed" not in listed.stdout
    plan = velox_eval("sweep", quick, "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "2 runs; to do: 4 samples, 12 tokens at most" in plan.stdout
    assert "assumed: 500 tokens read and 20 written a second" in plan.stdout
    assert not (tmp_path / "work" / "results").exists()


def test_a_model_that_is_none_is_refused_before_anything_runs(velox_eval, quick, tmp_path):
    for more in (("--dry-run",), ()):
        refused = velox_eval("sweep", quick, "--model", "smollm2-135n", *more)
        assert refused.returncode == 2
        assert "smollm2-135n" in refused.stderr
        assert "smollm2-135m" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "work" / "results").exists()


def test_a_sweep_ends_in_one_comparison_and_is_shown_the_second_time(velox_eval, quick, tmp_path):
    done = velox_eval("sweep", quick, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "score: mean_kl (lower is better)" in done.stdout
    assert len(list((tmp_path / "work" / "results").glob("*/run.json"))) == 2
    again = velox_eval("sweep", quick, "--json", "--limit", "2")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert [run["state"] for run in document["runs"]] == ["finished", "finished"]
    assert [run["status"] for run in document["results"]] == ["success", "success"]
    assert [arm["method"] for arm in document["comparison"]["sections"][0]["arms"]] == ["full", "tova"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sweep",), "no suite named: velox-eval sweep SUITE"),
        (("sweep", "smok"), "unknown suite 'smok'; did you mean 'smoke'?"),
        (("sweep", "speed"), "unknown suite 'speed'"),
        (("sweep", "QUICK", "--limit", "0"), "limit=0 must be at least 1"),
        (("sweep", "QUICK", "--tls-ca", "x.pem"), "--tls-ca, --tls-cert and --tls-key are for --scheduler"),
        (("sweep", "QUICK", "--scheduler", "here"), "scheduler='here' is no address"),
        (("nightly", "QUICK", "--baseline", "none.json"), "none.json: there is no baseline yet; --update-baseline"),
        (("nightly", "QUICK", "--baseline", "none.json", "--alpha", "2"), "alpha=2 must be between 0 and 1"),
        (("nightly", "QUICK", "--baseline", "new.json", "--update-baseline", "--repeats", "0"), "repeats=0 must be at"),
        (("sweep", "QUICK", "--quiet", "--results", "damaged"), "damaged/runs.jsonl:1: not a JSON object"),
        (("nightly", "QUICK", "--baseline", "new.json", "--output", "file"), "cannot write into file: file is a file"),
        (("nightly", "QUICK", "--baseline", "new.json", "--output", "damaged"), "damaged/history.jsonl:1: not a JSON"),
        (
            ("nightly", "QUICK", "--baseline", "file/new.json", "--update-baseline"),
            "cannot write file/new.json: ",
        ),
    ],
)
def test_what_cannot_work_is_one_line(velox_eval, quick, arguments, says, tmp_path):
    damaged = tmp_path / "work" / "damaged"
    damaged.mkdir()
    for name in ("runs.jsonl", "history.jsonl"):
        (damaged / name).write_text("half a row\n")
    (tmp_path / "work" / "file").write_text("")
    done = velox_eval(*(quick if word == "QUICK" else word for word in arguments))
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list((tmp_path / "work").rglob("samples.jsonl"))


def test_ctrl_c_ends_every_command_in_one_line_with_130(started, wait_for_samples, quick, tmp_path):
    longer = tmp_path / "longer.toml"
    longer.write_text(Path(quick).read_text().replace("limit = 2\nmax_tokens = 3", "limit = 8\nmax_tokens = 90"))
    with started(["sweep", str(longer), "--quiet"], tmp_path) as process:
        wait_for_samples(tmp_path, 1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert said == "Interrupted. 0 of 2 runs are done; the same command goes on.\n"
    os.mkfifo(tmp_path / "base.json")  # whoever reads it waits
    night = ["nightly", quick, "--baseline", str(tmp_path / "base.json")]
    with started(night, tmp_path) as process, (tmp_path / "base.json").open("wb"):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert said == "Interrupted.\n"


def test_a_night_goes_to_the_job_page(quick, tmp_path, monkeypatch):
    page = tmp_path / "page.md"

    def night(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "velox_eval.cli", "nightly", quick, "--baseline", "base.json", "--quiet"]
        environment = os.environ | {"GITHUB_STEP_SUMMARY": str(page)}
        return subprocess.run(
            [*command, "--repeats", "2", "--speed-tolerance", "0.9", *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    first = night("--update-baseline")
    assert first.returncode == 0, first.stderr
    assert "This night is the baseline now." in page.read_text()
    second = night()
    assert second.returncode == 0, second.stderr
    assert "# Nightly quick: green" in second.stdout
    assert "None of 2 runs got worse." in page.read_text()
    assert (tmp_path / "results" / "nightly" / "quick" / "report.html").is_file()
    stored = json.loads((tmp_path / "base.json").read_text())
    for sample in stored["runs"]["fidelity: tova, budget 40"]["samples"].values():
        sample["peak_bytes"] //= 2
    (tmp_path / "base.json").write_text(json.dumps(stored))
    assert read_night(tmp_path / "base.json").suite == "quick"
    red = night()
    assert red.returncode == 1
    assert "+100.0% bytes of cache on 2 samples" in red.stdout
