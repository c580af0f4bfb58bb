"""What lm-eval hands over as model arguments and generation arguments, in the engine's terms."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import Sampling
from velox_eval.errors import ConfigError
from velox_eval.methods import MethodConfig
from velox_eval.records.config import canonical_json, parse_bytes
from velox_eval.runs.environment import package_versions

# Generation arguments that ask for what is done anyway, at these values.
_NOTHING_NEW: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "early_stopping": (False, None),
    "use_cache": (True,),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
}


@dataclass(frozen=True)
class GenerationSettings:
    """One request's generation arguments."""

    stop: tuple[str, ...]
    max_tokens: int
    sampling: Sampling


def check_whole(**given: Any) -> None:
    """Raises ConfigError naming the first argument that is neither a whole number nor None; lm-eval hands on texts."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"{name}={value!r} is no whole number")


def generation_settings(given: Mapping[str, Any], *, max_tokens: int, seed: int) -> GenerationSettings:
    """Returns lm-eval's generation arguments as it reads them (normalize_gen_kwargs); `max_tokens` where none is given.

    A task that samples without a temperature gets 1.0, as transformers would use. Raises ConfigError for an argument
    that would change answers and that the engine does not have.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    given = {name: value for name, value in given.items() if value is not None}
    try:
        settings = dict(normalize_gen_kwargs(given, max_tokens))
        until = settings.pop("until")
        limit, temperature = int(settings.pop("max_gen_toks")), float(settings.pop("temperature", 0.0))
        top_p = float(settings.pop("top_p", None) or 1.0)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"gen_kwargs {dict(given)}: {error}") from error
    sample = bool(settings.pop("do_sample", False))
    if sample and given.get("temperature") is None:
        temperature = 1.0
    unknown = [name for name, value in settings.items() if value not in _NOTHING_NEW.get(name, ())]
    if unknown:
        raise ConfigError(f"gen_kwargs {unknown[0]}={settings[unknown[0]]!r} is not supported by velox; leave it out")
    if limit < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ConfigError(f"gen_kwargs {dict(given)}: max_gen_toks, temperature or top_p is out of bounds")
    if any(not isinstance(text, str) for text in until):
        raise ConfigError(f"gen_kwargs until={until!r}: stop strings are texts")
    return GenerationSettings(tuple(until), limit, Sampling(temperature if sample else 0.0, top_p, seed))


def batch_setting(
    batch_size: int | str | None, max_batch_size: int | None, memory_limit: int | str | None
) -> tuple[int | Literal["auto"] | None, int | None]:
    """Returns (batch size, memory limit) for the engine: `auto` (also `auto:N`) fills the limit, up to the maximum.

    Raises ConfigError for what is no size.
    """
    limit = parse_bytes(str(memory_limit)) if memory_limit is not None else None
    if batch_size is None or isinstance(batch_size, int):
        return batch_size, limit
    if batch_size.isdecimal():
        return int(batch_size), limit
    if batch_size.partition(":")[0] != "auto":
        raise ConfigError(f"batch_size={batch_size!r} is no number of sequences; write a number from 1, or auto")
    if max_batch_size is None:
        return "auto", limit
    from velox_eval.engine.memory import half_the_memory

    return int(max_batch_size), limit or half_the_memory()


def with_max_length(loaded: LoadedModel, max_length: int | None) -> LoadedModel:
    """Returns the model with `max_length` for its context. Raises ConfigError under 2 tokens."""
    if max_length is None:
        return loaded
    if int(max_length) < 2:
        raise ConfigError(f"max_length={max_length} must be at least 2")
    return replace(loaded, context_length=int(max_length))


def fingerprint(loaded: LoadedModel, method: MethodConfig, how: Mapping[str, Any]) -> str:
    """Returns the hex SHA-256 over all that an answer to a request depends on, the request aside."""
    known = {
        "model": loaded.content_sha256,
        "device": loaded.device,
        "route": loaded.route,
        "context": loaded.context_length,
        "method": method.label,
        "params": dict(method.params),
        "budget": method.budget,
        "keep": method.keep,
        "versions": package_versions(method.spec.name),
        **how,
    }
    return hashlib.sha256(canonical_json(known).encode()).hexdigest()
