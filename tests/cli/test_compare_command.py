"""`velox-eval compare` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from tests.compare.conftest import make_run, store


@pytest.fixture
def results(tmp_path):
    """Stored runs: the full cache twice, a method that is worse, one at another prefill step; eight samples each."""
    runs = {
        "old": make_run([1.0] * 8),
        "full": make_run([1.0] * 8, number=2),
        "worse": make_run([0.0] * 8, "morphkv:paper", 256),
        "other": make_run([1.0] * 8, "tova", 256, prefill_step=512),
    }
    return {name: store(run, tmp_path / "work" / "results").name for name, run in runs.items()}


def test_real_runs(velox_eval, run_arguments):
    """The full cache twice and a method, two samples each: the same answers, and too few to decide."""
    for arguments in (["full"], ["full", "--again"], ["tova", "--max-tokens", "64"], ["full", "--max-tokens", "64"]):
        done = velox_eval(*run_arguments, "--max-error-share", "1", "--max-tokens", "8", "--method", *arguments)
        assert done.returncode == 0, done.stderr
    done = velox_eval("compare", "results", "--format", "csv")
    assert done.returncode == 0, done.stderr
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(done.stdout))}
    assert rows["tova"]["verdict"] in ("cannot_decide", "same_answers")
    assert int(rows["tova"]["difference_n_pairs"]) == 2
    assert float(rows["tova"]["decode_tokens_per_second"]) > 0


def test_the_table_of_a_results_folder(velox_eval, results):
    done = velox_eval("compare", "results")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert re.search(r"(?m)^morphkv:paper .* worse ", done.stdout)
    said = " ".join(done.stdout.split())
    assert f"left out: full, run {results['old']}: run {results['full']} of the same arm is newer" in said
    assert "prefill_step is 256 and 512" in said


def test_full_against_itself(velox_eval, results):
    done = velox_eval("compare", results["old"], results["full"], "--format", "json")
    assert done.returncode == 0, done.stderr
    [section] = json.loads(done.stdout)["sections"]
    difference = section["arms"][1]["difference"]
    assert (difference["verdict"], difference["n_identical"], difference["value"]) == ("same_answers", 8, 0.0)


def test_files_by_their_ending(velox_eval, results, tmp_path):
    for name in ("out.md", "out.txt"):
        done = velox_eval("compare", "results", "-o", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    folder = tmp_path / "work"
    assert (folder / "out.md").read_text().startswith("# Comparison")
    assert max(map(len, (folder / "out.txt").read_text().splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["full", "other"], "prefill_step is 256 and 512; --allow prefill_step"),
        (["nothing"], "no run 'nothing' under results"),
        (["results", "--baseline", "knorm"], "no run of the baseline 'knorm'"),
        (["results", "--margin", "inf"], "margin=inf must be above 0, in units of the score"),
        (["results", "--margin", "nan"], "margin=nan must be above 0, in units of the score"),
        (["results", "--format", "xml"], "unknown format 'xml'"),
        (["results", "-o", "missing/out.md"], "cannot write missing/out.md: there is no folder missing"),
        (["results", "-o", "results"], "cannot write results: it is a folder"),
        (["results", "--plots", "/dev/null/plots"], "cannot write into /dev/null/plots: /dev/null is a file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_2(velox_eval, results, arguments, words):
    done = velox_eval("compare", *(results.get(argument, argument) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_is_allowed_is_compared_and_said(velox_eval, results):
    done = velox_eval("compare", results["full"], results["other"], "--allow", "prefill_step")
    assert done.returncode == 0, done.stderr
    assert "prefill_step differs and was allowed to: 256; 512" in done.stdout
