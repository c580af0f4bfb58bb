"""Runs the grid: every arm in every regime, at two lengths and two budgets, over many data seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from velox_eval.errors import ConfigError
from velox_eval.mechanism.arms import BUDGETS, Arm
from velox_eval.mechanism.feeding import Kept, cuts_once, keep, policy_for
from velox_eval.mechanism.measures import MEASURES, base_rates, measured
from velox_eval.mechanism.regimes import REGIMES, Array, Regime, Streams, streams
from velox_eval.methods import Value

LENGTHS = (256, 512)
DOCUMENT_SEEDS = 5  # of the documents' own figures
DEFAULT_SEEDS = 24
BLOCKS: tuple[int | None, ...] = (8, 64, None)  # rows evicted together; None: the whole stream
SENSITIVITY = (512, 64)  # length and budget at which rows also go in blocks
TWINS = (("morphkv window=1", "tova"), ("kvzip probe=latest", "tova"))  # said to keep the same rows

Cells = tuple[tuple[int, int], ...]
GRID: Cells = tuple((length, budget) for length in LENGTHS for budget in BUDGETS)


@dataclass(frozen=True)
class Sensitivity:
    """An arm whose rows go in blocks, against the same arm row by row: means over the seeds."""

    arm: str
    regime: str
    block: int | None
    retention: float
    held: float
    overlap: float  # rows kept either way, over the budget


@dataclass
class Study:
    """What was measured. `values[arm][regime][(length, budget)][measure]` is an array over the seeds."""

    arms: list[Arm]
    seeds: int
    grid: Cells = GRID  # lengths and budgets
    once: set[str] = field(default_factory=set)  # arms that see the whole stream and cut at its end
    settings: dict[str, dict[int, Mapping[str, Value]]] = field(default_factory=dict)
    values: dict[str, dict[str, dict[tuple[int, int], dict[str, Array]]]] = field(default_factory=dict)
    base: dict[str, dict[int, dict[str, Array]]] = field(default_factory=dict)  # regime, length, which
    twins: dict[tuple[str, str], dict[str, Array]] = field(default_factory=dict)  # regime: same rows, by seed
    sensitivity: list[Sensitivity] = field(default_factory=list)

    def by_seed(self, arm: str, regime: str, measure: str) -> Array:
        """Returns [seeds]: the mean over lengths and budgets; nan where a seed has none."""
        cells = np.stack([self.values[arm][regime][cell][measure] for cell in self.grid])
        counts = (~np.isnan(cells)).sum(axis=0)
        mean: Array = np.where(counts > 0, np.nansum(cells, axis=0) / np.maximum(counts, 1), np.nan)
        return mean

    def mean(
        self, arm: str, regime: str, measure: str, cell: tuple[int, int] | None = None, seeds: int | None = None
    ) -> float | None:
        """Returns the mean over the first `seeds` seeds (None: all), of a cell or all; None: nothing to average."""
        chosen = self.by_seed(arm, regime, measure) if cell is None else self.values[arm][regime][cell][measure]
        chosen = chosen[:seeds]
        chosen = chosen[~np.isnan(chosen)]
        return float(chosen.mean()) if len(chosen) else None

    def has(self, *arms: str) -> bool:
        """Returns whether all these arms were run."""
        return all(arm in self.values for arm in arms)


def run_study(
    arms: Sequence[Arm],
    *,
    seeds: int = DEFAULT_SEEDS,
    regimes: Iterable[str] | None = None,
    grid: Cells = GRID,
    told: Callable[[str], None] = lambda _arm: None,
) -> Study:
    """Returns what every arm keeps in every regime; `told` hears which arm is next. Raises ConfigError for no seed."""
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1")
    chosen = [REGIMES[name] for name in (regimes if regimes is not None else REGIMES)]
    data = {length: streams(chosen, range(seeds), length) for length in dict.fromkeys(length for length, _ in grid)}
    study = Study(list(arms), seeds, grid)
    for length, every in data.items():
        rates = base_rates(every)
        for name, place in _places(chosen, seeds):
            study.base.setdefault(name, {})[length] = {which: rate[place] for which, rate in rates.items()}
    kept: dict[str, dict[tuple[int, int], Kept]] = {}
    twins = {arm for pair in TWINS for arm in pair}
    for arm in arms:
        told(arm.label)
        done = _run_arm(study, arm, data, chosen)
        if arm.label in twins:
            kept[arm.label] = done
    for one, other in TWINS:
        if one in kept and other in kept:
            same = np.stack([(kept[one][c].positions == kept[other][c].positions).all(axis=1) for c in grid])
            study.twins[one, other] = {name: same[:, place].mean(axis=0) for name, place in _places(chosen, seeds)}
    return study


def _places(regimes: Sequence[Regime], seeds: int) -> Iterable[tuple[str, slice]]:
    """Where a regime's streams lie in the batch."""
    for at, regime in enumerate(regimes):
        yield regime.name, slice(at * seeds, (at + 1) * seeds)


def _run_arm(
    study: Study, arm: Arm, data: Mapping[int, Streams], regimes: Sequence[Regime]
) -> dict[tuple[int, int], Kept]:
    kept = {}
    by_regime = study.values.setdefault(arm.label, {})
    for length, budget in study.grid:
        method = arm.at(budget)
        study.settings.setdefault(arm.label, {})[budget] = dict(method.params)
        kept[length, budget] = keep(method, data[length])
        if cuts_once(policy_for(method, data[length])):
            study.once.add(arm.label)
        numbers = measured(kept[length, budget], data[length], budget)
        for name, place in _places(regimes, study.seeds):
            by_regime.setdefault(name, {})[length, budget] = {m: numbers[m][place] for m in MEASURES}
    if SENSITIVITY in study.grid and arm.label not in study.once:
        _run_blocks(study, arm, data[SENSITIVITY[0]], regimes, kept[SENSITIVITY])
    return kept


def _run_blocks(study: Study, arm: Arm, data: Streams, regimes: Sequence[Regime], kept: Kept) -> None:
    """Evicts in blocks, over as many seeds as the documents have."""
    budget, few = SENSITIVITY[1], min(study.seeds, DOCUMENT_SEEDS)
    method = arm.at(budget)
    chosen = np.concatenate([np.arange(place.start, place.start + few) for _, place in _places(regimes, study.seeds)])
    part, row_by_row = data.select(chosen), kept.positions[chosen]
    for block in BLOCKS:
        blocked = keep(method, part, block)
        numbers = measured(blocked, part, budget)
        same = (row_by_row[:, :, None] == blocked.positions[:, None, :]).any(axis=2).mean(axis=1)
        for name, place in _places(regimes, few):
            retention, held = (float(np.mean(numbers[m][place])) for m in ("retention", "held"))
            study.sensitivity.append(Sensitivity(arm.label, name, block, retention, held, float(same[place].mean())))
