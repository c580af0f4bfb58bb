"""The arms of a study: methods with settings fitted to small budgets, on streams with two sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from velox_eval.errors import ConfigError, unknown_name
from velox_eval.mechanism.regimes import SINKS
from velox_eval.methods import METHODS, MethodConfig, Value, resolve

STUDIES = ("morphkv", "kvzip")
BUDGETS = (32, 64)
WINDOWS = ("window", "obs_window", "recent", "grace")  # parameters that protect or watch the newest rows
LEFT_OUT = {
    "full": "it keeps everything; it is what perturbation is measured against",
    "streaming_llm:paper": "it keeps streaming_llm's rows and turns their keys to other positions; the streams have no "
    "rotary embedding",
}


@dataclass(frozen=True)
class Arm:
    """A method under settings; `settings` may depend on the budget. `studies`: those whose documents have it."""

    label: str
    method: str
    settings: Callable[[int], Mapping[str, Value]] = field(default=lambda _budget: {})
    studies: tuple[str, ...] = ()

    def at(self, budget: int) -> MethodConfig:
        """Returns the method at a budget: two sinks, every window clipped to budget - sinks - 1."""
        chosen: dict[str, Value] = dict(self.settings(budget))
        if "n_sink" in default_parameters(self.method):
            chosen.setdefault("n_sink", SINKS)
        return fitted(self.method, budget, chosen, sinks=SINKS)


def default_parameters(method: str) -> dict[str, Value]:
    """Returns the parameters of `name[:variant]` at their defaults."""
    base, _, variant = method.partition(":")
    return {p.name: p.default for p in METHODS[base].variant(variant or "adapted").parameters}


def fitted(
    method: str, budget: int, settings: Mapping[str, Value] | None = None, *, sinks: int | None = None
) -> MethodConfig:
    """Returns the method with every window clipped, so that sinks (None: its default) and a row beside it fit in."""
    known, chosen = default_parameters(method), dict(settings or {})
    room = budget - (int(known.get("n_sink", 0)) if sinks is None else sinks) - 1
    chosen |= {name: min(int(chosen.get(name, known[name])), room) for name in WINDOWS if name in known}
    return resolve(method, chosen, budget=budget)


def _morphkv(window: int) -> Arm:
    return Arm(f"morphkv window={window}", "morphkv", lambda _budget: {"window": window}, ("morphkv",))


def _kvzip(probe: str) -> Arm:
    return Arm(f"kvzip probe={probe}", "kvzip", lambda _budget: {"probe": probe}, ("kvzip",))


DOCUMENT_ARMS = (
    _morphkv(1),
    _morphkv(8),
    _morphkv(32),
    _kvzip("latest"),
    _kvzip("context"),
    Arm("h2o cumulative", "h2o", lambda _budget: {"grace": 0, "decay": 1.0}, STUDIES),
    Arm("h2o recent half", "h2o", lambda budget: {"grace": budget // 2, "decay": 1.0}, STUDIES),
    Arm("h2o true queries", "h2o:paper", lambda _budget: {"recent_ratio": 0.0}, STUDIES),
    Arm("morphkv:paper", "morphkv:paper", studies=("morphkv",)),
    Arm("kvzip:paper", "kvzip:paper", studies=("kvzip",)),
    Arm("tova", "tova", studies=STUDIES),
    Arm("sliding_window", "sliding_window", studies=STUDIES),
    Arm("random", "random", studies=STUDIES),
)


def family_arms() -> list[Arm]:
    """Returns one arm a registered method and variant, at its defaults; LEFT_OUT says which are not and why."""
    made = []
    for name, spec in METHODS.items():
        for variant in spec.variants:
            label = name if variant == "adapted" else f"{name}:{variant}"
            if spec.default_budget is not None and label not in LEFT_OUT:
                made.append(Arm(label, label))
    return made


def study_arms(studies: Iterable[str], methods: str) -> list[Arm]:
    """Returns the arms of the studies and of `methods`: "documents" (no more), "all", or names separated by commas.

    Raises ConfigError for an unknown study or method, and for a method that is left out, with the reason.
    """
    wanted = set(studies)
    for study in wanted - set(STUDIES):
        raise ConfigError(unknown_name("study", study, [*STUDIES, "all"]))
    arms = {arm.label: arm for arm in DOCUMENT_ARMS if wanted & set(arm.studies)}
    known = {arm.label: arm for arm in family_arms()}
    named = methods not in ("documents", "all")
    for name in _names(methods, known):
        if named or not any(_same(known[name], arm) for arm in arms.values()):
            arms.setdefault(name, known[name])
    return list(arms.values())


def _same(one: Arm, other: Arm) -> bool:
    """Whether two arms are one method under the same settings at the budgets of the studies."""
    return one.method == other.method and all(one.at(b).params == other.at(b).params for b in BUDGETS)


def _names(methods: str, known: Mapping[str, Arm]) -> list[str]:
    if methods == "documents":
        return []
    if methods == "all":
        return list(known)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise ConfigError("--methods names no method: give documents, all, or names separated by commas")
    for name in names:
        if name in LEFT_OUT:
            raise ConfigError(f"{name} has no place in the mechanism study: {LEFT_OUT[name]}")
        if name not in known:
            raise ConfigError(unknown_name("method", name, known))
    return names
