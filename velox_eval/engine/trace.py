"""A trace: which positions each layer and head held, at the prompt's end and every so many tokens of an answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods import MethodConfig
from velox_eval.mlx import mx
from velox_eval.mlx_lm import wired_limit

Positions: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"  # [heads, rows], ascending in each head

EARLY = 10  # a row is early when its position is in the first tenth of the tokens seen


@dataclass(frozen=True)
class Trace:
    """What was held at each moment: `held[moment][layer]`; `seen[moment]` tokens had gone through by then."""

    prompt_tokens: int
    layers: tuple[int, ...]  # the model's layers with an eviction cache
    seen: tuple[int, ...]
    held: tuple[tuple[Positions, ...], ...]

    def early_share(self, moment: int, layer: int | None = None) -> float:
        """Returns the share of the rows held that are early; of one layer (by its place in `layers`), or of all."""
        chosen = self.held[moment] if layer is None else (self.held[moment][layer],)
        rows = sum(positions.size for positions in chosen)
        return sum(int((positions < self.seen[moment] / EARLY).sum()) for positions in chosen) / rows


def trace(
    loaded: LoadedModel,
    method: MethodConfig,
    request: Generate,
    tokens: Sequence[int],
    *,
    every: int = 8,
    prefill_step: int,
    evict_block: int | None = None,
) -> Trace:
    """Returns what the method holds while `tokens` are fed one by one after the request's prompt, as in a run.

    The last token is not fed: no run feeds it. Raises ConfigError for settings that cannot work, MethodError where
    the cache does not say which rows it keeps.
    """
    if every < 1:
        raise ConfigError(f"every={every} must be at least 1")
    engine = Engine(loaded, method, prefill_step=prefill_step, evict_block=evict_block)
    model: Any = loaded.model
    with attention_tap(model), wired_limit(model):
        ready = engine.prepare(request)
        engine.read(ready)
        session, fed = ready.session, list(tokens[:-1])
        moments = [(len(ready.prompt.tokens), _held(session.evicting, method))]
        for count, token in enumerate(fed, 1):
            model(mx.array([[token]]), cache=session.caches)
            mx.eval([cache.state for cache in session.caches])
            if count % every == 0 or count == len(fed):
                moments.append((len(ready.prompt.tokens) + count, _held(session.evicting, method)))
    seen, held = zip(*moments, strict=True)
    return Trace(len(ready.prompt.tokens), tuple(session.layers), seen, held)


def _held(caches: Sequence[Any], method: MethodConfig) -> tuple[Positions, ...]:
    if not all(cache.positions_known for cache in caches):
        raise MethodError(f"{method.label} does not say which positions it keeps, so they cannot be drawn")
    return tuple(_ascending(np.array(cache.kept_positions()[0])) for cache in caches)


def _ascending(positions: Positions) -> Positions:
    """The positions of the rows held, each head's in order; every head holds as many."""
    ordered = np.sort(np.where(positions < 0, sys.maxsize, positions.astype(np.int64)), axis=-1)
    return ordered[:, : int((positions >= 0).sum(axis=-1).min())].astype(np.int32)
