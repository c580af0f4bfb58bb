"""What keys standing in for queries cost: fidelity of every method, adapted, paper and installed, on one page.

    python -m velox_eval.pipelines.proxy_cost -o results/reference/proxy_cost.md

Every run is an ordinary `velox-eval run --task fidelity` whose records are kept, so an interrupted pipeline resumes.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from velox_eval.errors import VeloxEvalError
from velox_eval.methods import METHODS
from velox_eval.records.output import check_file, write_text
from velox_eval.records.schema import RunHeader, ScoreSummary
from velox_eval.runs.plan import RunOptions
from velox_eval.runs.recorder import RunResult
from velox_eval.runs.runner import run
from velox_eval.runs.text_tables import MISSING, markdown_cell, markdown_table, number

INSTALLED = ("streaming_llm", "knorm", "qfilters", "h2o", "tova", "snapkv", "pyramidkv", "chunkkv", "cam", "keyformer")
ALSO_INSTALLED = ("morphkv", "kvzip", "squeeze")
BRIDGED = "veloxquant/"
EARLY = ("h2o", "h2o:paper", "morphkv", "morphkv:paper", "sliding_window")  # shown beside what is published


@dataclass(frozen=True)
class Cell:
    """One method at one budget: its run, or why there is none."""

    label: str
    budget: int
    result: RunResult | None
    refused: str = ""


def labels(installed: bool) -> list[str]:
    """Returns the methods to run: every variant we have, then the installed package's where it has the method."""
    ours = [
        name if variant == "adapted" else f"{name}:{variant}"
        for name, spec in METHODS.items()
        if spec.default_budget is not None
        for variant in spec.variants
    ]
    return ours + ([f"{BRIDGED}{name}" for name in (*INSTALLED, *ALSO_INSTALLED)] if installed else [])


def cells(
    methods: Sequence[str], budgets: Sequence[int], *, samples: int, tokens: int, model: str, results: Path
) -> Iterator[Cell]:
    """Runs fidelity for every method and budget; a method that cannot run says why and the others go on."""
    for budget in budgets:
        for label in methods:
            if label.startswith(BRIDGED) and budget != budgets[0]:
                continue  # the adapted rule once more, one sequence at a time: one budget shows it
            options = RunOptions(
                method=label,
                task="fidelity",
                model=model,
                budget=budget,
                limit=samples,
                max_tokens=tokens,
                results=results,
                command=("velox-eval", "run", "--task", "fidelity", "--method", label, "--budget", str(budget)),
            )
            try:
                yield Cell(label, budget, run(options))
            except VeloxEvalError as error:
                yield Cell(label, budget, None, str(error))


def page(done: Sequence[Cell], command: str) -> str:
    """Returns the Markdown page: one table a budget, methods by family, adapted beside paper beside installed."""
    headers = [cell.result.header for cell in done if cell.result is not None]
    lines = ["# What keys standing in for queries cost", "", *_construction(headers, command), ""]
    for budget in sorted({cell.budget for cell in done}):
        lines += [f"## Budget {budget}", "", *_table([cell for cell in done if cell.budget == budget]), ""]
    lines += [*_early(done), ""]
    return "\n".join(lines)


def _construction(headers: Sequence[RunHeader], command: str) -> list[str]:
    first = headers[0]
    summary = first.summary
    assert summary is not None
    return [
        f"Model {first.model.name} ({first.model.route}, {first.model.device}), task fidelity version "
        f"{first.identity.task_version}, {summary.n} samples of at most {first.config.task.max_tokens} tokens, half of "
        "them the full cache's own greedy answer, half a fixed human text; prefill in chunks of "
        f"{first.config.prefill_step}. KL(full || method) in nats a token, mean over tokens, with its 95% interval "
        "over samples (a normal approximation, too narrow for so few); lower is better. Agreement: share of tokens at "
        "which both would choose the same. Early: kept rows from the first tenth of the sequence, over kept rows.",
        "",
        "Where nothing fired nothing was evicted, and the row says nothing about the method. Methods that keep every "
        "decoded row hold more than the budget at the end; kept says how much of the tokens seen.",
        "",
        f"Command: `{command}`",
        "",
        f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(first.identity.versions.items()))}.",
    ]


def _table(done: Sequence[Cell]) -> list[str]:
    rows = []
    for cell in sorted(done, key=lambda cell: (_method(cell.label), cell.label)):
        if cell.result is None or cell.result.header.summary is None:
            rows.append([cell.label, f"could not run: {markdown_cell(cell.refused)}", *[""] * 5])
            continue
        summary = cell.result.header.summary
        fired = summary.n if summary.n_not_fired is None else summary.n - summary.n_not_fired
        scores = summary.scores
        rows.append(
            [
                cell.label,
                _interval(scores.get("mean_kl")),
                _interval(scores.get("top1_agreement"), 1.0),
                number(summary.derived.get("perplexity_ratio")),
                number(summary.kept_fraction),
                number(summary.early_share),
                f"{fired} of {summary.n}",
            ]
        )
    return markdown_table(("method", "KL", "agreement", "perplexity ratio", "kept", "early", "fired"), rows)


def _early(done: Sequence[Cell]) -> list[str]:
    found = {
        (cell.label, cell.budget): cell.result.header.summary.early_share
        for cell in done
        if cell.result is not None and cell.result.header.summary is not None
    }
    budgets = sorted({budget for _, budget in found})
    methods = [name for name in EARLY if any(name == label for label, _ in found)]
    rows = [[name, *(number(found.get((name, budget))) for budget in budgets)] for name in methods]
    return [
        "## Early tokens",
        "",
        "The MorphKV authors state, after NACL, that at the last token 96% of H2O's rows come from the first 200 of "
        "about 1,400 tokens (the first 14%). Here, from the first tenth:",
        "",
        *markdown_table(["method", *(f"budget {budget}" for budget in budgets)], rows),
    ]


def _method(label: str) -> str:
    return label.removeprefix(BRIDGED).partition(":")[0]


def _interval(score: ScoreSummary | None, most: float = inf) -> str:
    if score is None or score.value is None:
        return MISSING
    if score.low is None or score.high is None:
        return number(score.value)
    return f"{number(score.value)} ({number(max(score.low, 0.0))} to {number(min(score.high, most))})"


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="Markdown page to write.")],
    method: Annotated[list[str] | None, typer.Option(help="Only these methods; repeatable.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Budgets; repeatable.")] = None,
    samples: Annotated[int, typer.Option(help="Samples a run.")] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens compared a sample, at most.")] = 64,
    model: Annotated[str, typer.Option(help="Known name, mlx-lm directory or hub id.")] = "smollm2-135m",
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    installed: Annotated[bool, typer.Option(help="Also the installed package's own caches.")] = True,
) -> None:
    """Measure the fidelity of every method and write the page; what is finished is not run again."""
    check_file(output)
    done = []
    for cell in cells(
        method or labels(installed), budget or [128, 256], samples=samples, tokens=tokens, model=model, results=results
    ):
        said = cell.refused or "done"
        print(f"{cell.label} at {cell.budget}: {said}", file=sys.stderr, flush=True)
        done.append(cell)
        if any(each.result is not None for each in done):
            write_text(
                output, page(done, shlex.join(["python", "-m", "velox_eval.pipelines.proxy_cost", *sys.argv[1:]]))
            )


if __name__ == "__main__":
    typer.run(main)
