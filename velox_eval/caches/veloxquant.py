"""BridgedCache: a cache of the installed package (VeloxQuant-MLX 0.94.15) as it is, counted by us.

The package's cache decides, stores and masks; this wrapper passes the model's calls on and measures. Its caches
inherit `merge` from mlx-lm's KVCache, and mlx-lm's batching swaps whatever has it for a plain cache: the wrapper
has no such attribute.

What is counted, from arrays and not from the package's counters (those are recorded beside ours as `reported`):

- rows: as many as the next step would attend to, from the arrays that hold them;
- row bytes: the buffers [1, H, C, ...] that hold a row each (keys and values; packed codes where a method has no
  keys), free slots left out, so a method that stores float16 counts half of a float32 model's row;
- auxiliary bytes: every other byte the cache can reach, overlapping memory once: scores, positions, code books, a
  second copy of the rows, what was returned last and is still held. What layers share is counted in the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from velox_eval.caches.counted import CountedCache
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods.spec import Value
from velox_eval.methods.veloxquant import PREFIX, package, package_config
from velox_eval.mlx import mx
from velox_eval.mlx_lm import KVCache

AUX_EVERY = 32  # decode steps between two looks at the auxiliary arrays; chunks and the end are always looked at
_SHARED = ("_coordinator", "_coord")  # attributes that hold what the layers have in common
_FIGURES = ("bytes", "bytes_total", "ratio")  # endings of the package's own counters
_UNIFORM = "StreamingLLMKVCache"  # keeps the same positions in every head


def bridged_caches(
    model: Any, layers: Sequence[int], name: str, params: Mapping[str, Value], budget: int | None
) -> list[BridgedCache]:
    """Returns the package's caches for these layers of `model`, in order, built together as its methods need.

    Raises ConfigError for settings the package refuses, MethodError for a model it does not know how to serve.
    """
    modules = list(getattr(model, "layers", ()))
    if len(modules) <= max(layers):
        raise MethodError(f"{PREFIX}{name}: this model's layers cannot be told apart, which the package needs")
    view = _Layers([modules[layer] for layer in layers], model)
    try:
        caches = package().KVCacheBuilder.for_model(view, package_config(name, params, budget))
    except ValueError as error:
        raise ConfigError(f"{PREFIX}{name}: {error}") from error
    plain = [layer for layer, cache in zip(layers, caches, strict=True) if type(cache) is KVCache]
    if plain:
        raise MethodError(f"{PREFIX}{name}: the package finds no attention in layers {plain} of this model")
    return [BridgedCache(cache, name, budget, first=index == 0) for index, cache in enumerate(caches)]


class _Layers:
    """A model as the package's builder sees it: only the layers whose caches it builds."""

    def __init__(self, layers: list[Any], model: Any) -> None:
        self.layers = layers
        self.args = getattr(model, "args", None)
        if hasattr(model, "language_model"):
            self.language_model = model.language_model


class BridgedCache(CountedCache):
    """One layer's cache of the package; one sequence. `first`: counts what the layers share."""

    def __init__(self, theirs: Any, name: str, budget: int | None, *, first: bool) -> None:
        super().__init__(budget)
        self.theirs = theirs
        self.name = name
        self.first = first
        self._incoming_row_bytes = 0
        self._steps = 0

    # What the model asks.

    @property
    def offset(self) -> int:
        """Returns the position of the next token."""
        return int(self.theirs.offset)

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the package's mask for the coming tokens."""
        return self.theirs.make_mask(*args, **kwargs)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Hands rows [1, H, S, D] over and returns what the package attends to.

        Raises MethodError for several sequences, and with the package's words where it fails.
        """
        if keys.shape[0] != 1:
            raise MethodError(f"{PREFIX}{self.name} works on one sequence, but {keys.shape[0]} came in")
        new = keys.shape[2]
        try:
            held_keys, held_values = self.theirs.update_and_fetch(keys, values)
        except (ValueError, RuntimeError) as error:
            raise MethodError(f"{PREFIX}{self.name}: {error}") from error
        self._incoming_row_bytes = (keys.nbytes + values.nbytes) // new
        self.tokens_seen = [self.tokens_seen[0] + new]
        self.rows = [self._held_rows()]
        self.peak_rows = [max(self.peak_rows[0], held_keys.shape[2])]
        self.peak_slots = max(self.peak_slots, *(array.shape[2] for array in self._row_arrays()))
        self._steps = 0 if new > 1 else self._steps + 1
        if self._steps % AUX_EVERY == 0:
            self._note_aux()
        return held_keys, held_values

    # Counting.

    def finish_prompt(self) -> None:
        """Looks at the auxiliary arrays once the prompt is in."""
        self._note_aux()

    def _note_aux(self) -> None:
        self.peak_aux_bytes = max(self.peak_aux_bytes, self.aux_bytes)

    def _held_rows(self) -> int:
        """Rows the next step attends to beside its own; the package names them in one of four ways."""
        theirs = self.theirs
        for name in ("_positions", "_kept_positions"):
            positions = getattr(theirs, name, None)
            if positions is not None:
                return int(positions.shape[-1])
        if isinstance(getattr(theirs, "_bh_keys", None), mx.array):
            return int(theirs._bh_keys.shape[1])
        states = getattr(theirs, "_states", None)
        if isinstance(states, list) and states and hasattr(states[0], "keys"):
            return int(states[0].keys.shape[0])
        return int(theirs.offset)

    @property
    def positions_known(self) -> bool:
        """Whether the package says which row every head kept (or every row is there)."""
        return self.rows == self.tokens_seen or self._their_positions() is not None

    def kept_positions(self) -> mx.array:
        """Returns int32 [1, H, rows]: the position of each row; -1 where the package does not say."""
        rows, seen = self.rows[0], self.tokens_seen[0]
        heads = self._row_arrays()[0].shape[1]
        known = self._their_positions()
        if known is None:
            known = mx.arange(rows, dtype=mx.int32) if rows == seen else mx.full((rows,), -1, mx.int32)
        return mx.broadcast_to(known.astype(mx.int32), (1, heads, rows))

    def _their_positions(self) -> mx.array | None:
        theirs: Any = self.theirs
        rows = self.rows[0]
        flat: mx.array | None = getattr(theirs, "_bh_positions", None)
        if flat is not None:  # [H, slots], rows in front
            return flat[None, :, :rows]
        for name in ("_positions", "_kept_positions"):
            positions: mx.array | None = getattr(theirs, name, None)
            if positions is not None and (positions.ndim == 3 or type(theirs).__name__ == _UNIFORM):
                return positions if positions.ndim == 3 else positions[:, None]
        return None  # snapkv shows one head's, pyramidkv and squeeze none

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as it is stored, all heads."""
        return sum(array.nbytes // array.shape[2] for array in self._row_arrays())

    @property
    def full_row_bytes(self) -> int:
        """Bytes of one row as the model hands it over."""
        return self._incoming_row_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the buffers that hold rows, free slots included."""
        return sum(array.nbytes for array in self._row_arrays())

    @property
    def aux_bytes(self) -> int:
        """Bytes reachable beside the row buffers; what layers share counts in the first."""
        everything = _spans(self._arrays())
        shared = _spans(_reach([getattr(self.theirs, name, None) for name in _SHARED]))
        counted = _covered(everything + shared)
        return counted - (0 if self.first else _covered(shared)) - _covered(_spans(iter(self._row_arrays())))

    def _row_arrays(self) -> list[mx.array]:
        """The buffers [1, H, C, ...] that hold the rows."""
        own = [a for a in (self.theirs.keys, self.theirs.values) if isinstance(a, mx.array)]
        if len(own) == 2:
            return own
        rows = self.theirs.offset
        found = [a for a in _reach(vars(self.theirs)) if a.ndim == 4 and a.shape[0] == 1 and a.shape[2] >= rows]
        widest = max((a.shape[2] for a in (own or found)), default=0)
        arrays = [a for a in found if a.shape[2] == widest]
        if not arrays:
            raise MethodError(f"{PREFIX}{self.name}: no array of the package's cache holds the rows")
        return arrays

    def _arrays(self) -> Iterator[Any]:
        return _reach([value for name, value in vars(self.theirs).items() if name not in _SHARED])

    @property
    def state(self) -> list[mx.array]:
        """All arrays held, for mx.eval."""
        return [array for array in _reach(vars(self.theirs)) if isinstance(array, mx.array)]

    @state.setter
    def state(self, _value: Any) -> None:
        raise MethodError("the package's caches cannot be restored from arrays alone; prefill the prompt again")

    @property
    def reported(self) -> dict[str, float]:
        """What the package's own counters say of this layer."""
        figures = {}
        for name in dir(type(self.theirs)):
            if name.endswith(_FIGURES) and isinstance(getattr(type(self.theirs), name), property):
                value = getattr(self.theirs, name)
                if isinstance(value, (int, float)):
                    figures[name] = float(value)
        return figures


def _reach(root: Any) -> Iterator[Any]:
    """Yields every array (mlx or NumPy) reachable through containers and the package's own objects, once."""
    seen, waiting = set[int](), [root]
    while waiting:
        item = waiting.pop()
        if item is None or isinstance(item, (str, bytes, int, float)) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (mx.array, np.ndarray)):
            yield item
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
        elif type(item).__module__.startswith("veloxquant_mlx."):
            waiting.extend(vars(item).values() if hasattr(item, "__dict__") else ())
            waiting.extend(getattr(item, name, None) for name in getattr(type(item), "__slots__", ()))


def _spans(arrays: Iterator[Any]) -> list[tuple[int, int]]:
    """Returns the memory (start, end) of each array; reshaped and sliced views lie in what they view."""
    spans = []
    for array in arrays:
        if isinstance(array, mx.array):
            mx.eval(array)
            array = np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
        start, end = np.lib.array_utils.byte_bounds(array)
        spans.append((start, end))
    return spans


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Returns the bytes that the spans cover together."""
    covered, reached = 0, 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
