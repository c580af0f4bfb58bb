"""veloxquant/NAME: the installed package's own caches (VeloxQuant-MLX, extra `veloxquant`) under our accounting.

Specs are made when they are asked for, from the package's own configuration, so that listing methods loads
neither the package nor mlx. What a run measures is what the package does, with its casts to float16 and its order
of work; how its rule is written again on our caches is `--method NAME`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from velox_eval.errors import ConfigError, unknown_name
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.mlx import mx

PREFIX = "veloxquant/"
VERSION = "0.94.15"  # what the tables here and the accounting were checked against
DEFAULT_BUDGET = 512  # the package's, for every method that has one
UNSET = "none"  # how a parameter that the package leaves open is written


@dataclass(frozen=True)
class Installed:
    """One method of the package: what it does, and the fields of its configuration that belong to it."""

    does: str
    prefix: str  # of its fields
    budgeted: bool = False  # it has a field <prefix>_budget, or a window that --budget sets
    also: tuple[str, ...] = ()  # fields without the prefix
    rows: str = ""  # what it may hold, where that is neither the budget nor every token
    notes: str = ""

    @property
    def capacity(self) -> str:
        """The rows it may hold, in words."""
        return self.rows or ("budget" if self.budgeted else "every token")


_GROWS = "budget + generated"
_LAYERED = "budgets over the layers whose mean is budget"
_EARLY = "evicts before attention, so a chunk longer than a layer's budget is not attended to whole"

# Which of these run was tried on mlx-lm 0.32.2 (tests/caches/test_veloxquant.py runs every one).
INSTALLED: Mapping[str, Installed] = {
    "adakv": Installed("quantises with bits shared out over heads", "adakv"),
    "age_tiered": Installed("quantises old rows harder than recent ones", "age"),
    "amc": Installed("quantises and cuts the rank of less salient rows", "amc"),
    "anchorkv": Installed("keeps anchors and the quantised rest", "anchorkv"),
    "cachegen": Installed("quantises for entropy coding", "cachegen"),
    "cam": Installed("evicts by attention and merges evicted values into kept ones", "cam", budgeted=True),
    "chunkkv": Installed("evicts whole chunks", "chunkkv", budgeted=True, rows="at most budget"),
    "curdkv": Installed("evicts by leverage scores of keys and values", "curdkv", budgeted=True),
    "gear": Installed("quantises, with low-rank and sparse correction", "gear"),
    "h2o": Installed("evicts by cumulative attention", "h2o", budgeted=True),
    "keyformer": Installed("evicts by attention with seeded Gumbel noise", "keyformer", budgeted=True),
    "kitty": Installed("quantises channels by their variance", "kitty"),
    "kivi": Installed("quantises keys by channel and values by token", "kivi", also=("bit_width_inlier",)),
    "kivi_sink": Installed("KIVI with protected sinks", "kivi", also=("bit_width_inlier", "n_sink_tokens")),
    "knorm": Installed("evicts keys of high norm", "knorm", budgeted=True),
    "kvquant": Installed("quantises to non-uniform levels, outliers apart", "kvquant"),
    "kvtc": Installed("transform coding", "kvtc"),
    "kvzip": Installed("evicts what rebuilding the kept context relies on least", "kvzip", budgeted=True),
    "minicache": Installed("merges the rows of neighbouring layers", "minicache"),
    "morphkv": Installed("evicts by attention of a window of recent keys", "morphkv", budgeted=True),
    "nestedkv": Installed("evicts the prompt by scores at several scales", "nestedkv", budgeted=True, rows=_GROWS),
    "nsnquant": Installed("quantises to a universal codebook", "nsn"),
    "palu": Installed("projects keys and values to a low rank", "palu"),
    "pyramidkv": Installed(
        "evicts by attention, budgets falling by depth", "pyramid", budgeted=True, rows=_LAYERED, notes=_EARLY
    ),
    "qfilters": Installed(
        "evicts by projection on a frozen direction",
        "qfilters",
        budgeted=True,
        rows="every token until its direction is frozen, then budget",
    ),
    "rocketkv": Installed(
        "evicts the prompt, then attends to selected pages",
        "rocketkv",
        rows="a share of the prompt, + generated",
        notes="has a compression ratio instead of a budget",
    ),
    "skvq": Installed("quantises behind a sliding window", "skvq"),
    "snapkv": Installed("evicts the prompt by its last window's attention", "snap", budgeted=True, rows=_GROWS),
    "squeeze": Installed(
        "evicts by attention, budgets from the layers' concentration",
        "squeeze",
        budgeted=True,
        rows=_LAYERED,
        notes=_EARLY,
    ),
    "streaming_llm": Installed("keeps sinks and a window", "stream", budgeted=True),
    "svdq": Installed("quantises keys in a basis of singular vectors", "svdq"),
    "tova": Installed("evicts by the latest key's attention", "tova", budgeted=True),
    "turboquant_rvq": Installed(
        "quantises keys in two stages after a rotation", "turboquant", also=("bit_width_inlier",)
    ),
    "xkv": Installed("projects keys to a subspace that layers share", "xkv"),
    "xquant": Installed("reuses quantised rows across layers", "xquant"),
    "zipcache": Installed("quantises by salience", "zipcache"),
}
_NO_CACHE = "the package has no cache for it that mlx-lm can drive"
_NO_CODES = "the package needs a trained codebook for it, and draws a random one without"
NOT_SERVED: Mapping[str, str] = {
    "a2ats": _NO_CODES,
    "polar": _NO_CACHE,
    "qjl": _NO_CACHE,
    "spectral": _NO_CACHE,
    "turboquant_mse": _NO_CACHE,
    "turboquant_prod": _NO_CACHE,
    "vecinfer": _NO_CODES,
}

# Fields with the right prefix that are no setting: the package fills them in itself, or no longer reads them.
_INTERNAL = ("resolved_budget", "resolved_bits", "rope_base")
_RENAMED = {"bit_width_inlier": "bits"}


@dataclass(frozen=True)
class PackageParameter(Parameter):
    """A field of the package's configuration; `kind` is its type where the default does not show it."""

    field: str = ""
    kind: type = str

    def parse(self, given: Value) -> Value:
        """Returns the value, `none` standing for a field left open. Raises ConfigError for another type."""
        if given == UNSET and self.default == UNSET:
            return given
        if self.kind is tuple:
            self._numbers(str(given))
            return str(given)
        return Parameter(self.name, self.kind(), self.help).parse(given)

    def _numbers(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in text.split(","))
        except ValueError:
            raise ConfigError(f"{self.name}={text!r} must be whole numbers with commas between them") from None

    def value(self, given: Value) -> Any:
        """Returns what the package's configuration takes."""
        if given == UNSET and self.default == UNSET:
            return None
        return self._numbers(str(given)) if self.kind is tuple else given


def package() -> Any:
    """Returns the package's module of configuration and builders.

    Raises ConfigError when the package is not installed, or in another version than the one checked.
    """
    if importlib.util.find_spec("veloxquant_mlx") is None:
        raise ConfigError('veloxquant/ methods need VeloxQuant-MLX: pip install "velox-eval[veloxquant]"')
    found = version("VeloxQuant-MLX")
    if found != VERSION:
        raise ConfigError(
            f"VeloxQuant-MLX {found} is installed, and its caches were checked at {VERSION}: "
            'pip install "velox-eval[veloxquant]"'
        )
    mx.default_device()  # a fast BLAS must be in the process before the package loads mlx
    return importlib.import_module("veloxquant_mlx.cache.base")


def installed_names() -> tuple[str, ...]:
    """Returns the names that `resolve` takes, `veloxquant/` included."""
    return tuple(PREFIX + name for name in INSTALLED)


def installed_spec(name: str) -> MethodSpec:
    """Returns the spec of `veloxquant/NAME`. Raises ConfigError for a name the package lacks or cannot serve."""
    base = name.removeprefix(PREFIX)
    if base in NOT_SERVED:
        raise ConfigError(f"{name} cannot run: {NOT_SERVED[base]}")
    if base not in INSTALLED:
        raise ConfigError(unknown_name("method", name, installed_names()))
    method = INSTALLED[base]
    own = package()
    variant = Variant(
        policy=_no_policy,
        parameters=_parameters(own.KVCacheConfig, base, method),
        capacity=method.capacity,
        differs="; ".join(part for part in (_ALWAYS, method.notes) if part),
        min_budget=lambda params: _least(base, params),
        check=lambda budget, params: _check(base, budget, params),
        installed=base,
    )
    return MethodSpec(
        name=name,
        family="veloxquant",
        ranks_by=method.does,
        paper=f"as documented by VeloxQuant-MLX {VERSION}",
        code="https://github.com/rajveer43/VeloxQuant-MLX",
        variants={"adapted": variant},
        default_budget=DEFAULT_BUDGET if method.budgeted else None,
        evicts_unasked=not method.budgeted and method.capacity != "every token",
    )


_ALWAYS = (
    "the installed package's own cache, with its types (most keep float16 whatever the model's), its order of work "
    "and one sequence at a time"
)


def _no_policy(*_args: Any) -> Any:
    raise AssertionError("the package's caches take no policy")


def _parameters(config: Any, base: str, method: Installed) -> tuple[PackageParameter, ...]:
    hints = typing.get_type_hints(config, vars(importlib.import_module(config.__module__)))
    found = []
    for field in dataclasses.fields(config):
        own = field.name.startswith(method.prefix + "_") and not field.name.endswith(_INTERNAL)
        if (own or field.name in method.also) and field.name not in _set_by_budget(method):
            parameter = _parameter(field, hints[field.name], method)
            if parameter is not None:
                found.append(parameter)
    return tuple(found)


def _set_by_budget(method: Installed) -> tuple[str, ...]:
    if not method.budgeted:
        return ()
    return ("stream_window_size",) if method.prefix == "stream" else (f"{method.prefix}_budget",)


def _parameter(field: Any, hint: Any, method: Installed) -> PackageParameter | None:
    """The parameter a field becomes; None for arrays and other things that no text can set."""
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        kind: Any = str
    else:
        kind = tuple if typing.get_origin(hint) is tuple else typing.get_origin(kinds[0]) or kinds[0]
    if kind not in (int, float, bool, str, tuple):
        return None
    default = UNSET if field.default is None else field.default
    if field.name == "qfilters_on_low_retention":
        default = "ignore"  # what it kept is in every record; a warning a layer would say no more
    if kind is tuple:
        default = ",".join(str(part) for part in field.default)
    name = _RENAMED.get(field.name, field.name.removeprefix(method.prefix + "_"))
    return PackageParameter(name, default, f"the package's {field.name}", field=field.name, kind=kind)


def package_config(base: str, params: Mapping[str, Value], budget: int | None) -> Any:
    """Returns the package's configuration of method `base`; `budget` None leaves it to the package.

    Raises ConfigError for values the package refuses at once.
    """
    own, method = package(), INSTALLED[base]
    fields = {p.field: p.value(params[p.name]) for p in _parameters(own.KVCacheConfig, base, method)}
    if method.budgeted:
        rows = max(DEFAULT_BUDGET, _least(base, params)) if budget is None else budget
        [name] = _set_by_budget(method)
        fields[name] = rows - fields["stream_n_sink"] if method.prefix == "stream" else rows
    return own.KVCacheConfig(method=base, **fields)


def _check(base: str, budget: int, params: Mapping[str, Value]) -> None:
    """Raises ConfigError with the package's own words when its cache refuses the settings."""
    try:
        cache = package().KVCacheFactory.create(package_config(base, params, budget))
        row = mx.ones((1, 1, 1, 64))
        cache.update_and_fetch(row, row)  # some check only when the first row comes in
    except ValueError as error:
        raise ConfigError(f"{PREFIX}{base} refuses budget={budget}: {error}") from error


def _least(base: str, params: Mapping[str, Value]) -> int:
    """The smallest budget that the package accepts, found by asking it."""
    for budget in range(1, 1 << 16):
        try:
            _check(base, budget, params)
        except ConfigError:
            continue
        return budget
    raise ConfigError(f"{PREFIX}{base} refuses every budget with these settings")
