"""Plots of a comparison's section: score and speed against bytes, scores along the answer, what was kept.

Every function returns a matplotlib Figure (extra `report`), or None where there is nothing to draw;
`velox_eval.runs.figures.save` writes one as SVG or PNG. Lines carry their names at their ends. Colour, marker and
dashes each tell methods apart, so that a plot still reads in grey.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from velox_eval.compare.comparison import Arm, Section
from velox_eval.compare.plot_labels import FRONT, SOFT, TEXT, End, framed, label_ends, short
from velox_eval.compare.plot_style import line_name, looks
from velox_eval.metrics.fidelity import BIN
from velox_eval.metrics.repetition import repetition_by_decile
from velox_eval.records.store import StoredRun
from velox_eval.runs.labels import budget_words

Runs = Mapping[str, StoredRun]  # by run id

_WIDE = 20.0  # largest over smallest from which a score where less is better is drawn on a logarithmic scale
_UNITS = (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))

# What the names of scores and curves stand for on an axis; another name is shown with its underscores as spaces.
TITLES: Mapping[str, str] = {
    "mean_kl": "KL from the full cache, nats a token",
    "top1_agreement": "same first choice as the full cache, share of tokens",
    "accuracy_found": "accuracy where the entry was written",
    "stic_2": "STIC-2, share of all checks met",
}
_AXES: Mapping[str, str] = {
    "position": "token of the answer",
    "entry": "tenth of the answer, by entry asked for",
    "decile": "tenth of the answer",
}


class Point(NamedTuple):
    """An arm in a scatter plot: `room` is its budget (rows, or a share), `low` and `high` end the interval if any."""

    label: str
    room: float | None
    x: float
    y: float
    low: float | None = None
    high: float | None = None


def plot_score(section: Section) -> Any:
    """Returns the score against peak cache bytes, a line a method through its budgets, with the Pareto front."""
    points = [
        Point(line_name(arm), _room(arm), arm.cost.peak_cache_bytes, arm.score.value, arm.score.low, arm.score.high)
        for arm in section.arms
        if arm.cost.peak_cache_bytes is not None and arm.score.value is not None
    ]
    higher = section.higher_is_better
    about = (
        *where(section),
        f"{'higher' if higher else 'lower'} is better",
        "bars: intervals",
        "grey steps: the Pareto front (nothing scores better with fewer bytes); filled points lie on it",
    )
    log = not higher and _spans(point.y for point in points)
    return _scatter(_title(section.score), about, points, higher=higher, log=log)


def plot_speed(section: Section) -> dict[int, Any]:
    """Returns decode tokens/s against peak cache bytes, a figure a batch size: speeds compare at an equal one only."""
    by_batch: dict[int, list[Point]] = {}
    for arm in section.arms:
        cost = arm.cost
        if cost.decode_tokens_per_second is not None and cost.peak_cache_bytes is not None and cost.batch is not None:
            point = Point(line_name(arm), _room(arm), cost.peak_cache_bytes, cost.decode_tokens_per_second)
            by_batch.setdefault(cost.batch, []).append(point)
    return {
        batch: _scatter(
            "decode, tokens a second",
            (
                *where(section),
                "higher is better",
                f"{batch} sequences together" if batch > 1 else "one sequence at a time",
            ),
            points,
            higher=True,
            front=False,
        )
        for batch, points in sorted(by_batch.items())
    }


def plot_along(section: Section, arms: Sequence[Arm], runs: Runs, curve: str) -> Any:
    """Returns `curve` of the runs' summaries along the answer, a line an arm of `arms` that has two places of it."""
    series: list[tuple[str, list[float | None]]] = []
    for arm in arms:
        summary = runs[arm.run_id].header.summary
        values = summary.curves.get(curve) if summary is not None else None
        if values and sum(value is not None for value in values) > 1:
            series.append((line_name(arm), values))
    stem, _, axis = curve.partition("_by_")
    log = stem == "mean_kl" and _spans(value for _, values in series for value in values if value is not None)
    zero = [label for label, values in series if log and not any(values)]
    about = (*where(section), *_at(arms), *(f"{label}: 0 throughout, not drawn" for label in zero))
    return _lines(
        f"{_title(stem)}, along the answer",
        about,
        [(label, values) for label, values in series if label not in zero],
        _AXES.get(axis, axis.replace("_", " ") or "place in the answer"),
        width=BIN if axis == "position" else 1,
        log=log,
    )


def plot_repetition(section: Section, arms: Sequence[Arm], runs: Runs, n: int = 4) -> Any:
    """Returns the share of word n-grams that stood earlier in the same answer, by tenths of it, pooled over samples."""
    series: list[tuple[str, list[float | None]]] = []
    for arm in arms:
        sums = [
            repetition_by_decile(record.response, n)
            for record in runs[arm.run_id].samples
            if record.status == "ok" and record.response is not None
        ]
        tenths = list(zip(*(answer for answer in sums if answer), strict=True))
        totals = [(sum(again for again, _ in tenth), sum(total for _, total in tenth)) for tenth in tenths]
        if totals:
            series.append((line_name(arm), [again / total if total else None for again, total in totals]))
    about = (*where(section), *_at(arms), "lower is better")
    return _lines(
        f"word {n}-grams that stood earlier in the answer, share", about, series, "tenth of the answer, by words"
    )


def plot_trend(what: str, about: str, nights: Sequence[datetime], series: Mapping[str, Sequence[float | None]]) -> Any:
    """Returns `series` over `nights`: by name, a value a night, None where that night gave none."""
    known = {label: values for label, values in series.items() if any(value is not None for value in values)}
    if not known:
        return None
    axes = framed(what, [about], list(known))
    look, ends = looks(known), []
    days = range(len(nights))
    for label, values in known.items():
        shown = [math.nan if value is None else value for value in values]
        axes.plot(days, shown, color=look[label].colour, marker=look[label].marker, ms=4, lw=1.2)
        last = max(index for index, value in enumerate(values) if value is not None)
        ends.append(End(label, last, shown[last], look[label].colour))
    step = max(1, math.ceil(len(nights) / 8))
    ticks = list(days)[::-step][::-1]
    axes.set_xticks(ticks, [f"{nights[day]:%Y-%m-%d}"[5:] for day in ticks])
    _settle(axes)
    label_ends(axes, ends)
    return axes.figure


def pareto(points: Iterable[tuple[float, float]], *, higher: bool) -> list[tuple[float, float]]:
    """Returns those of (cost, score) for which no other has a better score at no more cost; by cost, each once."""
    front: list[tuple[float, float]] = []
    sign = -1 if higher else 1
    for cost, score in sorted(set(points), key=lambda point: (point[0], sign * point[1])):
        if not front or sign * score < sign * front[-1][1]:
            front.append((cost, score))
    return front


def budgets(section: Section) -> Iterator[tuple[str, list[Arm]]]:
    """Yields a name for each budget with its arms, those without any bound first: what one plot of lines can hold."""
    unbound = [arm for arm in section.arms if arm.budget is None and arm.keep is None]
    groups: dict[str, list[Arm]] = {}
    for arm in section.arms:
        if arm not in unbound:
            name = f"budget-{arm.budget}" if arm.keep is None else f"keep-{arm.keep:g}"
            groups.setdefault(name, []).append(arm)
    for name, arms in groups.items():
        yield name, [*unbound, *arms]
    if unbound and not groups:
        yield "unbound", unbound


def _scatter(
    what: str, about: Sequence[str], points: Sequence[Point], *, higher: bool, log: bool = False, front: bool = True
) -> Any:
    """Points joined by method in order of bytes; `front` draws the steps and fills the points that lie on them."""
    if not points:
        return None
    rooms = sorted({point.room for point in points if point.room is not None})
    if len(rooms) > 1:
        about = (*about, f"larger points: larger budgets ({', '.join(f'{room:g}' for room in rooms)})")
    look = looks(point.label for point in points)
    groups: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: (point.x, point.y)):
        groups.setdefault(point.label, []).append(point)
    unit, size = _unit(max(point.x for point in points))
    axes = framed(what, about, list(groups))
    best = pareto([(point.x, point.y) for point in points], higher=higher) if front else []
    if best:
        axes.step([x / size for x, _ in best], [y for _, y in best], where="post", color=FRONT, lw=5, zorder=1)
    for label, members in groups.items():
        colour, marker, dashes = look[label]
        xs = [point.x / size for point in members]
        axes.plot(xs, [point.y for point in members], color=colour, linestyle=dashes, lw=1.1, zorder=3)
        for point, x in zip(members, xs, strict=True):
            if point.low is not None and point.high is not None:
                axes.plot([x, x], [point.low, point.high], color=colour, lw=0.8, alpha=0.35, zorder=2)
            face = colour if not front or (point.x, point.y) in best else "white"
            edge = {"markerfacecolor": face, "markeredgecolor": colour, "markeredgewidth": 1.1}
            wide = 8 if marker == "*" else 4.2 + 3.2 * (rooms.index(point.room) / len(rooms) if point.room else 1)
            axes.plot(x, point.y, marker=marker, ms=wide, linestyle="none", zorder=4, clip_on=False, **edge)
    _scale(axes, [point.y for point in points], log)
    axes.set_xlabel(f"peak cache, {unit} (largest of the samples)", fontsize=TEXT, color=SOFT)
    axes.margins(x=0.04)
    if not front:  # speeds: a small difference should look small
        axes.set_ylim(0, max(point.y for point in points) * 1.08)
    _settle(axes)
    label_ends(axes, [End(label, at[-1].x / size, at[-1].y, look[label].colour) for label, at in groups.items()])
    return axes.figure


def _lines(
    what: str,
    about: Sequence[str],
    series: Sequence[tuple[str, Sequence[float | None]]],
    x_title: str,
    *,
    width: int = 1,
    log: bool = False,
) -> Any:
    """A line each of `series`; a value stands for `width` tokens and is drawn in their middle (1: at its number)."""
    if not series:
        return None
    look, ends = looks(label for label, _ in series), []
    axes = framed(what, about, [label for label, _ in series])
    for label, values in series:
        places = [(index + 0.5) * width if width > 1 else index + 1 for index in range(len(values))]
        shown = [math.nan if value is None else value for value in values]
        colour, marker, dashes = look[label]
        axes.plot(places, shown, color=colour, linestyle=dashes, lw=1.2, marker=marker, ms=3.2)
        last = max(index for index, value in enumerate(values) if value is not None)
        ends.append(End(label, places[last], shown[last], colour))
    _scale(axes, [value for _, values in series for value in values if value is not None], log)
    if width == 1:
        axes.set_xticks(range(1, max(len(values) for _, values in series) + 1))
    axes.set_xlabel(x_title, fontsize=TEXT, color=SOFT)
    axes.margins(x=0.02)
    _settle(axes)
    label_ends(axes, ends)
    return axes.figure


def _scale(axes: Any, values: Sequence[float], log: bool) -> None:
    if not log:
        return
    least = min(value for value in values if value > 0)
    if min(values) > 0:
        axes.set_yscale("log")
    else:  # zero has its place below the smallest power of ten
        axes.set_yscale("symlog", linthresh=10.0 ** math.floor(math.log10(least)), linscale=0.5)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0.0 if min(values) <= 0 else least / 1.6, max(values) * 1.6)


def _settle(axes: Any) -> None:
    """Keeps the limits as they are now, so that labels placed by them stay right."""
    axes.set_xlim(axes.get_xlim())
    axes.set_ylim(axes.get_ylim())


def _room(arm: Arm) -> float | None:
    return arm.budget if arm.budget is not None else arm.keep


def _spans(values: Iterable[float]) -> bool:
    """Whether positive values span so much that a linear scale would hide the small ones."""
    known = [value for value in values if value > 0]
    return bool(known) and max(known) > _WIDE * min(known)


def _unit(largest: float) -> tuple[str, int]:
    return next((unit for unit in reversed(_UNITS) if largest >= unit[1]), _UNITS[0])


def _title(score: str) -> str:
    return TITLES.get(score, score.replace("_", " "))


def where(section: Section) -> tuple[str, ...]:
    """Returns what the section is about: task, model and samples."""
    count = max(arm.counts.n for arm in section.arms)
    return section.task, short(section.model), f"{count} samples"


def _at(arms: Sequence[Arm]) -> tuple[str, ...]:
    sizes = (budget_words(arm.budget, arm.keep) for arm in arms)
    return tuple(size for size in sizes if size)[:1]
