"""`velox-eval compare` as a user runs it, on stored runs of the tiny model."""

from __future__ import annotations

import csv
import json
import re

import pytest


@pytest.fixture
def runs(velox_eval, run_arguments, tmp_path):
    """Ids of three runs in results/: full, full again, tova; two samples each."""
    ids = []
    for arguments in (["--method", "full"], ["--method", "full", "--again"], ["--method", "tova"]):
        done = velox_eval(*run_arguments, "--max-tokens", "8", "--max-error-share", "1", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        ids.append(json.loads(done.stdout)["run_id"])
    return ids


def test_the_table_of_a_results_folder(velox_eval, runs):
    done = velox_eval("compare", "results")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "cannot decide" in done.stdout  # two samples
    assert re.search(r"(?m)^tova", done.stdout)
    assert f"left out: full, run {runs[0]}: run {runs[1]} of the same arm is newer" in " ".join(done.stdout.split())


def test_full_against_itself(velox_eval, runs):
    done = velox_eval("compare", *runs[:2], "--format", "json")
    assert done.returncode == 0, done.stderr
    [section] = json.loads(done.stdout)["sections"]
    difference = section["arms"][1]["difference"]
    assert (difference["verdict"], difference["n_identical"], difference["value"]) == ("same_answers", 2, 0.0)


def test_files_by_their_ending(velox_eval, runs, tmp_path):
    for name in ("out.md", "out.csv", "out.json", "out.txt"):
        done = velox_eval("compare", "results", "-o", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    folder = tmp_path / "work"
    assert (folder / "out.md").read_text().startswith("# Comparison")
    assert [row["method"] for row in csv.DictReader((folder / "out.csv").open())] == ["full", "tova"]
    assert json.loads((folder / "out.json").read_text())["baseline"] == "full"
    assert "stic_2" in (folder / "out.txt").read_text()


def test_what_cannot_be_compared_is_one_line_and_exit_2(velox_eval, run_arguments, runs):
    other = velox_eval(
        *run_arguments,
        "--max-tokens",
        "8",
        "--method",
        "h2o",
        "--prefill-step",
        "64",
        "--max-error-share",
        "1",
        "--json",
    )
    assert other.returncode == 0, other.stderr
    run_id = json.loads(other.stdout)["run_id"]
    for arguments, words in (
        ([runs[0], run_id], "prefill_step is 256 and 64; --allow prefill_step"),
        (["nothing"], "no run 'nothing' under results"),
        (["results", "--baseline", "knorm"], "no run of the baseline 'knorm'"),
        (["results", "--format", "xml"], "unknown format 'xml'"),
        (["results", "--margin", "0"], "margin=0"),
        (["results", "-o", "missing/out.md"], "cannot write missing/out.md"),
    ):
        done = velox_eval("compare", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert velox_eval("compare", runs[0], run_id, "--allow", "prefill_step").returncode == 0
    assert "h2o@32" in velox_eval("compare", "results").stdout.replace("\n", " ")
