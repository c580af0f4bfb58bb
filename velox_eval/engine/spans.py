"""Log-likelihood requests in tokens: which continuations follow which context, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from velox_eval.caches.use import CacheUse
from velox_eval.engine.requests import Failure, LogLikelihood, ScoredPairs
from velox_eval.engine.text import encode_pair, encode_windows
from velox_eval.errors import ConfigError


@dataclass
class Span:
    """Tokens to score after a context, for one pair of a request."""

    owner: Pending
    pair: int
    tokens: list[int]
    logprob: float = 0.0
    greedy: bool = True
    scored: int = 0

    @property
    def over(self) -> bool:
        """Whether every token is scored."""
        return self.scored == len(self.tokens)

    def note(self, logprob: float, best: int) -> None:
        """Adds the next token's log-probability, `best` being the most likely token there."""
        self.logprob += logprob
        self.greedy = self.greedy and best == self.tokens[self.scored]
        self.scored += 1


@dataclass
class Pending:
    """A request on its way: its spans, and what they cost so far."""

    request: LogLikelihood
    spans: list[Span] = field(default_factory=list)
    left: int = 0
    cut_tokens: int = 0
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    compress_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    use: CacheUse | None = None
    error: str | None = None

    def held(self, use: CacheUse) -> None:
        """Keeps the use of the sequence that held most at its largest."""
        if self.use is None or use.peak_cache_bytes >= self.use.peak_cache_bytes:
            self.use = use

    def outcome(self) -> ScoredPairs | Failure:
        """Returns what came of the request, once nothing is left to do."""
        if self.error is not None or self.use is None:
            return Failure(self.request.sample_id, self.error or "nothing was scored")
        of_pair = [[s for s in self.spans if s.pair == pair] for pair in range(len(self.request.pairs))]
        return ScoredPairs(
            sample_id=self.request.sample_id,
            prompt_tokens=self.prompt_tokens,
            logprobs=tuple(sum(span.logprob for span in spans) for spans in of_pair),
            greedy=tuple(all(span.greedy for span in spans) for spans in of_pair),
            tokens=tuple(sum(len(span.tokens) for span in spans) for spans in of_pair),
            cut_tokens=self.cut_tokens,
            prefill_seconds=self.prefill_seconds,
            compress_seconds=self.compress_seconds,
            decode_seconds=self.decode_seconds,
            decode_steps=self.decode_steps,
            cache=self.use,
        )


@dataclass
class Context:
    """A context and all that is to be scored after it, whichever request asks."""

    tokens: tuple[int, ...]
    room: int  # tokens that caches must take beside it
    spans: list[Span] = field(default_factory=list)
    waiting: list[Span] = field(default_factory=list)  # the first token is scored, the others are not yet fed


def by_context(
    requests: Iterable[LogLikelihood], tokenizer: Any, limit: int | None, *, by_room: bool
) -> Iterator[Context | Failure]:
    """Yields a Failure for each request that cannot be scored, then the contexts of the others, as first asked for.

    `limit`: tokens the model can be fed at most. `by_room`: a context is shared only by requests whose continuations
    are equally long, for methods whose budget depends on that.
    """
    contexts: dict[tuple[tuple[int, ...], int], Context] = {}
    for request in requests:
        pending = Pending(request)
        try:
            parts = _in_tokens(pending, tokenizer, limit)
        except ConfigError as error:
            yield Failure.of(request.sample_id, error)
            continue
        for tokens, spans in parts.items():
            room = max(len(span.tokens) for span in spans)
            shared = contexts.setdefault((tokens, room if by_room else 0), Context(tokens, room))
            shared.room = max(shared.room, room)
            shared.spans += spans
    yield from contexts.values()


def _in_tokens(pending: Pending, tokenizer: Any, limit: int | None) -> dict[tuple[int, ...], list[Span]]:
    """The request's spans by context. Raises ConfigError for what cannot be scored."""
    parts: list[tuple[int, list[int], list[int]]] = []
    for index, (context, continuation) in enumerate(pending.request.pairs):
        if pending.request.rolling:
            parts += [(index, *window) for window in encode_windows(tokenizer, continuation, limit)]
        else:
            parts.append((index, *encode_pair(tokenizer, context, continuation)))
    if {index for index, _, after in parts if after} != set(range(len(pending.request.pairs))) or not parts:
        raise ConfigError("a continuation has no tokens of its own: there is nothing to score")
    spans: dict[tuple[int, ...], list[Span]] = {}
    for index, before, after in parts:
        kept = _fitted(before, after, limit)
        pending.cut_tokens += len(before) - len(kept)
        span = Span(pending, index, after)
        pending.spans.append(span)
        spans.setdefault(tuple(kept), []).append(span)
    pending.left = len(pending.spans)
    pending.prompt_tokens = sum(len(tokens) for tokens in spans)
    return spans


def _fitted(context: list[int], continuation: list[int], limit: int | None) -> list[int]:
    """The context, cut from the left so that the model can be fed both; the very last token never is."""
    if not context:
        raise ConfigError("a context has no tokens")
    over = 0 if limit is None else len(context) + len(continuation) - 1 - limit
    if over >= len(context):
        raise ConfigError(f"a continuation of {len(continuation)} tokens does not fit the model's context of {limit}")
    return context[max(over, 0) :]
