"""layer_tap: shows what a decoder layer's attention block makes of its input, to whoever owns the layer's cache.

A decoder layer takes hidden states and a cache, adds what its attention block gives, and normalises the sum before
its feed-forward block. Inside `layer_tap` the layer and that norm are of a subclass whose call also tells; weights,
names and identity stay. A call with somebody else's cache tells nothing, so sessions may overlap in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from velox_eval.errors import MethodError
from velox_eval.mlx import mx

Told = Callable[[mx.array, mx.array], None]

_lock = threading.Lock()
_watched: dict[int, _Watch] = {}  # by the layer's id


@dataclass
class _Listener:
    cache: Any
    told: Told
    before: mx.array | None = None  # the hidden states, while its layer runs with its cache


@dataclass
class _Watch:
    """One layer under watch, what it was, and who listens."""

    layer: Any
    norm: Any
    classes: tuple[type, type]
    listeners: list[_Listener] = field(default_factory=list)


@contextmanager
def layer_tap(layers: Sequence[tuple[Any, Any]], told: Callable[[int, mx.array, mx.array], None]) -> Iterator[None]:
    """Calls `told(i, before, after)` with hidden states [B, S, D] whenever layer i runs with its cache.

    `layers` are pairs (decoder layer, cache). `before` is the layer's input, `after` the same with what the attention
    block adds. Raises MethodError for a layer that is not built that way. Everything is restored at the end.
    """
    norms = [_norm_after_attention(layer) for layer, _ in layers]
    listeners = [
        _Listener(cache, lambda before, after, i=i: told(i, before, after))  # type: ignore[misc]
        for i, (_, cache) in enumerate(layers)
    ]
    with _lock:
        for (layer, _), norm, listener in zip(layers, norms, listeners, strict=True):
            _watch(layer, norm).listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            for (layer, _), listener in zip(layers, listeners, strict=True):
                _leave(layer, listener)


def _norm_after_attention(layer: Any) -> Any:
    """The norm that takes the sum of input and attention. Raises MethodError where no norm is known to."""
    before_mlp = getattr(layer, "pre_feedforward_layernorm", None)
    if before_mlp is not None:  # Gemma: post_attention_layernorm takes the attention's output alone
        return before_mlp
    after_attention = getattr(layer, "post_attention_layernorm", None)
    if after_attention is None or getattr(layer, "input_layernorm", None) is None:
        raise MethodError(
            f"the hidden states after attention cannot be seen in a {type(layer).__name__} of "
            f"{type(layer).__module__}: it has no norm between attention and feed-forward that is known here"
        )
    return after_attention


def _watch(layer: Any, norm: Any) -> _Watch:
    known = _watched.get(id(layer))
    if known is not None:
        return known
    watch = _Watch(layer, norm, (type(layer), type(norm)))
    _watched[id(layer)] = watch
    _become(layer, _telling_layer(watch))
    _become(norm, _telling_norm(watch))
    return watch


def _leave(layer: Any, listener: _Listener) -> None:
    watch = _watched[id(layer)]
    watch.listeners.remove(listener)
    if not watch.listeners:
        _become(watch.layer, watch.classes[0])
        _become(watch.norm, watch.classes[1])
        del _watched[id(layer)]


def _become(module: Any, cls: type) -> None:
    object.__setattr__(module, "__class__", cls)  # the module's own would drop the name from its parameters


def _subclass(cls: type, call: Callable[..., Any]) -> type:
    return type(cls.__name__, (cls,), {"__call__": call, "__module__": cls.__module__})


def _telling_layer(watch: _Watch) -> type:
    original = watch.classes[0].__call__

    def call(self: Any, hidden: mx.array, *args: Any, **rest: Any) -> Any:
        mine = [one for one in watch.listeners if any(given is one.cache for given in (*args, *rest.values()))]
        for one in mine:
            one.before = hidden
        try:
            return original(self, hidden, *args, **rest)
        finally:
            for one in mine:
                one.before = None

    return _subclass(watch.classes[0], call)


def _telling_norm(watch: _Watch) -> type:
    original = watch.classes[1].__call__

    def call(self: Any, hidden: mx.array) -> Any:
        for one in watch.listeners:
            if one.before is not None:
                one.told(one.before, hidden)
        return original(self, hidden)

    return _subclass(watch.classes[1], call)
