"""`velox-eval calibrate`: measures the direction of a model's queries, for methods that project on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    model: Annotated[str, typer.Argument(help="A known model, an mlx-lm directory or a hub id.")],
    text: Annotated[Path | None, typer.Option("--text", help="A text file to measure on; default: our own.")] = None,
) -> None:
    """Measure the directions that qfilters:paper ranks by, once a model."""
    from velox_eval.engine.calibration import BUNDLED
    from velox_eval.engine.calibration import calibrate as measure
    from velox_eval.engine.model_store import cache_directory
    from velox_eval.engine.models import load_model
    from velox_eval.records.output import check_folder
    from velox_eval.tasks.calibration_text import calibration_text

    words = calibration_text() if text is None else _read(text)
    check_folder(cache_directory())
    done = measure(load_model(model), words)
    setting = "" if done.name == BUNDLED else f" --set calibration={done.name}"
    typer.echo(f"measured on {done.tokens} tokens: {done.path}\nuse it with: --method qfilters:paper{setting}")


def _read(path: Path) -> str:
    from velox_eval.errors import ConfigError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {path} cannot be read as text ({error}): give a UTF-8 text file") from error
