"""What choosing rows costs: decode steps and prompts under a method, beside plain caches, in turns on one machine.

decode   the model's whole step, evaluated as the engine evaluates it, B sequences together in steady state: the cache
         was filled with `budget` rows of a real prompt and has evicted since. Work that a method does only every n-th
         step shows in the median where `steps` is a multiple of n. Beside it, in the same turns:
pinned   mlx-lm's KVCache that always attends to budget + 1 rows: its offset goes back after each step, so that position
         and rows stay the same. Its rows are those of the same prompt.
full     the same KVCache with `context` rows (those of the prompt, over and over).
cache    the method's caches alone: what one step brought to them (keys, values, queries) is given to them again, and
         their arrays evaluated. What is left of the step is the model with its attention.
prefill  seconds the engine itself reports for one prompt, one sequence, in chunks; everything the method does once the
         prompt is in is part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.counted import CountedCache
from velox_eval.engine.bench_lanes import CachesAlone, Lane, method_lane, plain_caches, plain_lane
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import Generate, Generation
from velox_eval.engine.timing import Ratio, Spread, interleaved, ratio, spread
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods import MethodConfig, Value, resolve
from velox_eval.mlx_lm import KVCache, wired_limit

WARM_UP = 4  # steps of every arm before the first repeat: steady state, kernels, buffers
MILLISECONDS = 1000.0


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of one sequence's caches in steady state, all layers together, from the caches' own counters."""

    kept: int
    aux: int
    allocated: int
    full: int | None  # what a full cache of `context` rows keeps


@dataclass(frozen=True)
class DecodeTimes:
    """Milliseconds a step, and what they compare to. Ratios are of medians of the same turns."""

    method: str
    params: Mapping[str, Value]
    budget: int
    batch: int
    context: int | None  # rows of the full cache; None: it was not timed
    step_ms: Spread
    cache_ms: Spread | None  # None for caches that are not ours
    pinned_ms: Spread
    full_ms: Spread | None
    veloxquant_ms: Spread | None  # one sequence
    over_pinned: Ratio
    full_over: Ratio | None
    veloxquant_over: Ratio | None  # per token: its step over ours shared by the batch
    tokens_per_second: float
    bytes: CacheBytes


@dataclass(frozen=True)
class PrefillTimes:
    """Seconds a prompt, and what they compare to. Ratios are of medians of the same turns."""

    method: str
    params: Mapping[str, Value]
    budget: int
    prompt_tokens: int
    prefill_step: int
    seconds: Spread
    full_seconds: Spread
    veloxquant_seconds: Spread | None
    over_full: Ratio
    veloxquant_over: Ratio | None
    tokens_per_second: float


class Bench:
    """One model and the text it reads; measures one thing after another.

    `texts` are material for prompts, one after another and over again; `steps` decode steps are timed together.
    """

    def __init__(self, loaded: LoadedModel, texts: Iterable[str], *, prefill_step: int, steps: int) -> None:
        self.loaded = loaded
        self.prefill_step = prefill_step
        self.steps = steps
        encode = loaded.tokenizer.encode
        self._material = [token for text in texts for token in encode(text, add_special_tokens=False)]
        self._plain: dict[int, list[Any]] = {}  # rows -> plain caches of one sequence that holds as many

    def passage(self, count: int) -> list[int]:
        """Returns `count` tokens of the material. Raises ConfigError beyond the model's context."""
        limit = self.loaded.context_length
        if limit is not None and count >= limit:
            raise ConfigError(f"context={count} must be below the model's context of {limit}")
        return (self._material * (count // len(self._material) + 1))[:count]

    def text(self, count: int) -> str:
        """Returns the passage of `count` tokens as text; read again, it may have a token more or less."""
        return str(self.loaded.tokenizer.decode(self.passage(count)))

    def decode(
        self,
        method: MethodConfig,
        *,
        batch: int,
        repeats: int,
        context: int | None = None,
        veloxquant: MethodConfig | None = None,
    ) -> DecodeTimes:
        """Returns a method's decode step beside its rivals'. Raises ConfigError or MethodError where it cannot run."""
        budget = _budget(method)
        if context is not None and context < budget:
            raise ConfigError(f"context={context} must be at least budget={budget}")
        with attention_tap(self.loaded.model), wired_limit(self.loaded.model):
            lanes = {"step": self._lane(method, batch), "pinned": self._plain_lane(budget, budget, batch)}
            if context is not None:
                lanes["full"] = self._plain_lane(budget, context, batch)
            if veloxquant is not None:
                lanes["veloxquant"] = self._lane(veloxquant, 1)
            for lane in lanes.values():
                lane.timed(WARM_UP)
            arms = {name: partial(lane.timed, self.steps) for name, lane in lanes.items()}
            own = lanes["step"]
            if all(isinstance(cache, EvictionCache) for cache in own.caches):
                alone = CachesAlone(own.caches, own.recorded())
                alone.timed(WARM_UP)
                arms["cache"] = partial(alone.timed, self.steps)
            found = interleaved(arms, repeats)
        seconds, per_token = found["step"], [value / batch for value in found["step"]]
        full, theirs = found.get("full"), found.get("veloxquant")
        return DecodeTimes(
            method=method.label,
            params=method.params,
            budget=budget,
            batch=batch,
            context=context,
            step_ms=_ms(seconds),
            cache_ms=_ms(found["cache"]) if "cache" in found else None,
            pinned_ms=_ms(found["pinned"]),
            full_ms=_ms(full) if full else None,
            veloxquant_ms=_ms(theirs) if theirs else None,
            over_pinned=ratio(seconds, found["pinned"]),
            full_over=ratio(full, seconds) if full else None,
            veloxquant_over=ratio(theirs, per_token) if theirs else None,
            tokens_per_second=batch / spread(seconds).median,
            bytes=_bytes(own.caches, batch, lanes["pinned"].caches, context),
        )

    def full_over(
        self, methods: Sequence[MethodConfig], *, batch: int, context: int, repeats: int
    ) -> list[tuple[float, ...]]:
        """Returns for each method how often its step fits into the full cache's of `context` rows, by repeat.

        All are timed in the same turns. Raises ConfigError or MethodError for a method that cannot run so.
        """
        with attention_tap(self.loaded.model), wired_limit(self.loaded.model):
            lanes = {str(index): self._lane(method, batch) for index, method in enumerate(methods)}
            lanes["full"] = self._plain_lane(min(_budget(method) for method in methods), context, batch)
            for lane in lanes.values():
                lane.timed(WARM_UP)
            found = interleaved({name: partial(lane.timed, self.steps) for name, lane in lanes.items()}, repeats)
        return [
            tuple(full / own for full, own in zip(found["full"], found[str(index)], strict=True))
            for index in range(len(methods))
        ]

    def prefill(
        self,
        methods: Sequence[MethodConfig],
        *,
        context: int,
        repeats: int,
        veloxquant: Mapping[int, MethodConfig] | None = None,
        seconds: float = float("inf"),
    ) -> list[PrefillTimes]:
        """Returns each method's prefill of one prompt of about `context` tokens, all in the same turns.

        `veloxquant`: the installed package's configuration, by the index of ours; such an arm is left out of later
        turns once it took `seconds`. Raises MethodError for a method that fails on the prompt.
        """
        for method in methods:
            _budget(method)
        prompt = self.text(context)
        own = [_Prompt(self._engine(method), prompt) for method in methods]
        theirs = {index: _Prompt(self._engine(method), prompt) for index, method in (veloxquant or {}).items()}
        arms = {"full": _Prompt(self._engine(resolve("full")), prompt).timed}
        arms |= {f"own {index}": arm.timed for index, arm in enumerate(own)}
        arms |= {f"veloxquant {index}": arm.timed for index, arm in theirs.items()}
        limits = {f"veloxquant {index}": seconds for index in theirs}
        found = interleaved(arms, repeats, limits=limits)
        return [
            self._prefill_times(
                method, own[index].tokens, found[f"own {index}"], found["full"], found.get(f"veloxquant {index}")
            )
            for index, method in enumerate(methods)
        ]

    def _prefill_times(
        self, method: MethodConfig, tokens: int, own: list[float], full: list[float], veloxquant: list[float] | None
    ) -> PrefillTimes:
        return PrefillTimes(
            method=method.label,
            params=method.params,
            budget=_budget(method),
            prompt_tokens=tokens,
            prefill_step=self.prefill_step,
            seconds=spread(own),
            full_seconds=spread(full),
            veloxquant_seconds=spread(veloxquant) if veloxquant else None,
            over_full=ratio(own, full),
            veloxquant_over=ratio(veloxquant, own) if veloxquant else None,
            tokens_per_second=tokens / spread(own).median,
        )

    def _engine(self, method: MethodConfig, batch: int = 1) -> Engine:
        return Engine(self.loaded, method, prefill_step=self.prefill_step, batch_size=batch)

    def _lane(self, method: MethodConfig, batch: int) -> Lane:
        return method_lane(self._engine(method, batch), self.text, _budget(method), batch)

    def _plain_lane(self, budget: int, rows: int, batch: int) -> Lane:
        model = self.loaded.model
        if budget not in self._plain:
            self._plain[budget] = plain_caches(model, self.passage(budget), self.prefill_step)
        return plain_lane(model, self._plain[budget], rows, batch)


class _Prompt:
    """One prompt through the engine; the answer has one token."""

    def __init__(self, engine: Engine, prompt: str) -> None:
        self.engine = engine
        self.request = Generate("bench", prompt, 1)
        self.tokens = 0

    def timed(self) -> float:
        """Returns the seconds of prefill that the engine reports."""
        [answer] = self.engine.generate([self.request])
        if not isinstance(answer, Generation):
            raise MethodError(f"{self.engine.method.label}: {answer.error}")
        self.tokens = answer.prompt_tokens
        return answer.prefill_seconds


def _budget(method: MethodConfig) -> int:
    if method.budget is None:
        raise ConfigError(f"{method.label} has no budget to fill: it is the full cache, or --keep was given")
    return method.budget


def _ms(seconds: Sequence[float]) -> Spread:
    return spread([value * MILLISECONDS for value in seconds])


def _bytes(caches: Sequence[Any], batch: int, pinned: Sequence[Any], context: int | None) -> CacheBytes:
    counted = [cache for cache in caches if isinstance(cache, CountedCache)]
    row = sum(cache.nbytes // (batch * cache.keys.shape[2]) for cache in pinned if type(cache) is KVCache)
    return CacheBytes(
        kept=sum(cache.kept_bytes for cache in counted) // batch,
        aux=sum(cache.aux_bytes for cache in counted) // batch,
        allocated=sum(cache.allocated_bytes for cache in counted) // batch,
        full=None if context is None else row * context,
    )
