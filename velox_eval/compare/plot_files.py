"""All plots of a comparison: which there are, by name, and files of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from velox_eval.compare.comparison import Comparison, Section
from velox_eval.compare.plot_kept import plot_kept
from velox_eval.compare.plots import Runs, budgets, plot_along, plot_repetition, plot_score, plot_speed
from velox_eval.records.output import make_folder
from velox_eval.runs.figures import FORMATS, require_matplotlib, save


class Plot(NamedTuple):
    """A figure with the name of its file (without ending)."""

    name: str
    figure: Any


def section_plots(section: Section, runs: Runs) -> Iterator[Plot]:
    """Yields every plot that the section has the numbers for, made when asked for.

    `runs` holds the run of every arm, by run id. Raises ConfigError without matplotlib.
    """
    require_matplotlib()
    for name, figure in _figures(section, runs):
        if figure is not None:
            yield Plot(name, figure)


def _figures(section: Section, runs: Runs) -> Iterator[tuple[str, Any]]:
    yield "score", plot_score(section)
    for batch, figure in plot_speed(section).items():
        yield f"speed-batch-{batch}", figure
    summaries = [runs[arm.run_id].header.summary for arm in section.arms]
    curves = sorted({curve for summary in summaries if summary is not None for curve in summary.curves})
    for name, arms in budgets(section):
        for curve in curves:
            yield f"{curve}-{name}", plot_along(section, arms, runs, curve)
        yield f"repetition-{name}", plot_repetition(section, arms, runs)
    yield "kept", plot_kept(section, runs)


def write_plots(comparison: Comparison, runs: Runs, folder: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes all plots into `folder`, made if it is not there, and returns the files in order.

    Names are `<task>-<model>-<plot>.<format>`, numbered where two sections would share them. Raises ConfigError without
    matplotlib, for a format it does not know, and where it cannot write.
    """
    target = Path(folder)
    make_folder(target)
    paths, used = [], set()
    for section in comparison.sections:
        stem = _slug(f"{section.task}-{section.model}")
        number = next(n for n in range(1, len(comparison.sections) + 1) if (stem, n) not in used)
        used.add((stem, number))
        for plot in section_plots(section, runs):
            for kind in formats:
                name = "-".join([stem, *([str(number)] if number > 1 else []), _slug(plot.name)])
                paths.append(target / f"{name}.{kind}")
                save(plot.figure, paths[-1])
    return paths


def _slug(text: str) -> str:
    """A file name of letters, digits, dots and dashes: tasks and models are named by others."""
    return re.sub(r"[^\w.]+", "-", text).strip("-.")[:80] or "plots"
