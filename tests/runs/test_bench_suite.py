"""Suites: what the committed one asks for, and what a file of one's own is told when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox_eval.errors import ConfigError, DataError
from velox_eval.methods import METHODS
from velox_eval.runs.bench_suite import asked_rows, constant_size_methods, method_names, read_suite

GOOD = """
kind = "speed"

[[row]]
what = "step"
measure = "decode"
figure = "over_pinned"
at_most = 1.1
methods = ["morphkv"]
budget = 64
batch = 2
"""


def written(folder: Path, text: str) -> str:
    path = folder / "own.toml"
    path.write_text(text)
    return str(path)


def test_the_speed_suite_judges_every_method() -> None:
    rows = read_suite("speed").rows
    names = constant_size_methods()
    for measure, figure in (("decode", "over_pinned"), ("prefill", "over_full")):
        judged = [m.label for row in rows if (row.measure, row.figure) == (measure, figure) for m in row.methods]
        assert set(names) <= set(judged)
        assert len(judged) == len(set(judged))
    only_reported = [row for row in rows if row.reach == "reported"]  # and how far the cheapest choice gets
    assert [(row.measure, row.methods[0].label) for row in only_reported] == [
        ("decode", "sliding_window"),
        ("memory", "morphkv"),
    ]
    assert {row.measure for row in rows} == {"decode", "prefill", "run", "one_by_one", "memory", "flatness"}
    [window] = [row for row in rows if row.methods[0].label == "morphkv:paper"]
    assert (window.methods[0].params["window"], window.methods[0].budget, window.batch) == (32, 512, 8)


def test_constant_size_leaves_out_what_grows() -> None:
    names = constant_size_methods()
    assert {"morphkv", "kvzip", "tova", "streaming_llm", "pyramidkv"} <= set(names)
    assert not {"full", "snapkv"} & set(names)
    assert set(names) <= METHODS.keys()
    assert method_names(["tova", "constant-size", "morphkv:paper"], ["kvzip"])[0] == "tova"
    assert "kvzip" not in method_names(["constant-size"], ["kvzip"])
    assert method_names(["tova", "tova"]) == ("tova",)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    [row] = read_suite(written(tmp_path, GOOD)).rows
    assert (row.what, row.measure, row.batch, row.reach) == ("step", "decode", 2, "<= 1.1")
    assert (row.methods[0].label, row.methods[0].budget) == ("morphkv", 64)
    assert (row.met(1.1), row.met(1.2)) == (True, False)
    [both] = read_suite(written(tmp_path, GOOD + "at_least = 0.9\n")).rows
    assert both.reach == ">= 0.9, <= 1.1"
    assert [both.met(value) for value in (0.8, 1.0, 1.2)] == [False, True, False]
    [free] = read_suite(written(tmp_path, GOOD.replace("at_most = 1.1", ""))).rows
    assert (free.reach, free.met(5.0)) == ("reported", None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("decode", "decoding"), "row 1: unknown measure 'decoding'; did you mean 'decode'?"),
        (("over_pinned", "over_full"), "row 1: unknown figure 'over_full'"),
        (("batch", "batches"), "row 1: unknown field 'batches'; did you mean 'batch'?"),
        (("batch = 2", "batch = 0"), "row 1: field 'batch' must be a positive whole number"),
        (("batch = 2", "batch = 2.5"), "row 1: field 'batch' must be a positive whole number"),
        (("1.1", '"much"'), "row 1: field 'at_most' must be a positive number"),
        (('["morphkv"]', '"morphkv"'), "row 1: field 'methods' must be a list of texts"),
        (('what = "step"', ""), "row 1: field 'what' must be a text, got None"),
        (("[[row]]", "[row]"), "a suite needs at least one [[row]]"),
        (("[[row]]", "[[row"), "not a readable TOML file"),
        (('"speed"', '"sweep"'), "must be 'speed' for `velox-eval bench --suite` (`velox-eval sweep` reads 'sweep'"),
        (('kind = "speed"', ""), "kind=None must be 'speed'"),
    ],
)
def test_a_wrong_file_is_told_where(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = written(tmp_path, GOOD.replace(*change))
    with pytest.raises(DataError) as raised:
        read_suite(path)
    assert str(raised.value).startswith(path)
    assert says in str(raised.value)


def test_a_wrong_name_is_told_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown suite 'sped'; did you mean 'speed'"):
        read_suite("sped")
    with pytest.raises(ConfigError, match="there is no such suite file"):
        read_suite(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="unknown method 'morph'"):
        read_suite(written(tmp_path, GOOD.replace("morphkv", "morph")))
    with pytest.raises(ConfigError, match="budget=12"):
        read_suite(written(tmp_path, GOOD.replace("budget = 64", "budget = 12")))


def test_rows_without_a_suite_are_the_product_of_what_was_asked() -> None:
    rows = asked_rows(
        methods=["tova", "h2o"],
        budgets=[64, 128],
        batches=[1, 4],
        contexts=[],
        settings={"n_sink": 2},
        measures=["decode", "prefill"],
        samples=8,
        max_tokens=64,
    )
    decode = [(row.methods[0].budget, row.batch, row.context) for row in rows if row.measure == "decode"]
    assert decode == [(64, 1, 256), (64, 4, 256), (128, 1, 512), (128, 4, 512)]
    assert [(row.methods[1].budget, row.context) for row in rows if row.measure == "prefill"] == [(64, 256), (128, 512)]
    assert all(method.params["n_sink"] == 2 for row in rows for method in row.methods)
    assert all(row.reach == "reported" for row in rows)
