"""What a task asks of the engine and what it gets back. Free of mlx, so tasks and stores can use it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from velox_eval.caches.use import CacheUse
from velox_eval.errors import VeloxEvalError

__all__ = [
    "CacheUse",
    "Comparison",
    "EngineReport",
    "Failure",
    "FinishReason",
    "Generate",
    "Generation",
    "LogLikelihood",
    "Outcome",
    "Progress",
    "Request",
    "Sampling",
    "ScoredPairs",
    "TeacherForce",
    "Text",
]

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Generate:
    """One answer to write.

    `prompt` is the raw text; with `chat` it becomes the user turn of the model's chat template, after
    `system` if that is given. `stop` strings end the answer and are not part of it. `context` marks the
    characters of `prompt` that are material rather than question, for methods that compress only that.
    `stop_after`: stop strings count only after this text has come (the end of a model's thinking). `cut_left`: a prompt
    that leaves no room for `max_tokens` in the model's context loses its first tokens, instead of failing.
    `cut_middle`: a prompt of more tokens than this, or than the model's context has room for, loses its middle.
    `never_empty`: the first token is none that would end the answer at once.
    """

    sample_id: str
    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    chat: bool = False
    system: str | None = None
    context: tuple[int, int] | None = None
    stop_after: str | None = None
    cut_left: bool = False
    cut_middle: int | None = None
    never_empty: bool = False


@dataclass(frozen=True)
class TeacherForce:
    """One comparison with the full cache: both read the prompt and are fed the same continuation, token by token.

    `continuation` None feeds the full cache's own greedy answer. At most `max_tokens` tokens are compared. The other
    fields are those of Generate.
    """

    sample_id: str
    prompt: str
    continuation: str | None
    max_tokens: int
    chat: bool = False
    system: str | None = None
    context: tuple[int, int] | None = None

    @property
    def reading(self) -> Generate:
        """The prompt and its room, as the engine reads them."""
        return Generate(
            self.sample_id, self.prompt, self.max_tokens, chat=self.chat, system=self.system, context=self.context
        )


Text: TypeAlias = "str | tuple[int, ...]"  # a text, or its tokens where they are known


@dataclass(frozen=True)
class LogLikelihood:
    """How likely each continuation is after its context; a multiple-choice question is one request, a pair an option.

    A context goes in under the method; its continuation is fed token by token to what the method kept. An empty
    context stands for the model's beginning-of-text token. Where the two do not fit the model's context, the context
    loses its first tokens. `rolling`: the contexts are empty, and a continuation that does not fit is scored in windows
    that do not overlap, each after the last token of the one before.
    """

    sample_id: str
    pairs: tuple[tuple[Text, Text], ...]
    rolling: bool = False

    @property
    def prompt(self) -> str:
        """What the hash of a prompt covers: contexts and continuations, in order."""
        return "\0".join(part if isinstance(part, str) else str(part) for pair in self.pairs for part in pair)


Request: TypeAlias = "Generate | TeacherForce | LogLikelihood"  # what a task may ask


@dataclass(frozen=True)
class Sampling:
    """Greedy at temperature 0; otherwise each sample draws from its own stream, seeded by (seed, sample_id)."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Generation:
    """One answer and what it cost. Seconds exclude loading and compiling."""

    sample_id: str
    prompt_tokens: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    beyond_context: bool  # the token limit was cut at the model's context length
    prefill_seconds: float  # up to the first token, compress_seconds included
    decode_seconds: float  # from the first token to the last, in flight
    cache: CacheUse
    compress_seconds: float = 0.0  # what the method did once the prompt was in: passes, budgets, the cut
    cut_tokens: int = 0  # tokens of the prompt that were left out, at its beginning or in its middle

    @property
    def truncated(self) -> bool:
        """Whether a limit ended the answer rather than the model or a stop string."""
        return self.finish_reason == "length"

    @property
    def tokens_per_second(self) -> float | None:
        """Decode steps over their seconds in flight; None under two tokens."""
        steps = len(self.tokens) - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else None


@dataclass(frozen=True)
class Comparison:
    """A method beside the full cache on the same tokens; per token, before it was fed. Natural logarithms.

    `kl` is KL(full || method) over the vocabulary, `agree` whether both rank the same token first, `full_logprob`
    and `method_logprob` are those of the token that was fed. Seconds are the method's alone.
    """

    sample_id: str
    prompt_tokens: int
    text: str  # what was fed
    tokens: tuple[int, ...]
    kl: tuple[float, ...]
    agree: tuple[bool, ...]
    full_logprob: tuple[float, ...]
    method_logprob: tuple[float, ...]
    beyond_context: bool  # the token limit was cut at the model's context length
    prefill_seconds: float
    compress_seconds: float
    decode_seconds: float
    cache: CacheUse  # the method's

    @property
    def tokens_per_second(self) -> float | None:
        """Steps of the method over their seconds; None under two tokens."""
        steps = len(self.tokens) - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else None


@dataclass(frozen=True)
class ScoredPairs:
    """The log-likelihoods of a request's pairs, in its order, and what they cost. Natural logarithms, summed.

    A context that several requests share was read once: its seconds are with the first of them. Continuations of which
    nothing can be evicted are read like a prompt, and their seconds are `prefill_seconds`; the others are decoded.
    """

    sample_id: str
    prompt_tokens: int  # of the contexts, each counted once
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]  # whether each token was the most likely one
    tokens: tuple[int, ...]  # tokens scored, by pair
    cut_tokens: int  # first tokens of contexts that were left out to make it fit
    prefill_seconds: float
    compress_seconds: float
    decode_seconds: float
    decode_steps: int
    cache: CacheUse  # of the pair that held most

    @property
    def beyond_context(self) -> bool:
        """Whether a context was cut at the model's context length."""
        return self.cut_tokens > 0

    @property
    def tokens_per_second(self) -> float | None:
        """Decode steps over their seconds in flight; None where nothing was decoded."""
        return self.decode_steps / self.decode_seconds if self.decode_steps and self.decode_seconds > 0 else None


Outcome: TypeAlias = "Generation | Comparison | ScoredPairs | Failure"  # what comes of a request


@dataclass(frozen=True)
class Failure:
    """A request that could not be answered; the others go on."""

    sample_id: str
    error: str

    @classmethod
    def of(cls, sample_id: str, error: Exception) -> Failure:
        """Returns the failure that `error` is; one that nobody foresaw names the line of the method it went through."""
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, VeloxEvalError):
            return cls(sample_id, text)
        calls = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        lines = [
            f"methods/{path.name}, line {line}"
            for path, line in calls
            if path.parts[-3:-1] == ("velox_eval", "methods")
        ]
        return cls(sample_id, f"{text} ({lines[-1]})" if lines else text)


@dataclass(frozen=True)
class EngineReport:
    """What one engine run did as a whole."""

    batch_sizes: tuple[int, ...] = ()  # distinct batch sizes that decoded
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    mlx_peak_bytes: int = 0
    eviction_layers: tuple[int, ...] = ()
    other_layers: dict[str, str] = field(default_factory=dict)  # layer -> cache class left alone


@dataclass(frozen=True)
class Progress:
    """Where an engine run stands, after a step."""

    in_flight: int  # sequences decoding together
    decoded_tokens: int
    tokens_per_second: float | None  # of the decode so far
    cache_bytes: int  # rows held now, all sequences in flight
