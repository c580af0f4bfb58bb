"""A plan as a picture: bytes of caches, and sequences that fit, against the length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velox_eval.compare.plot_style import looks
from velox_eval.pipelines.capacity import Capacity, Need
from velox_eval.runs.figures import new_figure, save
from velox_eval.runs.labels import budget_label

MIB = 2**20
_GREY = "#6b7280"


def lengths_to_draw(prompt: int, answer: int) -> list[int]:
    """Returns the answer lengths that make a line: doubling up to `answer`, from an eighth of the whole on."""
    found, length = {answer}, answer
    while length > max(1, (prompt + answer) // 16):
        length //= 2
        found.add(max(1, length))
    return sorted(found)


def draw_capacity(plan: Capacity, path: Path) -> None:
    """Writes the picture of a plan of one prompt length and several answer lengths, as SVG or PNG by its ending.

    Raises ConfigError without matplotlib, for another ending, or where it cannot write.
    """
    figure = new_figure(9.6, 4.2, layout="constrained")
    left, right = figure.subplots(1, 2)
    lines: dict[str, list[Need]] = {}
    for row in plan.rows:
        lines.setdefault(label(row), []).append(row)
    styles = looks(lines)
    for name, rows in lines.items():
        rows = sorted(rows, key=lambda row: row.answer)
        look = styles[name]
        drawn: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": look.dashes, "markersize": 4}
        lengths = [row.prompt + row.answer for row in rows]
        left.plot(lengths, [row.batch_bytes / MIB for row in rows], label=name, **drawn)
        right.plot(lengths, [row.most for row in rows], **drawn)
    batch = plan.rows[0].batch
    if plan.cache_room > 0:
        left.axhline(plan.cache_room / MIB, color=_GREY, linewidth=1)
        left.annotate(
            "memory left by the weights",
            (0.02, plan.cache_room / MIB),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
            color=_GREY,
        )
    left.set_yscale("log")
    left.set_ylabel(f"caches of {batch} sequence{'s' if batch > 1 else ''} at their largest, MiB")
    if all(row.most for row in plan.rows):
        right.set_yscale("log")
    else:  # a logarithm has no place for none
        right.set_yscale("symlog", linthresh=1)
        right.set_ylim(bottom=0)
    right.set_ylabel("sequences that fit")
    for axes in (left, right):
        axes.set_xlabel("tokens, prompt and answer")
        axes.grid(True, linewidth=0.4, alpha=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save(figure, path)


def label(row: Need) -> str:
    """Returns method and budget of a row: `morphkv@512`, `kvzip@25%`, `full`."""
    return row.method + budget_label(row.budget, row.keep)
