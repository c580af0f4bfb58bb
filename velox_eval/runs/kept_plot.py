"""Draws a trace: which positions each layer and head kept over the answer, and the early-token share over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velox_eval.runs.figures import ALARM, INK, PALE, new_figure, require_matplotlib, save, shades
from velox_eval.runs.labels import budget_words

if TYPE_CHECKING:
    from velox_eval.engine.trace import Trace
    from velox_eval.runs.inspect import Inspection

MOST_PANELS = 36  # layers drawn over time; of a deeper model, these many spread evenly over its depth
COLUMNS = 6


def draw(inspection: Inspection, path: Path) -> None:
    """Writes an SVG or PNG to `path`. Raises ConfigError without matplotlib, or when the file cannot be written."""
    require_matplotlib()
    trace, count = inspection.trace, len(inspection.trace.layers)
    panels = _spread(count)
    lines = math.ceil(len(panels) / COLUMNS)
    heads = trace.held[0][0].shape[0]
    sizes = [1.2 * lines + 0.6, max(2.0, 0.035 * count * heads + 0.8), 2.6]
    figure = new_figure(13, sum(sizes) + 1.6, dpi=110, layout="constrained")
    figure.suptitle(_title(inspection), fontsize=11)
    areas: Any = figure.subfigures(3, 1, height_ratios=sizes)
    over_time, at_end, shares = areas
    _over_time(over_time, trace, panels, lines)
    _at_end(at_end, trace)
    _shares(shares, trace)
    save(figure, path)


def _title(inspection: Inspection) -> str:
    config, trace = inspection.header.config, inspection.trace
    limit = budget_words(inspection.record.budget, None) or "no budget"
    return (
        f"{config.method}, {limit}: {config.task.name}, sample {inspection.record.sample_id}\n"
        f"{inspection.header.model.name}, {trace.prompt_tokens} prompt tokens, "
        f"{trace.seen[-1] - trace.prompt_tokens} fed after them (run {inspection.header.run_id})"
    )


def _spread(count: int) -> list[int]:
    """Places of the layers to draw over time: all, or MOST_PANELS from the first to the last."""
    if count <= MOST_PANELS:
        return list(range(count))
    return [round(index * (count - 1) / (MOST_PANELS - 1)) for index in range(MOST_PANELS)]


def _over_time(area: Any, trace: Trace, panels: Sequence[int], lines: int) -> None:
    """One panel a layer: position to the right, time down, darkness the share of heads that hold the position."""
    import numpy as np

    area.suptitle("kept over time, a panel a layer: position to the right, tokens seen downwards", fontsize=9)
    axes = np.atleast_1d(area.subplots(lines, min(COLUMNS, len(panels)), squeeze=False, sharex=True, sharey=True))
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    edges = _edges(trace.seen)
    for axis, place in zip(axes.flat, panels, strict=False):
        image = np.stack([_density(moment[place], trace.seen[-1]) for moment in trace.held])
        axis.pcolormesh(np.arange(trace.seen[-1] + 1), edges, image, cmap=shades(), vmin=0, vmax=1, rasterized=True)
        axis.axvline(trace.prompt_tokens, color=ALARM, linewidth=0.6)
        axis.set_title(f"layer {trace.layers[place]}", fontsize=7, pad=2)
        axis.tick_params(labelsize=6, length=2)
        axis.set_ylim(edges[-1], edges[0])


def _at_end(area: Any, trace: Trace) -> None:
    """Every layer and head at the last moment: a line each."""
    import numpy as np

    area.suptitle("kept at the end: a line a head, layers from top to bottom; red: end of the prompt", fontsize=9)
    axis = area.subplots()
    heads = trace.held[-1][0].shape[0]
    rows = [_marks(head, trace.seen[-1]) for layer in trace.held[-1] for head in layer]
    axis.imshow(
        np.stack(rows),
        aspect="auto",
        cmap=shades(),
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(0, trace.seen[-1], len(rows) / heads, 0),
    )
    axis.axvline(trace.prompt_tokens, color=ALARM, linewidth=0.8)
    ticks = range(0, len(trace.layers), max(1, len(trace.layers) // 10))
    axis.set_yticks([tick + 0.5 for tick in ticks], [str(trace.layers[tick]) for tick in ticks])
    axis.set_ylabel("layer", fontsize=8)
    axis.set_xlabel("position", fontsize=8)
    axis.tick_params(labelsize=7)


def _shares(area: Any, trace: Trace) -> None:
    """The share of early rows as the answer grows: all layers together, and each."""
    moments = range(len(trace.seen))
    area.suptitle("share of the rows held that come from the first tenth of the tokens seen", fontsize=9)
    axis = area.subplots()
    for place in range(len(trace.layers)):
        axis.plot(trace.seen, [trace.early_share(m, place) for m in moments], color=PALE, linewidth=0.6)
    axis.plot(trace.seen, [trace.early_share(m) for m in moments], color=INK, linewidth=2, label="all layers")
    axis.axhline(0.1, color=ALARM, linewidth=0.8, linestyle="--", label="what keeping everything gives")
    axis.plot([], [], color=PALE, linewidth=0.6, label="a layer")
    axis.set_ylim(0, None)
    axis.set_xlabel("tokens seen", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=7, frameon=False)


def _density(positions: Any, length: int) -> Any:
    """Share of the heads that hold each position: [length]."""
    import numpy as np

    return np.bincount(positions.ravel(), minlength=length) / positions.shape[0]


def _marks(head: Any, length: int) -> Any:
    import numpy as np

    return (np.bincount(head, minlength=length) > 0).astype(np.float32)


def _edges(seen: Sequence[int]) -> list[float]:
    """Borders of the moments on the time axis: each reaches back to the one before it."""
    first = seen[0] - (seen[1] - seen[0] if len(seen) > 1 else 1)
    return [float(first), *(float(value) for value in seen)]
