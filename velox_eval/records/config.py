"""What a run was asked to do, and the hash that says whether two runs would give the same answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from velox_eval.errors import ConfigError

DEFAULT_PREFILL_STEP = 256

ParamValue = bool | int | float | str


class Frozen(BaseModel):
    """Base of everything stored: immutable, no unknown fields, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TaskChoice(Frozen):
    """Which task, on which data. Null leaves a choice to the task's definition."""

    name: str = Field(description="Task name.")
    source: str | None = Field(default=None, description="Where the samples come from: bundled, official or data.")
    data: str | None = Field(default=None, description="Local file or directory, as given.")
    limit: int | None = Field(default=None, ge=1, description="At most this many samples.")
    max_tokens: int | None = Field(default=None, ge=1, description="Most tokens an answer may have.")
    entries: int | None = Field(
        default=None, ge=1, description="Entries asked for in one answer, where the task can choose."
    )
    variant: str | None = Field(default=None, description="Variant of the task: short, long, en, zh, ...")
    data_seed: int = Field(default=0, ge=0, description="Seed of generated material.")
    max_prompt_tokens: int | None = Field(
        default=None, ge=2, description="Most tokens of a raw prompt; longer ones lose their middle."
    )


class Performance(Frozen):
    """Settings that change speed and memory, not answers; they are not part of the hash."""

    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=None,
        description="Sequences decoded together at most; auto: what memory_limit allows; null: the engine's choice.",
    )
    memory_limit: int | None = Field(default=None, ge=1, description="Bytes the caches of one batch may hold.")


class RunConfig(Frozen):
    """What a run was asked to do, defaults filled in."""

    task: TaskChoice = Field(description="Task and data.")
    model: str = Field(description="Model name, directory or hub id, as given.")
    method: str = Field(description="Eviction method, name[:variant].")
    params: dict[str, ParamValue] = Field(default_factory=dict, description="Every parameter of the method.")
    budget: int | None = Field(
        default=None, ge=1, description="Rows per layer and KV head; null with keep or without bound."
    )
    keep: float | None = Field(
        default=None, gt=0, le=1, description="Share of prompt + max new tokens kept; null with budget."
    )
    prefill_step: int = Field(default=DEFAULT_PREFILL_STEP, ge=1, description="Prompt tokens a prefill chunk has.")
    evict_block: int | None = Field(
        default=None, ge=1, description="Rows between two evictions in prefill; null: the chunk."
    )
    temperature: float = Field(default=0.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling: probability mass kept.")
    seed: int = Field(default=0, ge=0, description="Seed of sampling and of methods that draw.")
    judge: str = Field(default="rules", description="Judge of open answers, as given.")
    judge_repeats: int = Field(default=1, ge=1, description="Times the judge is asked each question.")
    performance: Performance = Field(default=Performance(), description="Speed and memory settings.")


class Identity(Frozen):
    """The contents behind the names of a config: what was really read and run."""

    task_version: int = Field(description="Version of the task's definition and scoring.")
    data_sha256: str = Field(description="SHA-256 of the samples' content.")
    requests_sha256: str = Field(description="SHA-256 of all prompts, stop strings and token limits asked.")
    model_sha256: str = Field(description="SHA-256 of the model's content.")
    device: str = Field(description="Device the model ran on.")
    route: str = Field(description="How the weights were held (types, kernels): it changes the last digits.")
    judge: str = Field(description="The judge's id with its version and, above one, how often it is asked.")
    versions: dict[str, str] = Field(description="Versions of the packages that answers depend on.")
    code_sha256: str | None = Field(
        default=None, description="SHA-256 of this package's code that makes answers; null where it made none."
    )
    rescored_from: str | None = Field(
        default=None, description="Run whose answers were scored again; null for a fresh run."
    )
    responses_sha256: str | None = Field(
        default=None, description="SHA-256 of answers that were read from a file; null where the model wrote them."
    )


def build_config(**fields: Any) -> RunConfig:
    """Returns the config. Raises ConfigError naming the first bad value and what is allowed."""
    if fields.get("budget") is not None and fields.get("keep") is not None:
        raise ConfigError(f"budget={fields['budget']} and keep={fields['keep']} are both given; give one of them")
    try:
        return RunConfig(**fields)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    # A union adds which of its kinds was tried; that is no field's name.
    names = [part for part in map(str, first["loc"]) if part.isidentifier()]
    name = names[-1] if names else "value"
    bounds = first.get("ctx", {})
    allowed = {
        "greater_than_equal": f"must be at least {bounds.get('ge')}",
        "greater_than": f"must be above {bounds.get('gt')}",
        "less_than_equal": f"must be at most {bounds.get('le')}",
    }
    message = allowed.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    return f"{name}={first['input']!r}: {message}"


def canonical_json(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces: equal values give equal text. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def text_sha256(text: str) -> str:
    """Returns the hex SHA-256 of `text`; a lone surrogate from escaped JSON is hashed as it stands."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def config_hash(config: RunConfig, identity: Identity) -> str:
    """Returns the hex SHA-256 over everything that changes answers or scores.

    Names of files and models are left out (their contents count), and so are the performance settings and
    the task options that the prompts already show (limit, entries, max_tokens, seeds).
    """
    asked: Mapping[str, Any] = config.model_dump(exclude={"performance", "model", "judge", "judge_repeats", "task"})
    return text_sha256(
        canonical_json(
            {
                "config": asked,
                "task": config.task.name,
                "source": config.task.source,
                "identity": identity.model_dump(),
            }
        )
    )


def parse_bytes(text: str, name: str = "memory_limit") -> int:
    """Returns the bytes that `8GB`, `512MiB` or `1000000` stand for. Raises ConfigError naming `name` otherwise."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    number = text.strip().rstrip("BbKkMmGgIi ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        value = float(number) * units[unit]
    except (ValueError, KeyError):
        value = 0
    if not 1 <= value < 2**63:
        raise ConfigError(f"{name}={text!r} is no size; write 8GB, 512MiB or a number of bytes")
    return int(value)


def parse_tokens(text: str, name: str) -> int:
    """Returns the tokens that `4k` (4,096) or `4000` stand for. Raises ConfigError naming `name` otherwise."""
    number, kilo = text.strip().lower().removesuffix("k"), text.strip().lower().endswith("k")
    try:
        value = float(number) * (1024 if kilo else 1)
    except ValueError:
        value = 0
    if not 1 <= value < 2**31 or value != int(value):
        raise ConfigError(f"{name}={text!r} is no number of tokens; write 4k (4,096) or 4000")
    return int(value)
