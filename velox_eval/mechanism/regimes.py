"""The regimes: streams of keys, values and queries in which what is relevant at the end is known.

Topics are axes of the key space. A row of a topic has a constant on its axis; the relevant axis is the one that the
probes at the end of a stream point along. `shift` and `stable` are the constructions of the MorphKV and KVzip
documents of VeloxQuant-MLX; the others are controls and regimes in which relevance and recency come apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

DIM = 32
SINKS = 2
NOISE = 0.3  # standard deviation of a key's every component
STRONG = 3.0  # on the axis of an early or a well-marked topic
WEAK = 1.2  # on the axis of the late topic
EXTRA = 1.5  # standard deviation of the late rows' extra noise
POINTER = 1.0  # on the axis that a pointing row attends to without belonging to it
EARLY_SHARE = 0.7  # of a shifting stream, before the shift
THRESHOLD = 0.6  # a row is relevant when its projection on the relevant axis is above
PROBES = 16
PROBE_NOISE = 0.05
QUERY = 3.0  # on the axis that a step's query attends to, for methods that rank by queries
BLOCK = 16  # rows of a relevant block: half of the smallest budget
SEGMENT = 16  # rows before topics alternate
TOPICS = 3
REACH = 64  # the largest budget: what a sliding window could still hold


@dataclass(frozen=True)
class Draws:
    """The normal numbers of one seed and length, the same in every regime, so that regimes are paired too."""

    keys: Array  # [T, DIM]
    extra: Array
    values: Array
    queries: Array
    probes: Array  # [PROBES, DIM]

    @classmethod
    def of(cls, seed: int, length: int) -> Draws:
        """Returns the draws of a data seed for streams of `length` rows."""
        rng = np.random.default_rng([seed, length])
        return cls(*(rng.normal(size=(rows, DIM)) for rows in (length, length, length, length, PROBES)))


@dataclass(frozen=True)
class Plan:
    """What a regime does at each of T rows."""

    topic: Array  # int [T]: the axis with a constant
    strength: Array  # float [T]: that constant
    extra: Array  # float [T]: standard deviation of extra noise
    attends: Array  # int [T]: the axis the step's query points along
    relevant: int  # the axis the probes point along
    region: Array  # bool [T]: where relevance lies
    by_projection: bool  # relevant rows: projection above THRESHOLD, anywhere; else the region's rows


@dataclass(frozen=True)
class Regime:
    """One construction. `separates`: relevance and recency come apart, a window of recent rows holds nothing."""

    name: str
    summary: str
    plan: Callable[[int], Plan]
    separates: bool = False


@dataclass(frozen=True)
class Streams:
    """S streams of T rows: float16 as a cache is fed, and what is relevant in them."""

    seeds: tuple[int, ...]  # of each stream
    keys: Array  # float16 [S, T, DIM]
    values: Array  # float16 [S, T, DIM]
    queries: Array  # float16 [S, T, DIM]
    probes: Array  # float32 [S, PROBES, DIM]
    relevant: Array  # bool [S, T]
    region: Array  # bool [S, T]

    @property
    def length(self) -> int:
        """Rows of a stream."""
        return int(self.keys.shape[1])

    def select(self, which: Array) -> Streams:
        """Returns these streams, in this order."""
        arrays = (self.keys, self.values, self.queries, self.probes, self.relevant, self.region)
        return Streams(tuple(self.seeds[at] for at in which), *(array[which] for array in arrays))


def streams(regimes: list[Regime], seeds: range, length: int) -> Streams:
    """Returns one stream a regime and seed, regimes outermost."""
    made = [_stream(regime.plan(length), Draws.of(seed, length)) for regime in regimes for seed in seeds]
    return Streams(tuple(seeds) * len(regimes), *(np.stack(arrays) for arrays in zip(*made, strict=True)))


def _stream(plan: Plan, draws: Draws) -> tuple[Array, ...]:
    rows = np.arange(len(plan.topic))
    keys = draws.keys * NOISE + draws.extra * plan.extra[:, None]
    keys[rows, plan.topic] += plan.strength
    keys = keys.astype(np.float16)
    queries = draws.queries * NOISE
    queries[rows, plan.attends] += QUERY
    probes = draws.probes * PROBE_NOISE
    probes[:, plan.relevant] += 1.0
    relevant = keys[:, plan.relevant] > THRESHOLD if plan.by_projection else plan.region
    return (
        keys,
        draws.values.astype(np.float16),
        queries.astype(np.float16),
        probes.astype(np.float32),
        relevant,
        plan.region,
    )


def _shift(axis: float, noise: float) -> Callable[[int], Plan]:
    def plan(length: int) -> Plan:
        late = np.arange(length) >= int(EARLY_SHARE * length)
        return Plan(
            topic=late.astype(int),
            strength=np.where(late, axis, STRONG),
            extra=np.where(late, noise, 0.0),
            attends=late.astype(int),
            relevant=1,
            region=late,
            by_projection=True,
        )

    return plan


def _stable(length: int) -> Plan:
    zeros, all_rows = np.zeros(length, int), np.ones(length, bool)
    return Plan(zeros, np.full(length, STRONG), np.zeros(length), zeros, 0, all_rows, by_projection=True)


def _block(start: Callable[[int], int], pointing: Callable[[int], int]) -> Callable[[int], Plan]:
    """A block of the relevant topic at `start`; from `pointing` on rows point at it without belonging to it."""

    def plan(length: int) -> Plan:
        rows, first = np.arange(length), start(length)
        block = (rows >= first) & (rows < first + BLOCK)
        points = (rows >= pointing(length)) & ~block
        return Plan(
            topic=(block | points).astype(int),
            strength=np.where(points, POINTER, STRONG),
            extra=np.zeros(length),
            attends=(block | points).astype(int),
            relevant=1,
            region=block,
            by_projection=False,
        )

    return plan


def _alternating(length: int) -> Plan:
    topic = np.arange(length) // SEGMENT % TOPICS
    rows = np.arange(length)
    old = (rows >= SINKS) & (rows < length - REACH)
    return Plan(
        topic=topic,
        strength=np.full(length, STRONG),
        extra=np.zeros(length),
        attends=topic,
        relevant=int(topic[-1]),
        region=old & (topic == topic[-1]),
        by_projection=False,
    )


def _middle(length: int) -> int:
    return int(0.4 * length)


REGIMES: Mapping[str, Regime] = {
    regime.name: regime
    for regime in (
        Regime(
            "shift",
            "the documents' topic_shift and reconstruction_shift: 70% of the rows on axis A, then 30% weakly on axis B "
            "with much extra noise; probes along B",
            _shift(WEAK, EXTRA),
        ),
        Regime("stable", "the documents' stable and flat: every row on axis A; probes along A", _stable),
        Regime(
            "shift_no_axis",
            "control: shift without axis B; the late rows have the extra noise alone, so there is nothing to find",
            _shift(0.0, EXTRA),
        ),
        Regime("shift_no_noise", "control: shift without the extra noise; axis B alone", _shift(WEAK, 0.0)),
        Regime(
            "early_block",
            f"{BLOCK} relevant rows right after the sinks; every row after them points at them",
            _block(lambda _length: SINKS, lambda _length: SINKS),
            separates=True,
        ),
        Regime(
            "middle_block",
            f"40% of the rows on axis A, {BLOCK} relevant rows, and every row after them points at them",
            _block(_middle, _middle),
            separates=True,
        ),
        Regime(
            "alternating",
            f"{TOPICS} topics in turn, {SEGMENT} rows each; relevant are the rows of the last topic that lie further "
            f"back than {REACH} rows (at 256 rows the stream begins with that topic, at 512 it does not)",
            _alternating,
            separates=True,
        ),
        Regime(
            "absence",
            f"{BLOCK} relevant rows right after the sinks, another topic for longer than any budget, and only the last "
            f"{BLOCK} rows point back: what was evicted meanwhile cannot return",
            _block(lambda _length: SINKS, lambda length: length - BLOCK),
            separates=True,
        ),
    )
}
