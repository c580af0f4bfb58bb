"""A Comparison as rows and columns: raw values for CSV, text for a terminal and Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from velox_eval.compare.comparison import VERDICTS, Arm, Comparison, Difference, Estimate, MemoryRow, Section
from velox_eval.records.sizes import human_bytes
from velox_eval.runs.labels import budget_label
from velox_eval.runs.text_tables import MISSING, markdown_cell, markdown_table, number, percent, times

Cell = Callable[[Arm, "Style"], str]


class Column(NamedTuple):
    """A column of text; `narrow` ones are in the table for an ordinary terminal. A line end parts a cell's lines."""

    title: str
    cell: Cell
    narrow: bool = False


class Grid(NamedTuple):
    """A table of text."""

    titles: list[str]
    rows: list[list[str]]


class Style(NamedTuple):
    """How a section's numbers are written."""

    decimals: int
    lines: bool  # two-line cells, for narrow tables

    def number(self, value: float | None, *, sign: bool = False) -> str:
        """Returns a score with the section's decimals."""
        if value is None:
            return MISSING
        return number(round(value, self.decimals) + 0.0, self.decimals, sign=sign)  # no "-0.00"

    def between(self, low: float | None, high: float | None) -> str:
        """Returns an interval, with a decimal less; nothing where there is none."""
        if low is None or high is None:
            return ""
        ends = (f"{round(end, self.decimals - 1) + 0.0:.{self.decimals - 1}f}" for end in (low, high))
        return f"[{', '.join(ends)}]"

    def join(self, first: str, second: str) -> str:
        """Returns both parts, one below the other in narrow tables."""
        return (first + ("\n" if self.lines else " ") + second) if second else first


def grid(section: Section, *, wide: bool) -> Grid:
    """Returns the section's arms: the few columns an ordinary terminal has room for, or all of them.

    Columns in which no arm has anything are left out.
    """
    style = Style(_decimals(section), lines=not wide)
    columns = [column for column in _columns(section) if wide or column.narrow]
    cells = [[column.cell(arm, style) for column in columns] for arm in section.arms]
    filled = [place for place in range(len(columns)) if any(row[place] not in ("", MISSING) for row in cells)]
    return Grid([columns[place].title for place in filled], [[row[place] for place in filled] for row in cells])


def memory_grid(section: Section) -> Grid:
    """Returns the speeds of arms that ran under one memory limit."""

    def row(each: MemoryRow) -> list[str]:
        speeds = (each.decode_tokens_per_second, each.prefill_tokens_per_second)
        return [
            human_bytes(each.memory_limit),
            each.label,
            _plain(each.batch),
            *(_plain(speed, ".1f") for speed in speeds),
            times(each.decode_ratio),
        ]

    titles = ["memory limit", "method", "batch", "decode tokens/s", "prefill tokens/s", "decode / baseline"]
    return Grid(titles, [row(each) for each in section.equal_memory])


def notes(comparison: Comparison) -> list[str]:
    """Returns what must be read with the tables: notes on sections, on rows, and the runs that were left out."""
    said = []
    for section in comparison.sections:
        about = f"{section.title}: " if len(comparison.sections) > 1 else ""
        said += [f"{about}{note}" for note in section.notes]
        said += [f"{name} differs and was allowed to: {'; '.join(v)}" for name, v in section.mixed.items()]
        for arm in section.arms:
            said += [f"{arm.label}: {note}" for note in (*arm.notes, *_notes(arm))]
    said += [f"left out: {run.label}, run {run.run_id}: {run.reason}" for run in comparison.left_out]
    return list(dict.fromkeys(said))


def _notes(arm: Arm) -> list[str]:
    difference = arm.difference
    if difference is None:
        return []
    said = [difference.reason] if difference.reason else []
    if difference.n_identical_other_score and difference.verdict != "judge_noise":
        said.append(
            f"{difference.n_identical_other_score} of {difference.n_identical} byte-identical answers got another "
            "score: part of the difference is the judge's own noise"
        )
    if not difference.paired:
        said.append("no sample in common with the baseline: compared unpaired")
    elif difference.n_dropped:
        said.append(f"{difference.n_dropped} samples have no partner or no score on one side and do not count")
    return said


def markdown(comparison: Comparison) -> str:
    """Returns the tables as a Markdown page, all columns."""
    lines = ["# Comparison", ""]
    for section in comparison.sections:
        lines += [f"## {markdown_cell(section.title)}", "", *_markdown_grid(grid(section, wide=True)), ""]
        if section.equal_memory:
            lines += ["Speeds at equal memory:", "", *_markdown_grid(memory_grid(section)), ""]
    said = notes(comparison)
    if said:
        lines += ["Notes:", "", *(f"- {markdown_cell(note)}" for note in said), ""]
    return "\n".join([*lines, "How to read it:", "", *(f"- {rule}" for rule in comparison.rules), ""])


def _markdown_grid(table: Grid) -> list[str]:
    titles, *rows = ([markdown_cell(cell) for cell in row] for row in (table.titles, *table.rows))
    return markdown_table(titles, rows)


def json_text(comparison: Comparison) -> str:
    """Returns the whole comparison as one JSON document."""
    return json.dumps(comparison.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"


def csv_text(comparison: Comparison) -> str:
    """Returns one line an arm with every number unrounded; an empty cell is a number that there is not."""
    text = io.StringIO()
    rows = [flat(section, arm) for section in comparison.sections for arm in section.arms]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def flat(section: Section, arm: Arm) -> dict[str, Any]:
    """Returns an arm as one flat row."""
    row: dict[str, Any] = {name: getattr(section, name) for name in ("task", "model", "seed")}
    row |= {name: getattr(arm, name) for name in ("label", "method", "budget", "keep", "baseline", "run_id", "status")}
    row["params"] = json.dumps(arm.params, sort_keys=True)
    row["score_name"] = section.score
    row |= {name: getattr(arm.score, attribute) for name, attribute in _estimate_names("score")}
    difference = arm.difference
    for name in Difference.model_fields:
        key = name if name in ("verdict", "reason", "detectable", "against") else f"difference_{name}"
        row[key.removesuffix("_value")] = None if difference is None else getattr(difference, name)
    repetition = arm.repetition
    row["repetition_rate"] = arm.repetition_rate
    row["repetition_equal_length"] = None if repetition is None else repetition.value
    row["repetition_equal_length_baseline"] = None if repetition is None else repetition.baseline
    for name, attribute in _estimate_names("repetition_difference"):
        row[name] = None if repetition is None else getattr(repetition.difference, attribute)
    row |= {name: getattr(arm, name) for name in ("accuracy", "accuracy_scored")}
    row |= {f"n_{name}" if name != "n" else "n": value for name, value in arm.counts.model_dump().items()}
    return row | arm.cost.model_dump()


def _estimate_names(stem: str) -> list[tuple[str, str]]:
    return [(stem if name == "value" else f"{stem}_{name}", name) for name in Estimate.model_fields]


def _columns(section: Section) -> list[Column]:
    return [
        Column("method", lambda arm, style: style.join(arm.method, _budget(arm)), narrow=True),
        Column(
            section.score,
            lambda arm, style: style.join(style.number(arm.score.value), _between(arm.score, style)),
            True,
        ),
        Column("difference", _difference, narrow=True),
        Column("verdict", _verdict, narrow=True),
        Column("p (Holm)", lambda arm, _: _p(arm.difference)),
        Column("detectable", lambda arm, style: style.number(arm.difference.detectable if arm.difference else None)),
        Column("pairs", lambda arm, _: _plain(arm.difference.n_pairs if arm.difference else None)),
        Column("same answers", lambda arm, _: _plain(arm.difference.n_identical if arm.difference else None)),
        Column("repeats", _repetition, narrow=True),
        Column(
            "cache",
            lambda arm, style: style.join(human_bytes(arm.cost.peak_cache_bytes), _known(arm.cost.peak_of_full)),
            True,
        ),
        Column("with the method's own", lambda arm, _: human_bytes(arm.cost.peak_total_bytes)),
        Column("allocated", lambda arm, _: human_bytes(arm.cost.allocated_cache_bytes)),
        Column(
            "rows kept",
            lambda arm, style: style.join(_plain(arm.cost.kept_tokens, ".0f"), _known(arm.cost.kept_fraction)),
        ),
        Column("early share", lambda arm, _: percent(arm.cost.early_share)),
        Column("tokens/s", lambda arm, style: _speed(arm, "decode", style), narrow=True),
        Column("prefill tokens/s", lambda arm, style: _speed(arm, "prefill", style)),
        Column("batch", lambda arm, _: _plain(arm.cost.batch)),
        Column("samples", _samples, narrow=True),
        Column(
            "accuracy, all / scored",
            lambda arm, _: f"{_plain(arm.accuracy, '.3f')} / {_plain(arm.accuracy_scored, '.3f')}",
        ),
        Column("run", lambda arm, _: arm.run_id),
    ]


def _budget(arm: Arm) -> str:
    size = budget_label(arm.budget, arm.keep)
    return " ".join(part for part in (size, *(f"{name}={value}" for name, value in arm.shown_params.items())) if part)


def _between(estimate: Estimate, style: Style) -> str:
    return style.between(estimate.low, estimate.high)


def _difference(arm: Arm, style: Style) -> str:
    found = arm.difference
    if found is None:
        return "baseline" if arm.baseline else MISSING
    return style.join(style.number(found.value, sign=True), style.between(found.low, found.high))


def _verdict(arm: Arm, style: Style) -> str:
    found = arm.difference
    if found is None:
        return ""
    words = VERDICTS[found.verdict]
    if not style.lines:
        return words
    if found.verdict in ("better", "worse"):
        return f"{words}\np {_p(found)}"
    if found.verdict == "no_difference" and found.detectable is not None:
        return f"{words}\n({style.number(found.detectable)} would show)"
    if found.verdict == "cannot_decide" and found.needed_pairs is not None:
        return f"{words}\n(needs {found.needed_pairs} samples)"
    return words.replace(": ", ":\n").replace("than the", "than\nthe")


def _p(found: Difference | None) -> str:
    if found is None:
        return MISSING
    p = found.p_margin if found.verdict == "not_worse" else found.p_adjusted
    return MISSING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _repetition(arm: Arm, style: Style) -> str:
    if arm.repetition is None:
        return _plain(arm.repetition_rate, ".3f") if arm.baseline else MISSING
    return style.join(f"{arm.repetition.value:.3f}", f"{arm.repetition.difference.value or 0:+.3f}")


def _speed(arm: Arm, kind: str, style: Style) -> str:
    speed = getattr(arm.cost, f"{kind}_tokens_per_second")
    if speed is None:
        return MISSING
    if not arm.cost.batch_equal:
        return f"batch {_plain(arm.cost.batch)}"
    ratio = getattr(arm.cost, f"{kind}_ratio")
    return style.join(f"{speed:.1f}" if speed < 1000 else f"{speed:.0f}", "" if ratio is None else times(ratio))


def _samples(arm: Arm, style: Style) -> str:
    counts = arm.counts
    marks = [(counts.error, "failed"), (counts.unscored, "unscored"), (counts.truncated, "cut")]
    marks.append((counts.not_fired or 0, "not fired"))
    said = [f"{count} {what}" for count, what in marks if count]
    ok = f"{counts.ok}" if counts.ok == counts.wanted else f"{counts.ok} of {counts.wanted}"
    return ("\n" if style.lines else ", ").join([f"{ok} ok", *said])


def _decimals(section: Section) -> int:
    """Three digits of the largest number that is shown and two of the smallest score; from two to five decimals."""
    scores = [abs(arm.score.value) for arm in section.arms if arm.score.value]
    ends = [abs(end) for arm in section.arms for end in (arm.score.high, arm.score.low) if end]

    def place(number: float) -> int:
        return -math.floor(math.log10(number))

    large, small = place(max([*scores, *ends], default=1.0)) + 2, place(min(scores, default=1.0)) + 1
    return min(5, max(2, large, min(small, large + 2)))


def _plain(value: float | int | None, form: str = "") -> str:
    return MISSING if value is None else format(value, form)


def _known(share: float | None) -> str:
    """The lower part of a cell, which is left out where there is nothing to say."""
    return "" if share is None else percent(share)
