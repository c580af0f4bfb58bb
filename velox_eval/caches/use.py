"""What a sample's caches held, in bytes and rows. Free of mlx, so that stores and scorers can read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    reported: Mapping[str, float] = field(default_factory=dict)  # the installed package's own counters

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
