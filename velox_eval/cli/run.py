"""`velox-eval run`: the main job."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from velox_eval.cli import judging

if TYPE_CHECKING:
    from velox_eval.runs.recorder import RunResult

FAILED_SAMPLES = 1
MODEL = "Model"
DATA = "Data"
GENERATION = "Generation"
OUTPUT = "Output"


def run(
    method: Annotated[str, typer.Option(help="Eviction method, name[:variant]; see `methods`.")] = "morphkv",
    task: Annotated[str, typer.Option(help="Benchmark; see `tasks`.")] = "longgenbench",
    model: Annotated[str, typer.Option(help="Known name, mlx-lm directory or hub id.")] = "smollm2-135m",
    budget: Annotated[
        int | None,
        typer.Option(help="Rows kept per layer and KV head. (default: the task's, else the method's)"),
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="Instead of --budget: share of prompt + max new tokens kept, up to 1.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method; repeatable.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Run at most this many samples. (default: the task's)", rich_help_panel=DATA)
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="bundled or official. (default: the task's first)", rich_help_panel=DATA)
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Local file or folder in the official format.", rich_help_panel=DATA)
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Variant of the task's data: short, long, ...", rich_help_panel=DATA)
    ] = None,
    entries: Annotated[
        int | None, typer.Option(help="Entries asked for in one answer (bundled).", rich_help_panel=DATA)
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Seed of bundled material.", rich_help_panel=DATA)] = 0,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Longer prompts lose their middle. (default: the task's)", rich_help_panel=GENERATION),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens an answer may have. (default: the task's)", rich_help_panel=GENERATION),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=GENERATION)] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.", rich_help_panel=GENERATION)] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.", rich_help_panel=GENERATION)] = 0,
    prefill_step: Annotated[int, typer.Option(help="Prompt tokens a chunk.", rich_help_panel=GENERATION)] = 256,
    evict_block: Annotated[
        int | None,
        typer.Option(help="Rows between evictions in prefill. (default: the chunk)", rich_help_panel=GENERATION),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            help="Answers written together at most; auto: as many as fit. (default: 8, or 1 where it must)",
            rich_help_panel=GENERATION,
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Most the caches may take: 8GB, 512MiB. (default with auto: half the memory)",
            rich_help_panel=GENERATION,
        ),
    ] = None,
    judge: Annotated[str, typer.Option(help=judging.JUDGE_HELP)] = "rules",
    judge_repeats: judging.Repeats = None,
    judge_concurrency: judging.Concurrency = 8,
    judge_timeout: judging.Timeout = 120.0,
    judge_cache: judging.Cache = None,
    results: Annotated[Path, typer.Option(help="Folder of the records.", rich_help_panel=OUTPUT)] = Path("results"),
    again: Annotated[
        bool, typer.Option("--again", help="Start anew although the run is finished or begun.", rich_help_panel=OUTPUT)
    ] = False,
    max_error_share: Annotated[
        float, typer.Option(help="Share of samples that may fail with exit code 0.", rich_help_panel=OUTPUT)
    ] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Run a benchmark on a model under an eviction method, and record every sample.

    The same command resumes a run that was interrupted, and shows a finished one. Exit code: 0 done,
    1 samples failed, 2 it cannot run as asked, 130 interrupted.
    """
    from velox_eval.cli.progress import TerminalObserver
    from velox_eval.records.config import parse_bytes
    from velox_eval.runs.plan import RunOptions
    from velox_eval.runs.runner import run as run_plan

    options = RunOptions(
        method=method,
        task=task,
        model=model,
        settings=parse_settings(settings or []),
        budget=budget,
        keep=keep,
        source=source,
        data=data,
        limit=limit,
        max_tokens=max_tokens,
        entries=entries,
        variant=variant,
        data_seed=data_seed,
        max_prompt_tokens=max_prompt_tokens,
        prefill_step=prefill_step,
        evict_block=evict_block,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        judge=judge,
        judging=judging.judge_options(judge_repeats, judge_concurrency, judge_timeout, judge_cache),
        batch_size=parse_batch_size(batch_size),
        memory_limit=None if memory_limit is None else parse_bytes(memory_limit),
        results=results,
        again=again,
        max_error_share=max_error_share,
        command=("velox-eval", *sys.argv[1:]),
    )
    finish(run_plan(options, TerminalObserver(quiet=quiet)), options.command, as_json=as_json)


def parse_batch_size(text: str | None) -> int | Literal["auto"] | None:
    """Returns the number, "auto" or None. Raises ConfigError for anything else."""
    from velox_eval.errors import ConfigError

    if text is None or text.isdecimal():
        return None if text is None else int(text)
    if text == "auto":
        return "auto"
    raise ConfigError(f"batch_size={text!r} is no number of sequences; write a number from 1, or auto")


def parse_settings(given: Sequence[str], option: str = "--set") -> dict[str, str]:
    """Returns `NAME=VALUE` texts of an option as a mapping.

    Raises ConfigError for another shape or a name given twice.
    """
    from velox_eval.errors import ConfigError

    settings: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            example = {"--set": "window=32", "--field": "response=text"}[option]
            raise ConfigError(f"{option} {text!r} is not NAME=VALUE, as in {option} {example}")
        if name in settings:
            raise ConfigError(f"{option} {name} is given twice: {settings[name]!r} and {value!r}")
        settings[name] = value.strip()
    return settings


def finish(result: RunResult, command: Sequence[str], *, as_json: bool) -> None:
    """Shows a run and exits with the code that says how it went."""
    from velox_eval.cli.console import err, interrupted, print_json
    from velox_eval.cli.result import document, show_result

    if as_json:
        print_json(document(result))
    else:
        show_result(result)
    status, notes = result.header.status, err()
    if result.state == "finished":
        notes.print("This run was finished before; nothing was run. --again repeats it.")
    if status == "cancelled":
        interrupted(f"To go on: {shlex.join(part for part in command if part != '--again')}")
    if status == "error":
        notes.print(f"velox-eval: {result.header.error}; the same command tries them again", soft_wrap=True)
        raise typer.Exit(FAILED_SAMPLES)
