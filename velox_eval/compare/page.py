"""The report: one HTML file that needs nothing else, neither a server nor the network.

Markup, style and script are files of this package. What runs and models wrote comes in as JSON and is shown as text:
nothing of it is ever parsed as HTML. The page's own policy lets one script run, the one it was written with, and no
request leave.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from velox_eval.compare.comparison import Comparison
from velox_eval.compare.page_data import answers_data, embed, prompts_data, summary_data
from velox_eval.compare.page_svg import inline_svg
from velox_eval.compare.plot_files import section_plots
from velox_eval.records.output import write_text
from velox_eval.records.store import StoredRun

_SCRIPTS = ("base.js", "table.js", "samples.js", "answers.js", "start.js")  # one script of the page, in this order


def write_page(path: Path | str, comparison: Comparison, runs: Mapping[str, StoredRun]) -> None:
    """Writes the report on `comparison` to `path`; `runs` holds the run of every arm, by run id.

    Raises ConfigError when the file cannot be written or matplotlib (extra `report`) is missing.
    """
    write_text(Path(path), render_page(comparison, runs))


def render_page(comparison: Comparison, runs: Mapping[str, StoredRun]) -> str:
    """Returns the report as an HTML document. Raises ConfigError when matplotlib is missing."""
    script = "\n".join(map(_file, _SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "style": _file("page.css"),
        "script": script,
        "script_hash": f"sha256-{digest}",
        "plots": _plots(comparison, runs),
        "data": _data(comparison, runs),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("page.html"))


def _file(name: str) -> str:
    return (files("velox_eval.compare") / "page_files" / name).read_text(encoding="utf-8")


def _plots(comparison: Comparison, runs: Mapping[str, StoredRun]) -> str:
    figures = []
    for number, section in enumerate(comparison.sections):
        for index, plot in enumerate(section_plots(section, runs)):
            svg = inline_svg(plot.figure, f"plot-{number}-{index}")
            figures.append(f'<figure class="plot" data-section="{number}">{svg}</figure>')
    return "\n".join(figures)


def _data(comparison: Comparison, runs: Mapping[str, StoredRun]) -> str:
    """The page's data: a block for what every view needs, and one a run for its answers, read when they are shown."""
    blocks = {"summary": embed(summary_data(comparison, runs))}
    for number, section in enumerate(comparison.sections):
        chosen = [runs[arm.run_id] for arm in section.arms]
        blocks[f"prompts-{number}"] = embed(prompts_data(chosen))
        for index, run in enumerate(chosen):
            blocks[f"answers-{number}-{index}"] = embed(answers_data(section, run))
    return "\n".join(f'<script type="application/json" id="{name}">{text}</script>' for name, text in blocks.items())
