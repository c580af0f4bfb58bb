"""The figure: retention against its controls, the matrix of arms and regimes, and the real model's recall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from velox_eval.mechanism.document import Mechanism
from velox_eval.mechanism.real import RealStudy
from velox_eval.mechanism.recall import ORACLE, RETURNS, STAYS
from velox_eval.mechanism.study import Study
from velox_eval.mechanism.tables import separating
from velox_eval.runs.figures import ALARM, INK, PALE, new_figure, save, shades

MIDDLE = "#5b86ad"
ROW = 0.24  # inches a row of the figure
CONTROL = "sliding_window"


def draw(found: Mechanism, path: Path) -> None:
    """Writes the figure as SVG or PNG. Raises ConfigError without matplotlib, or where it cannot be written."""
    real = found.real
    rows = max(len(found.study.values), len(real.methods()) if real else 0)
    panels = 3 if real else 2
    figure = new_figure(4.9 * panels, ROW * rows + 1.5, dpi=110, layout="constrained")
    axes = figure.subplots(1, panels)
    _shift(axes[0], found.study)
    _matrix(axes[1], found.study)
    if real is not None:
        _recall(axes[2], real)
    save(figure, path)


def _shift(axis: Any, study: Study) -> None:
    """Retention of every arm, all rows and unprotected ones, beside what recency alone gives."""
    arms = sorted(study.values, key=lambda arm: study.mean(arm, "shift", "retention") or 0.0)
    places = np.arange(len(arms))
    for measure, colour, marker, label in (
        ("retention", INK, "o", "all kept rows"),
        ("unprotected", ALARM, "x", "rows that were free to go"),
    ):
        values = [study.mean(arm, "shift", measure) for arm in arms]
        shown = [(value, place) for value, place in zip(values, places, strict=True) if value is not None]
        axis.scatter(*zip(*shown, strict=True), color=colour, marker=marker, s=22, label=label, zorder=3)
    region = float(np.mean([rates["region"].mean() for rates in study.base["shift"].values()]))
    axis.axvline(region, color=PALE, linewidth=1, label="share in the late block")
    if CONTROL in study.values:
        axis.axvline(
            study.mean(CONTROL, "shift", "retention"), color=MIDDLE, linestyle="--", linewidth=1, label=CONTROL
        )
    axis.set_yticks(places, arms, fontsize=7)
    axis.set_xlim(-0.03, 1.0)
    axis.grid(axis="x", color="#e3e8ee", linewidth=0.6)
    axis.set_title("shift: relevant rows among kept ones", fontsize=9)
    axis.tick_params(axis="x", labelsize=7)
    axis.legend(fontsize=6.5, frameon=False, loc="lower right")


def _matrix(axis: Any, study: Study) -> None:
    """Held rows in the regimes where relevance and recency come apart."""
    regimes = [name for name in separating() if name in study.base]
    arms = sorted(study.values, key=lambda arm: sum(study.mean(arm, name, "held") or 0.0 for name in regimes))
    image = np.array([[study.mean(arm, name, "held") or 0.0 for name in regimes] for arm in arms])
    axis.pcolormesh(image, cmap=shades(), vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
    for row, column in np.ndindex(image.shape):
        shade = "white" if image[row, column] > 0.6 else INK
        axis.text(
            column + 0.5, row + 0.5, f"{image[row, column]:.2f}", ha="center", va="center", fontsize=6.5, color=shade
        )
    axis.set_xticks(np.arange(len(regimes)) + 0.5, regimes, fontsize=7)
    axis.set_yticks(np.arange(len(arms)) + 0.5, arms, fontsize=7)
    axis.tick_params(length=0)
    axis.set_title("relevance against recency: share of the block held", fontsize=9)


def _recall(axis: Any, real: RealStudy) -> None:
    """Recall of later attention, topic staying and returning; one line a method."""
    methods = sorted(real.methods(), key=lambda m: float(real.values(m, RETURNS, "beyond_sinks").mean()))
    places = np.arange(len(methods))
    stays, returns = (
        np.array([float(real.values(method, kind, "beyond_sinks").mean()) for method in methods])
        for kind in (STAYS, RETURNS)
    )
    axis.hlines(places, np.minimum(stays, returns), np.maximum(stays, returns), color=PALE, linewidth=1.5)
    axis.scatter(stays, places, color=MIDDLE, s=20, label="the topic stays", zorder=3)
    axis.scatter(returns, places, color=ALARM, s=20, label="the first topic returns", zorder=3)
    axis.set_yticks(places, methods, fontsize=7)
    axis.set_xlim(0, 1)
    axis.grid(axis="x", color="#e3e8ee", linewidth=0.6)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title(f"{real.model}: recall of later attention beyond sinks", fontsize=9)
    axis.legend(
        fontsize=6.5,
        frameon=False,
        loc="lower right",
        title=f"{ORACLE}: the best {real.budget} rows",
        title_fontsize=6.5,
    )
