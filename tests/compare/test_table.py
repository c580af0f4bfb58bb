"""Rows and columns: what a terminal shows, what the files hold."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from velox_eval.compare import Comparison, compare
from velox_eval.compare.table import csv_text, grid, json_text, markdown, memory_grid, notes
from velox_eval.records.score import Score


@pytest.fixture
def comparison(run, record):
    """A baseline, an arm that is worse, one whose samples are cut, and one at another batch."""
    rng = np.random.default_rng(0)
    base = [Score(num=float(k), den=12) for k in rng.binomial(12, 0.7, 24)]
    worse = [Score(num=float(k), den=12) for k in rng.binomial(12, 0.3, 24)]
    cut = [record(i, score, truncated=True) for i, score in enumerate(base)]
    runs = [run(base), run(worse, "morphkv:paper", 256), run(cut, "streaming_llm:paper", 256)]
    return compare([*runs, run(base, "tova", 256, batch=2)], resamples=999)


def test_the_narrow_table_has_the_decision(comparison):
    [section] = comparison.sections
    titles, rows = grid(section, wide=False)
    assert titles == ["method", "accuracy", "difference", "verdict", "repeats", "cache", "tokens/s", "samples"]
    full, worse, cut, other = (dict(zip(titles, row, strict=True)) for row in rows)
    assert (full["method"], full["difference"]) == ("full", "baseline")
    assert worse["method"] == "morphkv:paper\n@256"
    assert worse["verdict"] == f"worse\np {section.arms[1].difference.p_adjusted:.3f}"
    assert worse["difference"].startswith("-0.")
    assert worse["tokens/s"] == "100.0\n1.00x"
    assert cut["verdict"] == "no difference:\nsame answers"
    assert cut["samples"] == "24 ok\n24 cut"
    assert other["tokens/s"] == "batch 2"
    width = sum(max(len(line) for row in (titles, *rows) for line in row[i].split("\n")) for i in range(len(titles)))
    assert width + len(titles) <= 100


def test_the_wide_table_has_everything_on_one_line(comparison):
    titles, rows = grid(comparison.sections[0], wide=True)
    assert len(titles) > 15
    assert not any("\n" in cell for row in rows for cell in row)


def test_numbers_have_the_digits_their_size_needs(run):
    def shown(scale):
        rng = np.random.default_rng(1)
        section = compare([run(list(rng.normal(scale, scale / 10, 9)))], baseline=None).sections[0]
        return grid(section, wide=True).rows[0][1].split(" ")[0]

    assert [len(shown(scale).partition(".")[2]) for scale in (75.0, 0.5, 0.02)] == [2, 3, 4]


def test_shares_that_differ_have_labels_that_differ(run):
    """A label also names the baseline, so it has to stand for one arm."""
    shares = (0.12, 0.125, 0.07, 1.0)
    section = compare([run([0.5, 0.6]), *(run([0.5, 0.6], "tova", keep=keep) for keep in shares)]).sections[0]
    labels = [row[0].split()[-1] for row in grid(section, wide=True).rows]
    assert sorted(labels) == ["@100%", "@12%", "@12.5%", "@7%", "full"]
    twelve = run([0.1, 0.2], "tova", keep=0.12)
    named = compare([twelve, run([0.5, 0.6], "tova", keep=0.125)], "tova@12.5%").sections[0]
    assert [(arm.keep, arm.baseline) for arm in named.arms if arm.baseline] == [(0.125, True)]


def test_csv_holds_unrounded_numbers(comparison):
    rows = list(csv.DictReader(io.StringIO(csv_text(comparison))))
    assert [row["label"] for row in rows] == [arm.label for arm in comparison.arms()]
    worse, arm = rows[1], comparison.arms()[1]
    assert float(worse["difference"]) == arm.difference.value
    assert (worse["verdict"], worse["against"], int(worse["difference_n_pairs"])) == ("worse", "full", 24)
    assert int(worse["n_ok"]) == 24
    assert float(worse["peak_of_full"]) == 0.5
    assert rows[0]["difference"] == ""  # the baseline has none
    assert json.loads(worse["params"]) == dict(arm.params)


def test_json_is_the_whole_comparison(comparison):
    text = json_text(comparison)
    assert Comparison.model_validate_json(text) == comparison
    assert "NaN" not in text


def test_markdown_is_a_table_and_nothing_else(run):
    """A model's name comes from a user's file system: it must not become markup, and no line may break a table."""
    hostile = "x|y<script>\n`z`](http://a)"
    runs = [run([1.0] * 8, model=hostile), run([0.0] * 8, "morphkv", 64, model=hostile)]
    page = markdown(compare(runs, resamples=99))
    assert "<script" not in page.replace("\\<", "")
    assert "](" not in page.replace("]\\(", "")
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "worse" in table[3]


def test_equal_memory_is_a_table_of_its_own(run):
    limit = {"performance": {"batch_size": "auto", "memory_limit": 2 << 20}}
    section = compare([run([1.0] * 8, batch=2, **limit), run([1.0] * 8, "tova", 64, **limit)], resamples=99).sections[0]
    titles, rows = memory_grid(section)
    assert titles[0] == "memory limit"
    assert [row[:3] for row in rows] == [["2.0 MiB", "full", "2"], ["2.0 MiB", "tova@64", "8"]]
    assert "equal memory" in markdown(compare([run([1.0] * 8, **limit), run([1.0] * 8, "tova", 64, **limit)]))


def test_notes_name_what_the_table_leaves_out(run):
    runs = [run([1.0] * 8), run([1.0] * 8, number=2), run([0.0] * 4, "tova", 64, finished=False, status="cancelled")]
    said = notes(compare(runs, split=True, resamples=99))
    assert any("of the same arm is newer" in note for note in said)
    assert any("tova@64" in note and "4 of 4 samples" in note for note in said)
