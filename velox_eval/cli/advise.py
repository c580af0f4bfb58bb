"""`velox-eval advise`: which method and budget, from measured runs, and what no run says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from velox_eval.records.sizes import human_bytes
from velox_eval.runs.text_tables import MISSING, percent, times

if TYPE_CHECKING:
    from rich.console import Console

    from velox_eval.pipelines.advice import Advice, Choice, EvidenceTable

WIDTH = 100


def advise(
    model: Annotated[str, typer.Option(help="Known name, directory, config.json, or hub id at hand.")] = "smollm2-135m",
    memory: Annotated[str | None, typer.Option(help="8GB, 512MiB. (default: this machine's)")] = None,
    prompt: Annotated[str, typer.Option(help="Prompt tokens: 4k, 500.")] = "4k",
    answer: Annotated[str, typer.Option(help="Answer tokens.")] = "1k",
    task: Annotated[str | None, typer.Option(help="Only evidence from this task.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of your runs.")] = Path("results"),
    bundled: Annotated[bool, typer.Option(help="Also the measured runs that come with velox-eval.")] = True,
    device: Annotated[str | None, typer.Option(help="cpu or gpu. (default: this machine's)")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also what is off the Pareto fronts.")] = False,
    suite: Annotated[
        Path | None, typer.Option(help="Write the sweep that would give the missing evidence to this TOML file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Say which methods and budgets fit, what they lose, how sure that is, and what was never measured.

    The Pareto front of loss against the full cache, bytes and decode speed, from runs in the results folder and those
    that come with velox-eval. What was measured at other lengths or on other models stands apart.
    """
    from velox_eval.cli.console import print_json
    from velox_eval.cli.plan import device_named
    from velox_eval.engine.skeleton import build_skeleton
    from velox_eval.pipelines.advice import advise as work_out
    from velox_eval.pipelines.evidence import gather
    from velox_eval.records.config import parse_bytes, parse_tokens
    from velox_eval.records.output import write_text

    if suite is not None:
        _check(suite)
    found = work_out(
        build_skeleton(model, device_named(device)),
        gather(results, bundled=bundled),
        prompt=parse_tokens(prompt, "prompt"),
        answer=parse_tokens(answer, "answer"),
        memory=None if memory is None else parse_bytes(memory, "memory"),
        task=task,
    )
    if suite is not None:
        write_text(suite, found.suite)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _show(found, suite, everything=everything)


def _check(suite: Path) -> None:
    from velox_eval.errors import ConfigError
    from velox_eval.records.output import check_file

    if suite.suffix != ".toml":
        raise ConfigError(f"cannot write {suite}: a suite's name ends with .toml")
    check_file(suite)


def _show(found: Advice, suite: Path | None, *, everything: bool) -> None:
    from velox_eval.cli.console import out, plain

    console = out()
    console.width = max(WIDTH, console.width)
    left = human_bytes(found.cache_room) if found.cache_room > 0 else "nothing"
    fits = f"{found.full_most} sequences fit" if found.full_most else "it does not fit"
    console.print(
        plain(
            f"{found.model}, {found.prompt:,} + {found.answer:,} tokens, {human_bytes(found.memory_bytes)}: "
            f"{left} for caches; full takes {human_bytes(found.full_bytes)}, {fits}"
        ),
        soft_wrap=True,
    )
    for line in found.missing:
        console.print(plain(line), style="bold", soft_wrap=True)
    for table in found.tables:
        _print(table, found, console, everything=everything)
    if found.missing:
        where = str(suite) if suite else "advise.toml"
        before = "" if suite else "velox-eval advise ... --suite advise.toml, then "
        console.print(plain(f"to measure it: {before}velox-eval sweep {where}"), soft_wrap=True)
    for note in found.notes:
        console.print(plain(f"- {note}"), soft_wrap=True)


def _print(table: EvidenceTable, found: Advice, console: Console, *, everything: bool) -> None:
    from rich import box
    from rich.table import Table

    from velox_eval.cli.console import plain

    better = "higher" if table.higher_is_better else "lower"
    full = f", full {table.full_value:.3g}" if table.full_value is not None else ""
    console.print()
    console.print(plain(f"{table.where}: {table.title}"), style="bold", soft_wrap=True)
    console.print(
        plain(
            f"measured at {table.prompt_tokens:,} + {table.answer_tokens:,} tokens; {table.score}, {better} is better"
            f"{full}; loss is against full on the same samples"
        ),
        soft_wrap=True,
    )
    shown = [choice for choice in table.choices if everything or choice.front]
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for title in ("method", "loss", "95%", "n", "verdict", "bytes here", "fit", "kept (here)", "speed"):
        drawn.add_column(
            title, justify="left" if title in ("method", "verdict") else "right", no_wrap=title != "verdict"
        )
    drawn.add_row("full", "0", "", "", "", human_bytes(found.full_bytes), f"{found.full_most:,}", "100%", "1.00x")
    for choice in shown:
        drawn.add_row(*(plain(cell) for cell in _cells(choice)))
    console.print(drawn)
    off = len(table.choices) - len(shown)
    if off:
        console.print(f"  {off} more lose as much, take as many bytes and are as slow or worse (--all)", style="dim")
    if table.too_big:
        console.print(plain(f"  does not fit: {', '.join(table.too_big)}"), soft_wrap=True)
    for line in table.unknown:
        console.print(plain(f"  left out: {line}"), soft_wrap=True)


def _cells(choice: Choice) -> list[str]:
    from velox_eval.compare import VERDICTS

    row = choice.evidence
    low, high = row.loss_low, row.loss_high
    return [
        row.label,
        f"{row.loss:+.3f}",
        MISSING if low is None or high is None else f"[{round(low, 3) + 0.0:.3f}, {high:.3f}]",
        str(row.pairs),
        VERDICTS[row.verdict],
        human_bytes(choice.bytes),
        f"{choice.most:,}",
        f"{percent(row.peak_of_full)} ({percent(choice.share)})",
        times(row.decode_ratio),
    ]
