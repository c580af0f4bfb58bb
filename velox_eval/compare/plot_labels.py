"""Names at the end of lines and points instead of a legend: beside the axes, in order, never over each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from velox_eval.runs.figures import new_figure

TEXT = 8.0  # points
LINE = 10.6  # points from one label to the next
LEADER = 16.0  # points between axes and labels
FRONT = "#d9dce1"
FAINT = "#8a8f98"
SOFT = "#4a4f57"
DARK = "#16191d"
_LONGEST = 44  # characters
_LEFT, _BOTTOM, _TOP, _RIGHT = 0.58, 0.50, 0.64, 0.10  # inches around the axes, labels apart


class End(NamedTuple):
    """What a label belongs to: its text, and the place (data coordinates) and colour of the line's end."""

    text: str
    x: float
    y: float
    colour: str


def framed(title: str, about: Sequence[str], labels: Sequence[str], *, width: float = 7.2, height: float = 4.3) -> Any:
    """Returns empty axes with room for `labels` to the right: a figure `width` inches wide, higher where many need it.

    `title` says what is shown, `about` (smaller, as many lines as it takes) on what and how to read it.
    """
    figure = new_figure(width, height)
    lines = _filled(figure, about, width - 0.24)
    top = _TOP + 0.15 * (len(lines) - 1)
    height = max(height, len(labels) * LINE / 72 + _BOTTOM + top)
    figure.set_figheight(height)
    room = max((text_width(figure, label) for label in labels), default=0.0) + (LEADER / 72 if labels else 0) + _RIGHT
    axes = figure.add_axes(
        (_LEFT / width, _BOTTOM / height, (width - _LEFT - room) / width, (height - _BOTTOM - top) / height)
    )
    for text, below, look in (
        (title, 0.10, {"fontsize": 11, "fontweight": "bold", "color": DARK}),
        ("\n".join(lines), 0.33, {"fontsize": TEXT, "color": SOFT, "linespacing": 1.35}),
    ):
        figure.text(0.12 / width, 1 - below / height, printable(text), va="top", parse_math=False, **look)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
        axes.spines[side].set_linewidth(0.7)
    axes.tick_params(labelsize=TEXT, color=FAINT, labelcolor=SOFT, width=0.7, length=3)
    return axes


def _filled(figure: Any, parts: Sequence[str], width: float) -> list[str]:
    """`parts` in lines of at most `width` inches."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]} · {part}" if lines else part
        if lines and text_width(figure, joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def printable(text: str) -> str:
    """Returns `text` without characters that XML cannot hold: names in a plot may come from anyone's records."""
    return "".join(character if character == "\n" or character.isprintable() else "\ufffd" for character in text)


def short(text: str) -> str:
    """Returns `text`, its middle left out where it is longer than a label can be."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 + 1 :]}"


def text_width(figure: Any, text: str) -> float:
    """Returns the width of `text` at the size of labels, in inches."""
    probe = figure.text(0, 0, printable(text), fontsize=TEXT, parse_math=False)
    width = probe.get_window_extent(figure.canvas.get_renderer()).width / figure.dpi
    probe.remove()
    return float(width)


def label_ends(axes: Any, ends: Sequence[End]) -> None:
    """Writes each end's text to the right of `axes`, as near to its own height as the others let it, with a leader.

    The scales and limits of `axes` must be final. Raises ValueError where the axes are too low for so many.
    """
    if not ends:
        return
    figure = axes.figure
    per_point = figure.dpi / 72
    box = axes.get_window_extent()
    heights = [float(axes.transData.transform((end.x, end.y))[1]) for end in ends]
    order = sorted(range(len(ends)), key=lambda index: (heights[index], ends[index].text))
    placed = spread([heights[index] for index in order], LINE * per_point, box.y0, box.y1)
    for index, height in zip(order, placed, strict=True):
        end = ends[index]
        share = (height - box.y0) / box.height
        axes.annotate(
            printable(end.text),
            xy=(end.x, end.y),
            xycoords="data",
            xytext=(1 + LEADER * per_point / box.width, share),
            textcoords="axes fraction",
            fontsize=TEXT,
            color=DARK,
            va="center",
            ha="left",
            annotation_clip=False,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "linewidth": 0.6,
                "alpha": 0.7,
                "linestyle": (0, (1, 1.5)),  # dots: no line of the data
                "relpos": (0, 0.5),
                "shrinkA": 1.5,
                "shrinkB": 3.5,
            },
        )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Returns places nearest (least squares) to the sorted `wanted` ones, at least `gap` apart, within low..high.

    Pools neighbours that are too near until none are. Raises ValueError where so many do not fit.
    """
    if (len(wanted) - 1) * gap > (high - low) * (1 + 1e-9):
        raise ValueError(f"{len(wanted)} labels, {gap:g} apart, do not fit between {low:g} and {high:g}")
    pools: list[tuple[float, int]] = []  # mean of wanted minus the room of those below, and how many share it
    for index, place in enumerate(wanted):
        mean, count = place - index * gap, 1
        while pools and pools[-1][0] >= mean:
            lower, many = pools.pop()
            mean, count = (lower * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    top = high - (len(wanted) - 1) * gap
    flat = [min(max(mean, low), top) for mean, count in pools for _ in range(count)]
    return [place + index * gap for index, place in enumerate(flat)]
