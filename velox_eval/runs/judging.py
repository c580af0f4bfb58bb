"""Sets a judge up: where its replies are kept, how an endpoint is asked, and what brings a model of `mlx:` in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from velox_eval.engine.model_store import cache_directory
from velox_eval.errors import ConfigError
from velox_eval.judges import Judge, Limits, LocalModel, ReplyCache, get_judge


@dataclass(frozen=True)
class JudgeOptions:
    """How a judge is asked. Only `repeats` changes what it decides (None: once, or as often as the stored run did)."""

    repeats: int | None = None
    concurrency: int = Limits.concurrency
    timeout: float = Limits.timeout
    cache: Path | None = None  # folder of the replies; None: in the user's cache directory


DEFAULT_JUDGING = JudgeOptions()


def open_judge(name: str, options: JudgeOptions) -> Judge:
    """Returns the judge of that name. Nothing is loaded or reached yet. Raises ConfigError for what cannot work."""
    if options.concurrency < 1:
        raise ConfigError(f"judge_concurrency={options.concurrency} must be at least 1")
    if not 0 < options.timeout < float("inf"):
        raise ConfigError(f"judge_timeout={options.timeout:g} must be a number of seconds above 0")
    return get_judge(
        name,
        repeats=1 if options.repeats is None else options.repeats,
        replies=ReplyCache(options.cache or cache_directory() / "judge"),
        limits=Limits(concurrency=options.concurrency, timeout=options.timeout),
        load_model=_load_model,
    )


def _load_model(name: str) -> LocalModel:
    from velox_eval.engine.judge_model import load_judge_model

    return load_judge_model(name)
