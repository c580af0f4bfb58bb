"""Decode steps of a suite's methods beside the full cache, timed in turns: the one speed that nights can compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from velox_eval.methods import MethodConfig, resolve
from velox_eval.pipelines.matrix import PlannedRun, SweepPlan
from velox_eval.pipelines.sweep import FAILURES
from velox_eval.records.config import canonical_json
from velox_eval.runs.bench_runs import bundled_prompts

if TYPE_CHECKING:
    from velox_eval.engine.models import LoadedModel

STEPS = 8  # timed together
REPEATS = 9
ROWS = 4  # the full cache has so many times the budget's rows
DEFAULT_BATCH = 8


def step_ratios(
    plan: SweepPlan, load: Callable[[str], LoadedModel], note: Callable[[str], None], *, repeats: int = REPEATS
) -> dict[str, tuple[float, ...]]:
    """Returns by label how often a method's decode step fits into the full cache's, by repeat.

    Methods of one model and budget are timed in the same turns, at the suite's batch (8 where it names none); one
    that several tasks share is timed once. What cannot be timed so is left out, and `note` is told why.
    """
    groups: dict[tuple[str, int], dict[str, tuple[MethodConfig, list[str]]]] = {}
    for run in plan.runs:
        method = resolved(run)
        if method.budget is None or method.variant.installed:
            continue  # the full cache itself, shares of each sample's length, and caches that decode one at a time
        kind = canonical_json([method.label, dict(method.params)])
        group = groups.setdefault((run.options.model, method.budget), {})
        group.setdefault(kind, (method, []))[1].append(run.label)
    found: dict[str, tuple[float, ...]] = {}
    for (model, budget), alike in groups.items():
        methods = [method for method, _ in alike.values()]
        try:
            ratios = _timed(plan, load(model), methods, budget, repeats)
        except FAILURES as error:
            note(f"steps at budget {budget} could not be timed: {' '.join(str(error).split())}")
            continue
        for (_, labels), ratio in zip(alike.values(), ratios, strict=True):
            found |= dict.fromkeys(labels, ratio)
    return found


def resolved(run: PlannedRun) -> MethodConfig:
    """Returns the run's method with its parameters and budget."""
    return resolve(run.options.method, run.options.settings, budget=run.budget, keep=run.options.keep)


def _timed(
    plan: SweepPlan, loaded: LoadedModel, methods: list[MethodConfig], budget: int, repeats: int
) -> list[tuple[float, ...]]:
    from velox_eval.engine.bench import Bench

    settings: dict[str, Any] = {"batch": plan.suite.batch_size or DEFAULT_BATCH, "repeats": repeats}
    bench = Bench(loaded, bundled_prompts(), prefill_step=plan.suite.prefill_step, steps=STEPS)
    rows = ROWS * budget if loaded.context_length is None else min(ROWS * budget, loaded.context_length - 1)
    return bench.full_over(methods, context=rows, **settings)
