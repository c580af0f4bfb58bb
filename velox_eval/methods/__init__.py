"""The eviction methods: one file each, with its SPEC and its Policy. Importing this loads no mlx."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from velox_eval.errors import ConfigError, unknown_name
from velox_eval.methods.spec import MethodConfig, MethodSpec, Parameter, Value, Variant
from velox_eval.methods.veloxquant import PREFIX, installed_spec

__all__ = ["METHODS", "MethodConfig", "MethodSpec", "Parameter", "Value", "Variant", "method_spec", "resolve"]


def _collect() -> dict[str, MethodSpec]:
    specs: dict[str, MethodSpec] = {}
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(__path__):
        spec = getattr(importlib.import_module(f"{__name__}.{module.name}"), "SPEC", None)
        if isinstance(spec, MethodSpec):
            if spec.name in specs:
                raise ConfigError(f"methods/{found[spec.name]}.py and methods/{module.name}.py both name {spec.name!r}")
            specs[spec.name], found[spec.name] = spec, module.name
    return specs


METHODS: Mapping[str, MethodSpec] = _collect()


def method_spec(name: str) -> MethodSpec:
    """Returns the spec of a method of ours, or of `veloxquant/NAME`, which the installed package runs.

    Raises ConfigError for an unknown name (naming the nearest), or when the package is not installed.
    """
    if name.startswith(PREFIX):
        return installed_spec(name)
    if name not in METHODS:
        raise ConfigError(unknown_name("method", name, METHODS))
    return METHODS[name]


def resolve(
    name: str,
    settings: Mapping[str, Value] | None = None,
    *,
    budget: int | None = None,
    keep: float | None = None,
) -> MethodConfig:
    """Returns the method `name[:variant]` with every parameter set and its bounds checked.

    Raises ConfigError for an unknown name, variant or parameter (naming the nearest), for a value out of
    bounds, for both `budget` and `keep`, and for a budget that the other settings make impossible.
    """
    base, _, variant_name = name.partition(":")
    spec = method_spec(base)
    variant_name = variant_name or "adapted"
    variant = spec.variant(variant_name)
    known = {parameter.name: parameter for parameter in variant.parameters}
    params: dict[str, Value] = {p.name: p.default for p in variant.parameters}
    for key, given in (settings or {}).items():
        if key not in known:
            raise ConfigError(unknown_name(f"parameter of {name}", key, known))
        params[key] = known[key].parse(given)
    if spec.default_budget is None:
        return MethodConfig(spec, variant_name, params)
    if budget is not None and keep is not None:
        raise ConfigError(f"budget={budget} and keep={keep:g} are both given; give one of them")
    if keep is not None:
        if not 0 < keep <= 1:
            raise ConfigError(f"keep={keep:g} must be above 0 and at most 1")
        return MethodConfig(spec, variant_name, params, keep=keep)
    budget = spec.default_budget if budget is None else budget
    if budget < 1:
        raise ConfigError(f"budget={budget} must be at least 1")
    variant.check(budget, params)
    return MethodConfig(spec, variant_name, params, budget=budget)
