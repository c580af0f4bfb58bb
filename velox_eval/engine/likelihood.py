"""Log-likelihood under eviction: contexts go in as a run's prompts do, continuations are scored from what was kept.

A context is read once, whoever asks about it, and its caches copied for each continuation: the continuations are fed
together, one token a step, each with the method's own eviction. Where nothing can be evicted over a continuation (the
full cache, or a budget that is not reached) it is fed in chunks instead: the same numbers, many times as fast.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.counted import CountedCache
from velox_eval.caches.session import Prompt, cache_use
from velox_eval.caches.together import choose_together, stacked
from velox_eval.engine.admission import Footprint, settled
from velox_eval.engine.engine import PROGRESS_SECONDS, Engine, Ready
from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import EngineReport, Failure, Generate, LogLikelihood, Progress, ScoredPairs
from velox_eval.engine.spans import Context, Span, by_context
from velox_eval.errors import VeloxEvalError
from velox_eval.methods import MethodConfig
from velox_eval.mlx import mx
from velox_eval.mlx_lm import wired_limit
from velox_eval.records.config import DEFAULT_PREFILL_STEP


class Likelihood:
    """Scores continuations under one method. Raises ConfigError / MethodError as Engine does, with its settings."""

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
        self.loaded = loaded
        self.engine = Engine(
            loaded,
            method,
            prefill_step=prefill_step,
            evict_block=evict_block,
            batch_size=batch_size,
            memory_limit=memory_limit,
        )

    def report(self) -> EngineReport:
        """Returns what the last `measure` did as a whole, so far."""
        return self.engine.report()

    def measure(
        self, requests: Iterable[LogLikelihood], *, on_step: Callable[[Progress], None] | None = None
    ) -> Iterator[ScoredPairs | Failure]:
        """Yields the log-likelihoods or a Failure per request, each as soon as it is there (not in request order)."""
        engine, loaded, reported = self.engine, self.loaded, 0.0
        engine.begin()
        by_room = engine.method.keep is not None
        lanes = _Lanes(engine)
        with attention_tap(loaded.model), wired_limit(loaded.model):
            engine.warm_up()
            mx.reset_peak_memory()
            contexts = by_context(requests, loaded.tokenizer, loaded.context_length, by_room=by_room)
            for span in self._ended(contexts, lanes):
                if isinstance(span, Failure):
                    yield span
                elif span is not None:
                    span.owner.left -= 1
                    if not span.owner.left:
                        yield span.owner.outcome()
                if on_step is not None and time.perf_counter() - reported > PROGRESS_SECONDS:
                    on_step(lanes.progress())
                    reported = time.perf_counter()

    def _ended(self, contexts: Iterable[Context | Failure], lanes: _Lanes) -> Iterator[Span | Failure | None]:
        """Yields spans as they end, failures, and None after each step."""
        for context in contexts:
            if isinstance(context, Failure):
                yield context
                continue
            ready, over = self._read(context)
            yield from over
            while context.waiting:
                if ready is None:
                    ready, over = self._read(context, again=True)
                    yield from over
                elif lanes.join(context, ready):
                    ready = None
                elif context.waiting:
                    yield from lanes.step()
                    yield None
        while len(lanes):
            yield from lanes.step()
            yield None

    def _read(self, context: Context, *, again: bool = False) -> tuple[Ready | None, list[Span]]:
        """Reads a context; returns it with its caches, and the spans that are over with that (all, if it fails).

        The first time every span's first token is scored, and all of those over which nothing is evicted.
        """
        try:
            ready, logits = self._prefill(context)
            return ready, [] if again else self._score_firsts(context, ready, logits)
        except (VeloxEvalError, ValueError, RuntimeError) as error:  # mlx raises the last two
            failed = context.waiting if again else context.spans
            for span in failed:
                span.owner.error = Failure.of(span.owner.request.sample_id, error).error
            context.waiting = []
            return None, failed

    def _prefill(self, context: Context) -> tuple[Ready, mx.array]:
        engine = self.engine
        name = hashlib.sha256(repr(context.tokens).encode()).hexdigest()  # what a method draws depends on this alone
        began = time.perf_counter()
        ready = engine.place(Generate(name, "", context.room), Prompt(context.tokens), context.room)
        if ready.footprint is not None:
            engine.admission.fits([], ready.footprint)  # raises where it never could
        logits, compressed = engine.read(ready)
        if ready.footprint is not None:
            ready = replace(ready, footprint=settled(ready.session, ready.footprint, context.room))
        seconds = time.perf_counter() - began
        engine.count_prefill(len(context.tokens), seconds)
        first = context.spans[0].owner
        first.prefill_seconds += seconds
        first.compress_seconds += compressed
        return ready, logits

    def _score_firsts(self, context: Context, ready: Ready, logits: mx.array) -> list[Span]:
        use = cache_use(ready.session.caches, 0)
        scores, best = log_probabilities(logits[None], [[span.tokens[0] for span in context.spans]])
        over: list[Span] = []
        for span, logprob in zip(context.spans, scores[0], strict=True):
            span.owner.held(use)
            span.note(logprob, best[0][0])
        for span in context.spans:
            if not span.over and _evicts_nothing(ready.session.caches, len(span.tokens) - 1):
                self._feed_in_chunks(ready, span)
            (over if span.over else context.waiting).append(span)
        return over

    def _feed_in_chunks(self, ready: Ready, span: Span) -> None:
        """Scores the rest of a continuation that evicts nothing, on a copy of the context's caches."""
        began, step, engine = time.perf_counter(), self.engine.prefill_step, self.engine
        caches = _copies(ready.session.caches, 1)
        fed, wanted = span.tokens[:-1], span.tokens[1:]
        for start in range(0, len(fed), step):
            logits = engine.model(mx.array([fed[start : start + step]]), cache=caches)
            scores, best = log_probabilities(logits, [wanted[start : start + step]])
            mx.eval([cache.state for cache in caches])
            for logprob, token in zip(scores[0], best[0], strict=True):
                span.note(logprob, token)
        seconds = time.perf_counter() - began
        engine.count_prefill(len(fed), seconds)
        span.owner.prefill_seconds += seconds
        span.owner.held(cache_use(caches, 0))


class _Lanes:
    """Continuations that are fed together, with one list of caches for all of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lanes: list[tuple[Span, Footprint | None]] = []
        self.caches: list[Any] = []

    def __len__(self) -> int:
        return len(self.lanes)

    def join(self, context: Context, ready: Ready) -> bool:
        """Takes as many of the context's waiting spans as there is room for; returns whether its own caches went too.

        The last span takes them. So does a single one where caches cannot be copied, or a copy is more than the memory
        limit allows: then the context is to be read again for the others.
        """
        waiting, caches = context.waiting, ready.session.caches
        count = len(waiting)
        while count and not self._fits(ready, count, own=count == len(waiting)):
            count -= 1
        own = count == len(waiting)
        if not count:
            if self.lanes:
                return False
            count, own = 1, True
        new = caches if own and count == 1 else _copies(caches, count)
        self.caches = stacked([self.caches, new]) if self.lanes else list(new)
        self.lanes += [(span, ready.footprint) for span in waiting[:count]]
        del waiting[:count]
        return own

    def _fits(self, ready: Ready, count: int, *, own: bool) -> bool:
        """Whether so many lanes may join, beside the context's caches unless these are the last lane's `own`."""
        admission = self.engine.admission
        together = count > 1 or bool(self.lanes)
        if len(self.lanes) + count > admission.most or (together and ready.session.unbatched is not None):
            return False
        copied = together or not own
        if copied and any(
            isinstance(c, CountedCache) and not isinstance(c, EvictionCache) for c in ready.session.caches
        ):
            return False
        if ready.footprint is None:
            return True
        held = [needs for _, needs in self.lanes if needs is not None]
        held += [ready.footprint] * (count - 1 if own else count)
        return not held or admission.fits(held, ready.footprint, prefilled=True)

    def step(self) -> list[Span]:
        """Feeds every lane its next token and scores the one after; returns what is over."""
        if not self.lanes:
            return []
        engine, spans = self.engine, [span for span, _ in self.lanes]
        began = time.perf_counter()
        fed = mx.array([[span.tokens[span.scored - 1]] for span in spans])
        logits = engine.model(fed, cache=self.caches)
        scores, best = log_probabilities(logits, [[span.tokens[span.scored]] for span in spans])
        mx.eval([cache.state for cache in self.caches])
        took = time.perf_counter() - began
        engine.count_decode(len(spans), took)
        staying, over = [], []
        for index, span in enumerate(spans):
            span.note(scores[index][0], best[index][0])
            span.owner.decode_seconds += took
            span.owner.decode_steps += 1
            if span.over:
                span.owner.held(cache_use(self.caches, index))
                over.append(span)
            else:
                staying.append(index)
        if over:
            self.lanes = [self.lanes[index] for index in staying]
            self.caches = self.caches if staying else []
            for cache in self.caches:
                cache.select(staying)
        return over

    def progress(self) -> Progress:
        """Returns where things stand."""
        report = self.engine.report()
        speed = report.decode_tokens / report.decode_seconds if report.decode_seconds else None
        held = sum(cache.kept_bytes for cache in self.caches if isinstance(cache, CountedCache))
        return Progress(len(self.lanes), report.decode_tokens, speed, held)


def log_probabilities(logits: mx.array, tokens: Sequence[Sequence[int]]) -> tuple[list[list[float]], list[list[int]]]:
    """Returns the log-probabilities of `tokens` [B, T] and the most likely tokens, from logits [B, T, V]; in float32.

    Logits of one place [1, 1, V] are those of every token.
    """
    wide, wanted = logits.astype(mx.float32), mx.array([list(row) for row in tokens])
    total = mx.logsumexp(wide, axis=-1)
    if wide.shape[1] == 1 and wide.shape[0] == 1:
        picked = wide[0, 0][wanted] - total
    else:
        picked = mx.take_along_axis(wide, wanted[..., None], axis=-1)[..., 0] - total
    best = mx.argmax(logits, axis=-1)
    mx.eval(picked, best)
    return picked.tolist(), best.tolist()  # type: ignore[return-value]


def _evicts_nothing(caches: Sequence[Any], more: int) -> bool:
    """Whether `more` tokens fed at once would be attended to and kept as if they came one by one."""
    return all(
        isinstance(cache, EvictionCache)
        and (cache.budgets[0] is None or (not cache.policy.grows and cache.rows[0] + more <= cache.budgets[0]))
        for cache in caches
        if isinstance(cache, CountedCache)
    )


def _copies(caches: Sequence[Any], count: int) -> list[Any]:
    """Returns one list of caches that holds `count` sequences like the one in `caches`, which stay as they are."""
    copies = [
        EvictionCache.stack([cache] * count) if isinstance(cache, EvictionCache) else copy.deepcopy(cache)
        for cache in caches
    ]
    choose_together(copies)
    return copies
