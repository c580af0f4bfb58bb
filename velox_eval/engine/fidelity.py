"""Fidelity: how far a method's predictions are from the full cache's, on the same tokens.

Both read the prompt through the engine's own path (chunks, the method's cut), then are fed the same continuation one
token at a time, the full cache in lockstep. Each step's two distributions are compared in float32 and dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.counted import CountedCache
from velox_eval.caches.session import cache_use
from velox_eval.caches.together import stacked
from velox_eval.engine.engine import PROGRESS_SECONDS, Engine
from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import Comparison, EngineReport, Failure, Generate, Progress, TeacherForce
from velox_eval.errors import ConfigError, VeloxEvalError
from velox_eval.methods import MethodConfig, resolve
from velox_eval.mlx import mx
from velox_eval.mlx_lm import wired_limit
from velox_eval.records.config import DEFAULT_PREFILL_STEP


@dataclass
class _Pair:
    """One sample under both caches."""

    request: TeacherForce
    continuation: Sequence[int] | None  # None: what the full cache would write
    limit: int  # tokens to compare
    beyond_context: bool
    prompt_tokens: int
    prefill_seconds: float
    compress_seconds: float
    logits: tuple[mx.array, mx.array]  # after the prompt: full, method
    caches: tuple[list[Any], list[Any]]
    tokens: list[int] = field(default_factory=list)
    steps: list[tuple[float, bool, float, float]] = field(default_factory=list)
    decode_seconds: float = 0.0

    def next_token(self, full_choice: int) -> int:
        """The token that both are fed next."""
        return full_choice if self.continuation is None else self.continuation[len(self.tokens)]


class Fidelity:
    """Compares one method with the full cache. Raises ConfigError / MethodError as Engine does.

    `batch_size` sequences are fed together, each under both caches; None as in Engine. Memory cannot be planned here:
    the full cache grows with the text.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        method: MethodConfig,
        *,
        prefill_step: int = DEFAULT_PREFILL_STEP,
        evict_block: int | None = None,
        batch_size: int | Literal["auto"] | None = 1,
        memory_limit: int | None = None,
    ) -> None:
        if batch_size == "auto" or memory_limit is not None:
            raise ConfigError("a full cache runs beside the method's: give a batch size as a number, no memory limit")
        self.loaded = loaded
        self.engine = Engine(loaded, method, prefill_step=prefill_step, evict_block=evict_block, batch_size=batch_size)
        self.full = Engine(loaded, resolve("full"), prefill_step=prefill_step)

    def report(self) -> EngineReport:
        """Returns what the last `compare` did as a whole, so far; tokens and seconds are the method's."""
        return self.engine.report()

    def compare(
        self, requests: Iterable[TeacherForce], *, on_step: Callable[[Progress], None] | None = None
    ) -> Iterator[Comparison | Failure]:
        """Yields a Comparison or a Failure per request, each as soon as it is there (not in request order)."""
        self.engine.begin()
        waiting, reported = iter(requests), 0.0
        size = self.engine.batch_size
        assert isinstance(size, int)
        with attention_tap(self.loaded.model), wired_limit(self.loaded.model):
            self.engine.warm_up()
            mx.reset_peak_memory()
            while wave := list(islice(waiting, size)):
                pairs = []
                for request in wave:
                    try:
                        pairs.append(self._read(request))
                    except (VeloxEvalError, ValueError, RuntimeError) as error:  # mlx raises the last two
                        yield Failure.of(request.sample_id, error)
                for done in _Lockstep(self, pairs).run():
                    if isinstance(done, Comparison):
                        yield done
                    elif on_step is not None and time.perf_counter() - reported > PROGRESS_SECONDS:
                        on_step(done)
                        reported = time.perf_counter()

    def _read(self, request: TeacherForce) -> _Pair:
        fixed = None
        reading = request.reading
        if request.continuation is not None:
            fixed = self.engine.encode(request.continuation)[: request.max_tokens]
            if not fixed:
                raise ConfigError("the continuation is empty")
            reading = Generate(**{**vars(reading), "max_tokens": len(fixed)})
        ready, beside = self.engine.prepare(reading), self.full.prepare(reading)
        began = time.perf_counter()
        logits, compressed = self.engine.read(ready)
        seconds = time.perf_counter() - began
        full_logits, _ = self.full.read(beside)
        self.engine.count_prefill(len(ready.prompt.tokens), seconds)
        return _Pair(
            request=request,
            continuation=fixed,
            limit=ready.max_tokens,
            beyond_context=ready.beyond_context,
            prompt_tokens=len(ready.prompt.tokens),
            prefill_seconds=seconds,
            compress_seconds=compressed,
            logits=(full_logits, logits),
            caches=(beside.session.caches, ready.session.caches),
        )


class _Lockstep:
    """Pairs that are fed together."""

    def __init__(self, fidelity: Fidelity, pairs: list[_Pair]) -> None:
        self.engine = fidelity.engine
        self.model = fidelity.loaded.model
        self.tokenizer = fidelity.loaded.tokenizer
        self.pairs = pairs
        self.full_caches, self.caches = (_batched([pair.caches[which] for pair in pairs]) for which in (0, 1))

    def run(self) -> Iterator[Comparison | Progress]:
        """Yields each comparison as it ends, and where things stand between steps."""
        if not self.pairs:
            return
        full, method = (mx.concatenate([pair.logits[i] for pair in self.pairs], axis=0) for i in (0, 1))
        while True:
            self._compare(full, method)
            yield from self._finish()
            if not self.pairs:
                return
            full, method = self._step()
            yield self._progress()

    def _compare(self, full: mx.array, method: mx.array) -> None:
        """Notes both distributions of every pair's next token, and chooses that token."""
        choices = mx.argmax(full, axis=-1)
        agree = choices == mx.argmax(method, axis=-1)
        firsts: list[int] = choices.tolist()  # type: ignore[assignment]
        chosen = [pair.next_token(first) for pair, first in zip(self.pairs, firsts, strict=True)]
        measured = distances(full, method, mx.array(chosen))
        mx.eval(agree, measured)
        columns: list[Any] = [array.tolist() for array in (measured[0], agree, *measured[1:])]
        for pair, token, kl, same, full_logprob, logprob in zip(self.pairs, chosen, *columns, strict=True):
            pair.tokens.append(token)
            pair.steps.append((kl, same, full_logprob, logprob))

    def _step(self) -> tuple[mx.array, mx.array]:
        """Feeds the chosen tokens to the method, then to the full cache; returns logits (full, method) [B, V]."""
        tokens = mx.array([[pair.tokens[-1]] for pair in self.pairs])
        began = time.perf_counter()
        method = self.model(tokens, cache=self.caches)[:, -1]
        mx.eval(method, [cache.state for cache in self.caches])
        took = time.perf_counter() - began
        full = self.model(tokens, cache=self.full_caches)[:, -1]
        mx.eval(full, [cache.state for cache in self.full_caches])
        self.engine.count_decode(len(self.pairs), took)
        for pair in self.pairs:
            pair.decode_seconds += took
        return full, method

    def _finish(self) -> Iterator[Comparison]:
        staying = []
        for index, pair in enumerate(self.pairs):
            ended = pair.continuation is None and pair.tokens[-1] in self.tokenizer.eos_token_ids
            if ended or len(pair.tokens) >= pair.limit:
                yield self._comparison(pair, index)
            else:
                staying.append(index)
        if len(staying) == len(self.pairs):
            return
        self.pairs = [self.pairs[index] for index in staying]
        if staying:
            for cache in (*self.caches, *self.full_caches):
                cache.select(staying)

    def _comparison(self, pair: _Pair, index: int) -> Comparison:
        shown = [token for token in pair.tokens if token not in self.tokenizer.eos_token_ids]
        kl, agree, full_logprob, method_logprob = zip(*pair.steps, strict=True)
        return Comparison(
            sample_id=pair.request.sample_id,
            prompt_tokens=pair.prompt_tokens,
            text=self.tokenizer.decode(shown),
            tokens=tuple(pair.tokens),
            kl=kl,
            agree=agree,
            full_logprob=full_logprob,
            method_logprob=method_logprob,
            beyond_context=pair.beyond_context,
            prefill_seconds=pair.prefill_seconds,
            compress_seconds=pair.compress_seconds,
            decode_seconds=pair.decode_seconds,
            cache=cache_use(self.caches, index),
        )

    def _progress(self) -> Progress:
        report = self.engine.report()
        speed = report.decode_tokens / report.decode_seconds if report.decode_seconds else None
        held = sum(cache.kept_bytes for cache in self.caches if isinstance(cache, CountedCache))
        return Progress(len(self.pairs), report.decode_tokens, speed, held)


def distances(full: mx.array, method: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Returns (KL(full || method), full's and method's log-probability of `tokens` int32 [B]), each float32 [B].

    `full` and `method` are logits [B, V]. Rounding can make a divergence of nothing negative; it is cut at 0.
    """
    p, q = (x.astype(mx.float32) - mx.logsumexp(x.astype(mx.float32), axis=-1, keepdims=True) for x in (full, method))
    weight = mx.exp(p)
    kl = mx.where(weight > 0, weight * (p - q), 0.0).sum(axis=-1)
    fed = [mx.take_along_axis(x, tokens[:, None], axis=-1)[:, 0] for x in (p, q)]
    return mx.maximum(kl, 0.0), fed[0], fed[1]


def _batched(lists: Sequence[list[Any]]) -> list[Any]:
    """One list of caches for all sequences."""
    if len(lists) < 2:
        return list(lists[0]) if lists else []
    return stacked(lists)
