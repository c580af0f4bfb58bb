"""`velox-eval bench` as a user meets it: tables, one JSON document, a Markdown page, suites, one line for a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SUITE = """
kind = "speed"
name = "quick"

[[row]]
what = "steps"
measure = "decode"
figure = "over_pinned"
at_most = 1e9
methods = ["morphkv", "kvzip"]
budget = 32
batch = 2

[[row]]
what = "package"
measure = "prefill"
figure = "veloxquant_over"
at_least = 1e9
methods = ["morphkv"]
budget = 32
context = 128

[[row]]
what = "batch"
measure = "one_by_one"
figure = "speedup"
at_least = 1e-9
methods = ["morphkv"]
budget = 64
batch = 2
samples = 2
veloxquant_samples = 1
max_tokens = 4

[[row]]
what = "memory"
measure = "memory"
figure = "speedup"
methods = ["tova"]
budget = 64
samples = 2
max_tokens = 4
memory_limit = 4_000_000

[[row]]
what = "flat"
measure = "flatness"
figure = "long_over_short"
at_most = 1e9
methods = ["tova"]
budget = 64
batch = 2
samples = 4
short_samples = 2
max_tokens = 4

[[row]]
what = "harness"
measure = "run"
figure = "harness_share"
at_most = 1.0
methods = ["tova"]
budget = 64
samples = 2
max_tokens = 4
"""


@pytest.fixture
def quick(tiny_model_dir: Path) -> list[str]:
    """Everything once, on the tiny model."""
    return ["bench", "--model", str(tiny_model_dir), "--steps", "1", "--repeats", "2", "--prefill-repeats", "1"]


def test_tables_and_a_markdown_page(velox_eval, quick, tmp_path):
    done = velox_eval(*quick, "--method", "morphkv", "--budget", "32", "--batch", "2", "-o", "reports/page.md")
    assert done.returncode == 0, done.stderr
    for title in ("Figures", "Decode, ms a step", "Bytes of one sequence", "Prefill, seconds a prompt", "Runs"):
        assert title in done.stdout
    assert "decode: morphkv, budget 32" in done.stderr
    page = (tmp_path / "work" / "reports" / "page.md").read_text()
    assert page.startswith("# Bench: as asked\n")
    for what in ("--budget 32", "mlx-lm 0.", "cores", "GFLOP/s", "## How it is measured", "| morphkv | 32 | 2 |"):
        assert what in page
    assert str(Path(__file__).parent) not in page


def test_json_is_one_document(velox_eval, quick):
    arguments = ("--method", "tova", "--method", "morphkv:paper", "--set", "window=4", "--budget", "32", "--batch", "2")
    refused = velox_eval(*quick, *arguments)
    assert refused.returncode == 2
    assert "unknown parameter of tova 'window'" in refused.stderr
    asked = ("--method", "morphkv", "--set", "window=4", "--budget", "32", "--batch", "1", "--batch", "2")
    done = velox_eval(*quick, *asked, "--context", "100", "--only", "decode", "--only", "prefill", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [times["batch"] for times in document["decode"]] == [1, 2]
    [prefill] = document["prefill"]
    assert (prefill["prompt_tokens"], prefill["params"]["window"]) == (100, 4)
    for times in document["decode"]:
        assert times["context"] == 100
        assert times["step_ms"]["n"] == 2
        assert times["veloxquant_ms"]["median"] > 0
        assert times["bytes"]["kept"] == 32 * 128 * 2
    assert document["runs"] == []
    assert document["machine"]["packages"]["mlx"]
    assert document["settings"] == {"steps": 1, "repeats": 2, "prefill_repeats": 1, "prefill_step": 256}
    assert all(line["met"] is None for line in document["lines"])


def test_a_suite_says_what_was_met(velox_eval, quick, tmp_path):
    (tmp_path / "work" / "quick.toml").write_text(SUITE)
    done = velox_eval(*quick, "--suite", "quick.toml", "--json", "-o", "page.md")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    lines = [(line["what"], line["method"], line["met"]) for line in document["lines"]]
    assert lines == [
        ("steps", "morphkv", True),
        ("steps", "kvzip", True),
        ("package", "morphkv", False),
        ("batch", "morphkv", True),
        ("memory", "tova", None),
        ("flat", "tova", True),
        ("harness", "tova", True),
    ]
    runs = [(run["method"], run["samples"], run["generated_tokens"]) for run in document["runs"]]
    assert ("veloxquant/morphkv", 1, 4) in runs
    assert ("full", 2, 8) in runs
    assert [samples for method, samples, _ in runs if method == "tova"] == [2, 2, 2, 4, 2]
    for run in document["runs"]:
        assert 0 < run["harness_share"] < 1
        assert run["tokens_per_second"] == pytest.approx(run["generated_tokens"] / run["wall_seconds"])
    page = (tmp_path / "work" / "page.md").read_text()
    assert "| package | morphkv | >= 1e+09 |" in page
    assert "MISSED" in page
    assert not list((tmp_path / "work").glob("results*"))  # its records are nobody's


def test_without_the_package_its_figures_are_not_measured(velox_eval, quick, tmp_path):
    (tmp_path / "work" / "quick.toml").write_text(SUITE[: SUITE.index('[[row]]\nwhat = "batch"')])
    done = velox_eval(*quick, "--suite", "quick.toml", "--no-veloxquant")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "not measured" in text
    assert "veloxquant was left out" in text
    assert "2 of 2 figures met, 1 not measured" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--suite", "sped"), "unknown suite 'sped'; did you mean 'speed'?"),
        (("--suite", "speed", "--method", "tova"), "--suite speed names its own methods and sizes: leave out --method"),
        (("--only", "decoding"), "unknown part 'decoding'; did you mean 'decode'?"),
        (("--method", "tov"), "unknown method 'tov'; did you mean 'tova'?"),
        (("--budget", "0"), "budget=0 must be at least 1"),
        (("--repeats", "0"), "repeats=0 must be at least 1"),
        (("--only", "run", "--max-tokens", "0"), "max_tokens=0 must be at least 1"),
        (("--model", "m" * 5000), "mmm: File name too long"),
        (("--budget", "64", "--context", "32"), "context=32 must be at least budget=64"),
        (("--method", "full"), "full has no budget: name methods that evict"),
        (("--output", "/dev/null/speed.md"), "cannot make the folder /dev/null: File exists"),
        (("--output", "."), "cannot write .: it is a folder"),
    ],
)
def test_a_mistake_is_one_line(velox_eval, quick, arguments, says):
    done = velox_eval(*(a for a in quick if a not in ("--repeats", "2")), *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("velox-eval: error: ")
    assert says in line
