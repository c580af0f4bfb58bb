"""Plots: what they show of the numbers, names that never overlap, and files that are what they say."""

from __future__ import annotations

import itertools
import random
import sys
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from tests.compare.stored import answer, stored
from velox_eval.compare import Comparison, compare
from velox_eval.compare.plot_files import section_plots, write_plots
from velox_eval.compare.plot_labels import spread
from velox_eval.compare.plot_style import looks
from velox_eval.compare.plots import budgets, pareto, plot_along, plot_repetition, plot_score, plot_speed, plot_trend
from velox_eval.errors import ConfigError
from velox_eval.records.store import StoredRun
from velox_eval.runs.figures import save

METHODS = ["cam", "chunkkv", "h2o", "keyformer", "knorm", "kvzip", "morphkv", "qfilters", "random", "snapkv", "tova"]
TEXTS = ["the sun is out today", "rain again " * 20, "a b c d e f g h " * 3]


def make_runs(methods: list[str], limits: tuple[int, ...] = (64, 128)) -> list[StoredRun]:
    draw = random.Random(7)

    def run(method: str, budget: int | None) -> StoredRun:
        size = (budget or 400) * 1024
        records = [
            answer(i, TEXTS[i % 3], draw.random(), peak_cache_bytes=size + i, full_cache_bytes=400 * 1024)
            for i in range(6)
        ]
        curve = [draw.random() for _ in range(10)]
        curves = {"accuracy_by_entry": curve, "mean_kl_by_decile": [1e-4 * 10 ** (4 * v) for v in curve]}
        return stored(method, budget, records, curves=curves, speed=draw.uniform(20, 60))

    return [run("full", None), *(run(method, budget) for method in methods for budget in limits)]


def compared(runs: list[StoredRun]) -> tuple[Comparison, dict[str, StoredRun]]:
    return compare(runs, resamples=200), {run.header.run_id: run for run in runs}


@pytest.fixture(scope="module")
def crowd() -> tuple[Comparison, dict[str, StoredRun]]:
    """Every method twice and the full cache: more lines than anybody should draw."""
    return compared(make_runs([*METHODS, *(f"{method}:paper" for method in METHODS)]))


def test_the_front_is_what_nothing_beats_at_no_more_cost() -> None:
    points = [(1.0, 0.2), (2.0, 0.1), (2.0, 0.5), (3.0, 0.5), (4.0, 0.9), (1.0, 0.1)]
    assert pareto(points, higher=True) == [(1.0, 0.2), (2.0, 0.5), (4.0, 0.9)]
    assert pareto(points, higher=False) == [(1.0, 0.1)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1), st.booleans())
def test_no_point_beats_the_front(points: list[tuple[float, float]], higher: bool) -> None:
    front = pareto(points, higher=higher)
    for cost, score in points:
        assert any(c <= cost and (s >= score if higher else s <= score) for c, s in front)
    for (c1, s1), (c2, s2) in itertools.pairwise(front):
        assert c1 < c2
        assert (s1 < s2) == higher


@given(st.lists(st.floats(-50, 150), min_size=1, max_size=30), st.floats(0.1, 3))
def test_labels_are_spread_apart_within_their_room(wanted: list[float], gap: float) -> None:
    placed = spread(sorted(wanted), gap, 0, 100)
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(placed))
    assert min(placed) >= -1e-6
    assert max(placed) <= 100 + 1e-6


def test_labels_stay_where_they_are_wanted_when_nothing_is_near() -> None:
    assert spread([10, 30, 70], 5, 0, 100) == [10, 30, 70]
    assert spread([50, 50, 50], 4, 0, 100) == pytest.approx([46, 50, 54])
    with pytest.raises(ValueError, match="do not fit"):
        spread([1, 2, 3], 10, 0, 15)


def test_looks_differ_without_colour_too() -> None:
    names = [*METHODS, *(f"{method}:paper" for method in METHODS), "full", "veloxquant/h2o"]
    found = looks(names)
    assert len({(look.colour, look.marker, str(look.dashes)) for look in found.values()}) == len(names)
    shapes = {found[name].marker for name in METHODS[:9]}
    assert len(shapes) == 9  # in grey, nine methods have nine markers
    assert found["h2o"].colour == found["h2o:paper"].colour == found["veloxquant/h2o"].colour
    assert found["h2o"].dashes != found["h2o:paper"].dashes != found["veloxquant/h2o"].dashes


def test_no_text_lies_on_another(crowd: tuple[Comparison, dict[str, StoredRun]]) -> None:
    comparison, runs = crowd
    names = []
    for plot in section_plots(comparison.sections[0], runs):
        names.append(plot.name)
        assert_apart(plot.figure, plot.name)
    assert {"score", "speed-batch-4", "kept", "repetition-budget-64", "mean_kl_by_decile-budget-128"} <= set(names)


def assert_apart(figure: Any, name: str) -> None:
    """No text of the figure overlaps another, and none leaves the figure."""
    figure.canvas.draw()
    boxes = []
    for text in drawn_texts(figure):
        box = Text.get_window_extent(text, figure.canvas.get_renderer())  # without an annotation's leader
        inside = box.x0 > -1 and box.x1 < figure.bbox.x1 + 1 and box.y0 > -1 and box.y1 < figure.bbox.y1 + 1
        assert inside, f"{name}: {text.get_text()!r} leaves the figure"
        boxes.append((text.get_text(), box))
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        dx = min(first.x1, second.x1) - max(first.x0, second.x0)
        dy = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert dx <= 1 or dy <= 1, f"{name}: {a!r} overlaps {b!r}"


def drawn_texts(figure: Any) -> list[Any]:
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def labels_of(figure: Any) -> set[str]:
    return {text.get_text() for axes in figure.axes for text in axes.texts}


def drawn_points(figure: Any) -> set[tuple[float, float]]:
    return {
        (round(float(x), 6), round(float(y), 6))
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() not in ("None", None, "")
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


def test_score_against_bytes_shows_every_run() -> None:
    comparison, _ = compared(make_runs(["h2o", "tova"]))
    section = comparison.sections[0]
    figure = plot_score(section)
    assert labels_of(figure) == {"full", "h2o", "tova"}
    expected = {
        (round(arm.cost.peak_cache_bytes / 1024, 6), round(arm.score.value, 6))
        for arm in section.arms
        if arm.cost.peak_cache_bytes is not None and arm.score.value is not None
    }
    assert len(expected) == 5
    assert drawn_points(figure) == expected


def test_speeds_of_other_batches_are_other_plots() -> None:
    runs = make_runs(["h2o"])
    one = stored("tova", 64, runs[1].samples, batch=1)
    comparison, _ = compared([*runs, one])
    figures = plot_speed(comparison.sections[0])
    assert labels_of(figures[4]) == {"full", "h2o"}
    assert labels_of(figures[1]) == {"tova"}


def test_lines_along_the_answer_are_the_stored_curves() -> None:
    runs = make_runs(["h2o"], (64,))
    comparison, by_id = compared(runs)
    section = comparison.sections[0]
    ((name, arms),) = budgets(section)
    assert name == "budget-64"
    figure = plot_along(section, arms, by_id, "accuracy_by_entry")
    assert labels_of(figure) == {"full", "h2o"}
    curve = runs[1].header.summary.curves["accuracy_by_entry"]  # type: ignore[union-attr]
    expected = {(index + 1.0, round(value, 6)) for index, value in enumerate(curve) if value is not None}
    assert expected <= drawn_points(figure)
    assert plot_along(section, arms, by_id, "no_such_by_decile") is None


def test_repetition_along_the_answer_is_of_the_answers() -> None:
    text = " ".join([*(f"w{i}" for i in range(54)), *["loop"] * 50])  # repeats in its second half only
    runs = [stored("full", None, [answer(0, text, 1)]), stored("h2o", 64, [answer(0, text[:200], 1)])]
    comparison, by_id = compared(runs)
    section = comparison.sections[0]
    figure = plot_repetition(section, section.arms, by_id)
    points = drawn_points(figure)
    assert {(1.0, 0.0), (10.0, 1.0)} <= points


def test_a_score_of_zero_has_its_place_on_a_logarithmic_scale() -> None:
    runs = []
    for method, kl in (("full", 0.0), ("h2o", 0.0004), ("tova", 3.0)):
        scores = {"mean_kl": {"num": kl, "den": 1}}
        records = [answer(index, "x", 0, scores=scores) for index in range(3)]
        runs.append(stored(method, None if method == "full" else 64, records, primary="mean_kl"))
    comparison, _ = compared(runs)
    section = comparison.sections[0].model_copy(update={"higher_is_better": False})
    figure = plot_score(section)
    (axes,) = figure.axes
    assert axes.get_yscale() == "symlog"
    assert axes.get_ylim()[0] <= 0
    places = [axes.transData.transform((1, kl))[1] for kl in (0.0, 0.0004, 0.04, 3.0)]
    assert all(b - a > 20 for a, b in itertools.pairwise(places))


def test_nothing_to_draw_is_none_and_gaps_are_gaps() -> None:
    nights = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(40)]
    assert plot_trend("KL", "suite smoke", nights, {"h2o": [None] * 40}) is None
    values = [None if day in (3, 39) else 0.1 * day for day in range(40)]
    figure = plot_trend("KL", "suite smoke", nights, {"h2o": values, "full": [1.0] * 40})
    assert labels_of(figure) == {"h2o", "full"}
    assert_apart(figure, "trend")


def test_names_of_others_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Neither mathematics nor markup nor control characters do anything."""
    hostile = "h2o$\\frac{1}$</svg><script>x</script>\x1b"
    runs = make_runs(["h2o"])
    comparison, by_id = compared(runs)
    section = comparison.sections[0]
    arms = [arm.model_copy(update={"method": hostile, "label": hostile}) for arm in section.arms]
    section = section.model_copy(update={"arms": arms, "model": hostile})
    for plot in section_plots(section, by_id):
        path = tmp_path / f"{plot.name}.svg"
        save(plot.figure, path)
        root = ET.parse(path).getroot()
        assert not [element for element in root.iter() if str(element.tag).endswith("script")]
        written = "".join(root.itertext())
        assert "h2o$\\frac{1}$</svg><script>x</script>\ufffd" in written


def test_files_are_named_and_are_what_they_say(tmp_path: Path) -> None:
    comparison, by_id = compared(make_runs(["h2o"], (64,)))
    section = comparison.sections[0].model_copy(update={"model": "../../etc/x"})
    comparison = comparison.model_copy(update={"sections": [section, section]})
    paths = write_plots(comparison, by_id, tmp_path / "plots")
    assert len({path.name for path in paths}) == len(paths)
    assert {path.parent for path in paths} == {tmp_path / "plots"}
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml"), path
    again = write_plots(comparison, by_id, tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_where_it_cannot_draw_one_line_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison, by_id = compared(make_runs(["h2o"], (64,)))
    figure = plot_score(comparison.sections[0])
    with pytest.raises(ConfigError, match=r"must end in \.svg or \.png"):
        save(figure, tmp_path / "x.pdf")
    with pytest.raises(ConfigError, match="cannot write"):
        save(figure, tmp_path / "no" / "x.svg")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        write_plots(comparison, by_id, tmp_path / "file")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"velox-eval\[report\]"):
        list(section_plots(comparison.sections[0], by_id))
