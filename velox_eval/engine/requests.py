"""What a task asks of the engine and what it gets back. Free of mlx, so tasks and stores can use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Generate:
    """One answer to write.

    `prompt` is the raw text; with `chat` it becomes the user turn of the model's chat template, after
    `system` if that is given. `stop` strings end the answer and are not part of it.
    """

    sample_id: str
    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    chat: bool = False
    system: str | None = None


@dataclass(frozen=True)
class Sampling:
    """Greedy at temperature 0; otherwise each sample draws from its own stream, seeded by (seed, sample_id)."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class CacheUse:
    """Bytes and rows of one sample's caches, all layers together unless a list says otherwise.

    Bytes count rows that held a token (key and value, every KV head): `peak_cache_bytes` at the largest,
    rows in transit included; `peak_total_bytes` adds the policies' auxiliary arrays; `end_cache_bytes`
    after the last step; `allocated_cache_bytes` is the buffers' capacity at its largest;
    `full_cache_bytes` is what the full cache would hold at the end.
    """

    peak_cache_bytes: int
    peak_total_bytes: int
    end_cache_bytes: int
    allocated_cache_bytes: int
    full_cache_bytes: int
    kept_tokens: tuple[int, ...]  # rows held at the end, one number per eviction layer
    tokens_seen: int  # tokens that went through the cache
    evicted_tokens: int  # rows evicted, summed over eviction layers
    early_share: float | None  # kept rows whose position is in the first tenth of tokens_seen / kept rows
    budget: int | None  # rows per layer and KV head this sample ran with; None: no bound

    @property
    def method_fired(self) -> bool:
        """Whether anything was evicted at all."""
        return self.evicted_tokens > 0

    @property
    def kept_fraction(self) -> float:
        """Rows held at the end over rows seen, mean over eviction layers."""
        if not self.kept_tokens or not self.tokens_seen:
            return 1.0
        return sum(self.kept_tokens) / (len(self.kept_tokens) * self.tokens_seen)


@dataclass(frozen=True)
class Generation:
    """One answer and what it cost. Seconds exclude loading and compiling."""

    sample_id: str
    prompt_tokens: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    beyond_context: bool  # the token limit was cut at the model's context length
    prefill_seconds: float  # up to the first token
    decode_seconds: float  # from the first token to the last, in flight
    cache: CacheUse

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
class Failure:
    """A request that could not be answered; the others go on."""

    sample_id: str
    error: str


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
