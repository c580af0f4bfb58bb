"""Scores of a method beside the full cache on the same tokens: divergence, agreement, likelihood, by position.

All are per token of the continuation, logarithms natural. The perplexity ratio is method over full: 1 where the
method predicts the text as well as the full cache, above 1 where it does worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from velox_eval.records.score import Score

DECILES = 10
BIN = 32  # tokens a bin by absolute position

Sums = list[list[float]]  # a bin: [sum of KL, tokens that agree, tokens]


def fidelity_scores(
    kl: Sequence[float], agree: Sequence[bool], full_logprob: Sequence[float], method_logprob: Sequence[float]
) -> dict[str, Score]:
    """Returns mean_kl, top1_agreement, nll_full and nll_method per token, and first_divergence per sample.

    first_divergence is the number of tokens before the first on which the two rank another token first; all of them
    where there is none.
    """
    n = len(kl)
    return {
        "mean_kl": Score(num=math.fsum(kl), den=n),
        "top1_agreement": Score(num=sum(agree), den=n),
        "nll_full": Score(num=-math.fsum(full_logprob), den=n),
        "nll_method": Score(num=-math.fsum(method_logprob), den=n),
        "first_divergence": Score(num=first_divergence(agree)),
        "diverged": Score(num=not all(agree)),
    }


def first_divergence(agree: Sequence[bool]) -> int:
    """Returns how many tokens stand before the first disagreement; all of them where there is none."""
    return next((index for index, same in enumerate(agree) if not same), len(agree))


def perplexities(pooled: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns perplexity_ratio and both perplexities from every pooled pair nll_full*, nll_method*."""
    found: dict[str, float | None] = {}
    for name, full in pooled.items():
        end = name.removeprefix("nll_full")
        method = pooled.get(f"nll_method{end}")
        if name.startswith("nll_full") and full is not None and method is not None:
            found[f"perplexity_ratio{end}"] = math.exp(method - full)
            found[f"perplexity_full{end}"] = math.exp(full)
            found[f"perplexity_method{end}"] = math.exp(method)
    return found


def by_decile(kl: Sequence[float], agree: Sequence[bool]) -> Sums:
    """Returns the sums of each tenth of the continuation; a tenth without a token is [0, 0, 0]."""
    return _sums(kl, agree, DECILES, lambda index: index * DECILES // len(kl))


def by_position(kl: Sequence[float], agree: Sequence[bool]) -> Sums:
    """Returns the sums of each BIN tokens."""
    return _sums(kl, agree, -(-len(kl) // BIN), lambda index: index // BIN)


def _sums(kl: Sequence[float], agree: Sequence[bool], bins: int, place: Callable[[int], int]) -> Sums:
    sums: Sums = [[0.0, 0, 0] for _ in range(bins)]
    for index, (distance, same) in enumerate(zip(kl, agree, strict=True)):
        bin_ = sums[place(index)]
        bin_[0] += distance
        bin_[1] += same
        bin_[2] += 1
    return sums


def curves(samples: Iterable[Mapping[str, Sums]]) -> dict[str, list[float | None]]:
    """Returns mean KL and agreement by decile and by position, pooled over samples' `by_decile` and `by_position`."""
    totals: dict[str, Sums] = {}
    for sample in samples:
        for name in ("by_decile", "by_position"):
            known = totals.setdefault(name, [])
            for index, sums in enumerate(sample[name]):
                if index == len(known):
                    known.append([0.0, 0, 0])
                known[index] = [a + b for a, b in zip(known[index], sums, strict=True)]
    series = {}
    for name, total in totals.items():
        series[f"mean_kl_{name}"] = [kl / n if n else None for kl, _, n in total]
        series[f"top1_agreement_{name}"] = [same / n if n else None for _, same, n in total]
    return series
