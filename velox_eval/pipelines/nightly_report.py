"""A night in words and pictures: a Markdown summary for a job page, a line of history, the trend, the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from velox_eval.compare.decide import compare
from velox_eval.compare.page import write_page
from velox_eval.compare.plots import plot_trend
from velox_eval.errors import ConfigError
from velox_eval.pipelines.baseline import Night
from velox_eval.pipelines.nightly import Line, NightlyResult
from velox_eval.records import jsonl
from velox_eval.records.output import check_folder, make_folder, write_text
from velox_eval.records.store import load_run
from velox_eval.runs.figures import save
from velox_eval.runs.text_tables import MISSING, markdown_cell, markdown_table, number

HISTORY, SUMMARY, PAGE = "history.jsonl", "summary.md", "report.html"


def check_report(folder: Path) -> None:
    """Raises ConfigError, or StoreError for a damaged history, where `write_night_report` could not write later."""
    check_folder(folder)
    jsonl.read(folder / HISTORY)


def write_night_report(result: NightlyResult, folder: Path) -> list[Path]:
    """Writes everything there is to show into `folder` and returns the files. Raises ConfigError where it cannot."""
    make_folder(folder)
    try:
        jsonl.repair(folder / HISTORY)
        jsonl.append(folder / HISTORY, history_row(result))
    except OSError as error:
        raise ConfigError(f"cannot write {folder / HISTORY}: {error.strerror or error}") from error
    write_text(folder / SUMMARY, markdown(result))
    files = [folder / HISTORY, folder / SUMMARY, *_trends(folder)]
    runs = [load_run(path) for path in result.sweep.folders]
    write_page(folder / PAGE, compare(runs, split=True), {run.header.run_id: run for run in runs})
    return [*files, folder / PAGE]


def markdown(result: NightlyResult) -> str:
    """Returns the summary: what got worse first, then every run beside the baseline."""
    night, before, red = result.night, result.baseline, result.regressions
    colour = "no baseline" if before is None else "red" if red else "green"
    lines = [f"# Nightly {night.suite}: {colour}", "", _when("Tonight", night)]
    if before is not None:
        lines.append(_when("Baseline", before) + _moved(night, before))
        lines += ["", *_verdicts(red, len(result.lines)), "", *_table(result.lines)]
        lines += ["", *_legend(result)]
    if result.updated:
        lines += ["", "This night is the baseline now."]
    failed = [run for run in result.sweep.runs if run.error is not None]
    lines += [f"- {markdown_cell(run.planned.label)}: {markdown_cell(run.error or '')}" for run in failed]
    return "\n".join(lines) + "\n"


def _when(what: str, night: Night) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in night.versions.items())
    commit = f", commit {night.commit[:10]}" if night.commit else ""
    return f"{what}: {night.created_at:%Y-%m-%d %H:%M} UTC, {night.platform}, {versions}{commit}.  "


def _moved(night: Night, before: Night) -> str:
    names = sorted(night.versions.keys() | before.versions.keys())
    moved = [
        f"{name} {before.versions.get(name, 'absent')} then, {night.versions.get(name, 'absent')} now"
        for name in names
        if night.versions.get(name) != before.versions.get(name)
    ]
    return f"\nOther versions: {'; '.join(moved)}." if moved else ""


def _verdicts(red: Sequence[Line], count: int) -> list[str]:
    if not red:
        return [f"None of {count} runs got worse."]
    return [
        f"{len(red)} of {count} runs got worse:",
        *(
            f"- **{markdown_cell(line.label)}**: {'; '.join(_why(line, kind) for kind in line.regressions)}"
            for line in red
        ),
    ]


def _why(line: Line, kind: str) -> str:
    """One regression in words."""
    run, before = line.run, line.before
    if kind == "score":
        test = f"p {line.p:.2g} over {line.n_pairs} pairs"
        return f"{run.primary} {number(run.value, 4)}, was {number(before.value, 4)} ({test})"
    if kind == "failed":
        return f"{line.failed} samples failed that did not"
    if kind == "bytes":
        return f"{line.bytes / line.bytes_before - 1:+.1%} bytes of cache on {line.n_bytes} samples"
    assert line.speed is not None
    assert line.speed_before is not None
    return (
        f"a decode step fits {line.speed:.2f} times into the full cache's, was {line.speed_before:.2f} "
        f"(a fall of {line.speed_tolerance:.0%} is noise)"
    )


def _table(lines: Sequence[Line]) -> list[str]:
    titles = ("run", "score", "baseline", "p", "changed answers", "bytes", "full's step / its own", "baseline", "")
    rows = []
    for line in lines:
        run = line.run
        cells = (
            line.label,
            f"{run.primary} {number(run.value, 4)}",
            number(line.before.value, 4),
            MISSING if line.p is None else f"{line.p:.2g}",
            f"{line.changed} of {len(run.samples)}",
            f"{line.bytes / line.bytes_before - 1:+.1%}" if line.bytes_before else MISSING,
            number(line.speed, 2),
            number(line.speed_before, 2),
            f"worse: {', '.join(line.regressions)}" if line.regressions else "; ".join(line.notes) or "ok",
        )
        rows.append([markdown_cell(cell) for cell in cells])
    return markdown_table(titles, rows)


def _legend(result: NightlyResult) -> list[str]:
    return [
        "Score: permutation test within the pairs of both nights, after Holm over the runs of one task and budget; - : "
        "all scores are the same. Bytes: counted, on samples that saw as many tokens. Step: the full cache's decode "
        "step over the method's, both of one night, timed in turns; worse from a fall of "
        f"{result.speed_tolerance:.0%}, or of three standard errors of both medians where that is more. Changed "
        "answers are no regression by themselves.",
    ]


def history_row(result: NightlyResult) -> dict[str, Any]:
    """Returns the night as one flat line of the history."""
    night = result.night
    changed = {line.label: line for line in result.lines}
    return {
        "created_at": night.created_at.isoformat(),
        "suite": night.suite,
        "suite_sha256": night.suite_sha256,
        "commit": night.commit,
        "versions": night.versions,
        "verdict": "no baseline" if result.baseline is None else "red" if result.regressions else "green",
        "updated": result.updated,
        "runs": {
            label: {
                "task": run.task,
                "primary": run.primary,
                "value": run.value,
                "peak_bytes": max((sample.peak_bytes or 0 for sample in run.samples.values()), default=None),
                "full_over": median(run.full_over) if run.full_over else None,
                "changed": changed[label].changed if label in changed else None,
                "regressions": list(changed[label].regressions) if label in changed else [],
            }
            for label, run in night.runs.items()
        },
    }


def _trends(folder: Path) -> list[Path]:
    """Draws every task's score and speed over the nights of the latest form of the suite."""
    rows = jsonl.read(folder / HISTORY).rows
    rows = [row for row in rows if row.get("suite_sha256") == rows[-1]["suite_sha256"]]
    nights = [datetime.fromisoformat(row["created_at"]) for row in rows]
    tasks = dict.fromkeys((run["task"], run["primary"]) for run in rows[-1]["runs"].values())
    files = []
    for task, primary in tasks:
        speed = "full cache's decode step / the method's"
        for what, field, name in ((primary, "value", "score"), (speed, "full_over", "speed")):
            figure = plot_trend(what, f"{task}, {len(rows)} nights", nights, _series(rows, task, field))
            if figure is not None:
                files.append(folder / f"trend-{task.replace('/', '-')}-{name}.svg")
                save(figure, files[-1])
    return files


def _series(rows: Sequence[Mapping[str, Any]], task: str, field: str) -> dict[str, list[float | None]]:
    """The task's runs by label, a value a night; None for a night without that run."""
    labels = [label for label, run in rows[-1]["runs"].items() if run["task"] == task]
    return {
        label.removeprefix(f"{task}: "): [row["runs"].get(label, {}).get(field) for row in rows] for label in labels
    }
