"""What each arm held at the end: the share of the tokens seen by layer, and how many of the rows are early tokens.

Which positions a method kept is not in the records; `velox-eval inspect` runs a sample again and draws that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from velox_eval.compare.comparison import Arm, Section
from velox_eval.compare.plot_labels import FAINT, LINE, SOFT, TEXT, framed, printable, short, text_width
from velox_eval.compare.plots import Runs, where
from velox_eval.records.schema import SampleRecord
from velox_eval.runs.figures import INK, shades

EVEN = 0.1  # early share of a cache that keeps everything
_WIDTH = 7.2


class _Row(NamedTuple):
    label: str
    layers: list[float]
    early: float | None


def plot_kept(section: Section, runs: Runs) -> Any:
    """Returns a row an arm: rows held at the end over tokens seen, by layer, and the share of early tokens in them."""
    rows = [row for arm in section.arms if (row := _row(arm, runs[arm.run_id].samples)) is not None]
    if not rows:
        return None
    axes = framed(
        "what was kept at the end",
        (
            *where(section),
            "left: rows held / tokens seen, by layer (white: none, dark: all)",
            "right: share of the rows that come from the first tenth of the tokens (dashes: keeping everything)",
        ),
        [],
        height=1.45 + len(rows) * LINE * 1.35 / 72,
    )
    figure, box = axes.figure, axes.get_position()
    room = max(text_width(figure, row.label) for row in rows) / _WIDTH + 0.03
    middle = room + (0.97 - room) * 0.62
    axes.set_position((room, box.y0, middle - room, box.height))
    _by_layer(axes, rows)
    _early(figure.add_axes((middle + 0.045, box.y0, 0.93 - middle, box.height)), rows)
    return figure


def _row(arm: Arm, samples: Sequence[SampleRecord]) -> _Row | None:
    """Ratios of sums over the samples that say what they kept; None when none does."""
    known = [record for record in samples if record.kept_tokens and record.kept_fraction]
    depth = max((len(record.kept_tokens or ()) for record in known), default=0)
    alike = [record for record in known if len(record.kept_tokens or ()) == depth]
    if not depth:
        return None
    seen = sum(_seen(record) for record in alike)
    layers = [sum((record.kept_tokens or ())[layer] for record in alike) / seen for layer in range(depth)]
    return _Row(short(arm.label), [min(share, 1.0) for share in layers], arm.cost.early_share)


def _seen(record: SampleRecord) -> float:
    """Tokens the caches had seen: kept_fraction is rows held over them, mean over layers."""
    kept = record.kept_tokens or ()
    return sum(kept) / len(kept) / (record.kept_fraction or 1.0)


def _by_layer(axes: Any, rows: Sequence[_Row]) -> None:
    depth = max(len(row.layers) for row in rows)
    for place, row in enumerate(rows):
        axes.imshow(
            [row.layers],
            cmap=shades(),
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
            extent=(0, depth, place + 0.4, place - 0.4),
        )
    axes.set_xlim(0, depth)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [printable(row.label) for row in rows], parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("eviction layer, first to last", fontsize=TEXT, color=SOFT)


def _early(axes: Any, rows: Sequence[_Row]) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, row in enumerate(rows):
        if row.early is not None:
            axes.plot([0, row.early], [place, place], color=FAINT, lw=0.8, zorder=1)
            axes.plot(row.early, place, marker="o", ms=4.5, color=INK, linestyle="none", zorder=2)
    axes.axvline(EVEN, color=SOFT, lw=0.8, linestyle=(0, (4, 2)), zorder=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, None)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.tick_params(labelsize=TEXT, color=FAINT, labelcolor=SOFT, width=0.7, length=3)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.set_xlabel("share of early tokens", fontsize=TEXT, color=SOFT)
