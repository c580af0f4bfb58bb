"""Choosing the next token, so that a sample's draws depend on its own id and step only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from velox_eval.engine.requests import Sampling
from velox_eval.mlx import mx
from velox_eval.mlx_lm import apply_top_p


def choose(logits: mx.array, draws: Sequence[tuple[str, int]], sampling: Sampling) -> list[int]:
    """Returns a token per row of `logits` [B, V]; `draws` names each row's (sample id, step).

    Temperature first, then top-p, as vLLM and transformers do.
    """
    if sampling.temperature == 0:
        greedy: list[int] = mx.argmax(logits, axis=-1).tolist()  # type: ignore[assignment]
        return greedy
    scaled = logits.astype(mx.float32) / sampling.temperature
    logprobs = scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)
    if sampling.top_p < 1:
        logprobs = apply_top_p(logprobs, sampling.top_p)
    keys = [_key(sampling.seed, *draw) for draw in draws]
    tokens = mx.stack([mx.random.categorical(row, key=key) for row, key in zip(logprobs, keys, strict=True)])
    drawn: list[int] = tokens.tolist()  # type: ignore[assignment]
    return drawn


def without(logits: mx.array, tokens: Sequence[int]) -> mx.array:
    """Returns `logits` [B, V] with these tokens ruled out."""
    ruled_out = mx.zeros(logits.shape[-1:], dtype=mx.bool_)
    ruled_out[mx.array(list(tokens))] = True
    return mx.where(ruled_out, -mx.inf, logits)


def sample_seed(sample_id: str) -> int:
    """Returns the seed (63 bits) of a sample's own draws, for methods that draw."""
    return _hash(sample_id) >> 1


def _key(seed: int, sample_id: str, step: int) -> mx.array:
    return mx.random.key(_hash(f"{seed}\x00{sample_id}\x00{step}"))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
