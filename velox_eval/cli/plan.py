"""`velox-eval plan`: what caches will take and how many sequences fit, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from velox_eval.engine.skeleton import Device
    from velox_eval.pipelines.capacity import Capacity

WIDTH = 100
METHODS = ("streaming_llm", "snapkv:paper", "h2o:paper", "kvzip:paper", "morphkv", "morphkv:paper")


def plan(
    model: Annotated[str, typer.Option(help="Known name, directory, config.json, or hub id at hand.")] = "smollm2-135m",
    method: Annotated[
        list[str] | None, typer.Option(help="Methods beside full; repeatable. (default: six)", show_default=False)
    ] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Rows kept; repeatable. (default: the method's)")] = None,
    keep: Annotated[list[float] | None, typer.Option(help="Shares kept instead; repeatable.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="Prompt tokens: 4k, 500; repeatable.")] = None,
    answer: Annotated[list[str] | None, typer.Option(help="Answer tokens; repeatable.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences together.")] = 1,
    memory: Annotated[str | None, typer.Option(help="8GB, 512MiB. (default: this machine's)")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or gpu. (default: this machine's)")] = None,
    prefill_step: Annotated[int, typer.Option(help="Prompt tokens a chunk.")] = 256,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw it: FILE.svg or FILE.png (extra report).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Say what a model's caches will take under eviction, and how many sequences fit into a memory.

    From the model's configuration alone: no weights are read, nothing is downloaded.
    """
    from velox_eval.cli.console import err, plain, print_json
    from velox_eval.engine.skeleton import build_skeleton
    from velox_eval.errors import ConfigError
    from velox_eval.pipelines.capacity import Wanted, plan_capacity
    from velox_eval.records.config import parse_bytes, parse_tokens
    from velox_eval.runs.figures import check_figure_path, require_matplotlib

    if budget and keep:
        raise ConfigError(f"budget={budget[0]} and keep={keep[0]:g} are both given; give one of them")
    sizes: list[tuple[int | None, float | None]] = [(rows, None) for rows in budget or []]
    sizes += [(None, share) for share in keep or []]
    wanted = [Wanted(name, *size) for size in sizes or [(None, None)] for name in method or METHODS]
    if output is not None:
        check_figure_path(output)
        require_matplotlib()
    skeleton = build_skeleton(model, device_named(device))
    asked = {
        "batch": batch,
        "memory": None if memory is None else parse_bytes(memory, "memory"),
        "prefill_step": prefill_step,
    }
    prompts = [parse_tokens(text, "prompt") for text in prompt or ["4k"]]
    answers = [parse_tokens(text, "answer") for text in answer or ["1k"]]
    found = plan_capacity(skeleton, wanted, prompts=prompts, answers=answers, **asked)  # type: ignore[arg-type]
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _show(found)
    if output is not None:
        from velox_eval.pipelines.capacity_plot import draw_capacity, lengths_to_draw

        lengths = lengths_to_draw(max(prompts), max(answers))
        drawn = plan_capacity(skeleton, wanted, prompts=[max(prompts)], answers=lengths, **asked)  # type: ignore[arg-type]
        draw_capacity(drawn, output)
        err().print(plain(f"drawn: {output}"), soft_wrap=True)


def device_named(text: str | None) -> Device | None:
    """Returns the device. Raises ConfigError for a name that is none."""
    from velox_eval.errors import ConfigError

    if text is None or text == "cpu" or text == "gpu":
        return text  # type: ignore[return-value]
    raise ConfigError(f"device={text!r} is not one of cpu, gpu")


def _show(found: Capacity) -> None:
    from rich import box
    from rich.table import Table

    from velox_eval.cli.console import out, plain
    from velox_eval.pipelines.capacity_plot import label
    from velox_eval.records.sizes import human_bytes

    console = out()
    console.width = max(WIDTH, console.width)
    console.print(
        plain(
            f"{found.model} on a {found.device}: {found.layers} layers, {found.row_bytes:,} bytes a token "
            f"({found.dtype})"
        ),
        soft_wrap=True,
    )
    left = human_bytes(found.cache_room) if found.cache_room > 0 else "nothing"
    console.print(
        plain(
            f"memory {human_bytes(found.memory_bytes)}, weights {human_bytes(found.weights_bytes)} "
            f"({found.weights_source}), left for caches {left}"
        ),
        soft_wrap=True,
    )
    lengths = list(dict.fromkeys((row.prompt, row.answer) for row in found.rows))
    for prompt, answer in lengths:
        console.print(plain(f"\n{prompt:,} + {answer:,} tokens"), style="bold")
        rows = [row for row in found.rows if (row.prompt, row.answer) == (prompt, answer)]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for title in ("method", "buffers", "beside", "reading", f"batch of {rows[0].batch}", "fit", "over full"):
            table.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
        for row in rows:
            sizes = (row.allocated_bytes, row.beside_bytes, row.prefill_bytes, row.batch_bytes)
            times = f"{row.most / rows[0].most:.1f}x" if rows[0].most else "-"
            table.add_row(plain(label(row)), *(human_bytes(size) for size in sizes), f"{row.most:,}", times)
        console.print(table)
    console.print(
        "buffers: key and value buffers of one sequence at their largest; beside: what the method keeps while "
        "decoding; reading: all of it while the prompt comes in; fit: sequences that decode together.",
        style="dim",
    )
    for each in found.refused:
        console.print(plain(f"- left out: {each.method}: {each.reason}"), soft_wrap=True)
    for note in found.notes:
        console.print(plain(f"- {note}"), soft_wrap=True)
