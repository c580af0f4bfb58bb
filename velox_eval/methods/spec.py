"""What a method is, without mlx: names, parameters with bounds, papers, how it differs from each.

A method's file defines its `SPEC` and its Policy classes; `velox_eval.methods` collects the SPECs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from velox_eval.errors import ConfigError, unknown_name

Value = int | float | str | bool


@dataclass(frozen=True)
class Parameter:
    """A method's parameter: its default gives its type; bounds are inclusive."""

    name: str
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, given: Value) -> Value:
        """Returns the value in the parameter's type. Raises ConfigError naming value and bounds."""
        kind = type(self.default)
        try:
            if kind is bool:
                value: Value = given if isinstance(given, bool) else _parse_bool(str(given))
            elif kind is int and isinstance(given, float) and not given.is_integer():
                raise ValueError
            else:
                value = kind(given)
        except ValueError as error:
            raise ConfigError(f"{self.name}={given!r} is not a valid {kind.__name__}") from error
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.name}={value!r} is not one of {', '.join(self.choices)}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and not self._in_bounds(float(value)):
            raise ConfigError(f"{self.name}={value} must be {self.bounds}")
        return value

    def _in_bounds(self, value: float) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    @property
    def bounds(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"at least {self.minimum:g}"
        if self.maximum is not None:
            return f"at most {self.maximum:g}"
        return type(self.default).__name__


def _parse_bool(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise ValueError


def _no_check(_budget: int, _params: Mapping[str, Value]) -> None:
    return None


def _same_for_all(budget: int, _params: Mapping[str, Value], layers: int) -> list[int | None]:
    return [budget] * layers


def skip_first_layers(budget: int, params: Mapping[str, Value], layers: int) -> list[int | None]:
    """Returns the budget of each layer: none for the first `skip_layers` layers, `budget` for the others.

    Raises ConfigError when no layer is left.
    """
    skipped = int(params["skip_layers"])
    if skipped >= layers:
        raise ConfigError(f"skip_layers={skipped} leaves none of the {layers} layers to evict from")
    return [None] * skipped + [budget] * (layers - skipped)


@dataclass(frozen=True)
class Variant:
    """One way to run a method.

    `check(budget, params)` raises ConfigError for settings that cannot work, naming both values.
    `min_budget(params)` is the smallest budget `check` accepts.
    `policy(params, layer)` builds one layer's Policy (imports mlx).
    `layer_budgets(budget, params, layers)` shares the budget out over the layers (mean: the budget; None: a layer
    that keeps everything, and is not part of the mean).
    `while_reading(session)` returns a context that watches the model read the prompt.
    `after_prefill(session)` is what the method does once the prompt is in, before any row of it is cut;
    `fits_by_length`: it gives layers their budgets and looks at nothing but the prompt's length.
    `passes(session)` yields (rows kept, tokens) of every pass of its own that it will run over the session's prompt.
    """

    policy: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    capacity: str
    differs: str
    min_budget: Callable[[Mapping[str, Value]], int] = lambda _params: 1
    check: Callable[[int, Mapping[str, Value]], None] = _no_check
    needs_queries: bool = False
    needs_directions: bool = False  # of the model's queries, from `velox-eval calibrate`
    needs_session: bool = False  # waits for the end of the prompt, which only a MethodSession knows
    query_aware: bool = True  # what it keeps of a context may depend on the question that follows it
    installed: str = ""  # the installed package's method whose own caches run; then `policy` is never asked for
    layer_budgets: Callable[[int, Mapping[str, Value], int], list[int | None]] = _same_for_all
    while_reading: Callable[[Any], AbstractContextManager[None]] | None = None
    after_prefill: Callable[[Any], None] | None = None
    fits_by_length: bool = False
    passes: Callable[[Any], Iterable[tuple[int, int]]] | None = None


@dataclass(frozen=True)
class MethodSpec:
    """One method of the field and the variants of it that run here."""

    name: str
    family: str
    ranks_by: str
    paper: str  # title, venue, arXiv number; "-" for controls
    code: str  # official code, "-" where there is none
    variants: Mapping[str, Variant]
    default_budget: int | None = 512  # None: the method has no budget (full)
    evicts_unasked: bool = False  # it evicts although it has no budget

    @property
    def evicts(self) -> bool:
        """Whether it ever drops a row."""
        return self.default_budget is not None or self.evicts_unasked

    def variant(self, name: str) -> Variant:
        """Returns the variant of that name. Raises ConfigError naming the known ones."""
        if name not in self.variants:
            raise ConfigError(unknown_name(f"variant of {self.name}", name, self.variants))
        return self.variants[name]


@dataclass(frozen=True)
class MethodConfig:
    """A method ready to run: variant, every parameter with a value, and one of budget or keep (or neither: full)."""

    spec: MethodSpec
    variant_name: str
    params: Mapping[str, Value]
    budget: int | None = None
    keep: float | None = None

    @property
    def variant(self) -> Variant:
        """The variant's definition."""
        return self.spec.variants[self.variant_name]

    @property
    def label(self) -> str:
        """The name a user types: `morphkv`, `morphkv:paper`."""
        return self.spec.name if self.variant_name == "adapted" else f"{self.spec.name}:{self.variant_name}"

    def budget_for(self, total_tokens: int) -> int | None:
        """Rows per layer and KV head for a sample of `total_tokens` (prompt + max new tokens).

        `keep` gives floor(keep x total), at least the smallest legal budget; None for a method without a budget.
        """
        if self.spec.default_budget is None:
            return None
        if self.keep is None:
            return self.budget
        wanted = int(self.keep * total_tokens + 1e-9)  # 0.7 x 10 is 7, whatever binary fractions say
        return max(wanted, self.variant.min_budget(self.params))
