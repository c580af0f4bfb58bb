"""attention_tap: lets eviction caches supply their own mask and see the queries and, on a CPU, the logits and weights.

Most mlx-lm model files import `scaled_dot_product_attention` by name, with the cache as an argument. Inside
`attention_tap(model)` that name, in every module the model's layers come from, is a wrapper that treats calls
with a CountedCache and passes all others through. So two models, or a model and a judge, live side by side.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from velox_eval.caches.attention import fits, one_token
from velox_eval.caches.counted import CountedCache
from velox_eval.mlx import mx

NAME = "scaled_dot_product_attention"

_lock = threading.Lock()
_installed: dict[ModuleType, tuple[Callable[..., mx.array], int]] = {}  # module -> (original, users)


@contextmanager
def attention_tap(model: Any) -> Iterator[None]:
    """Taps the attention of `model` (an mlx nn.Module) while the context is open; nesting is counted."""
    modules = _attention_modules(model)
    with _lock:
        for module in modules:
            original, users = _installed.get(module, (getattr(module, NAME), 0))
            _installed[module] = (original, users + 1)
            if users == 0:
                setattr(module, NAME, _tapped(original))
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                original, users = _installed.pop(module)
                if users > 1:
                    _installed[module] = (original, users - 1)
                else:
                    setattr(module, NAME, original)


def _attention_modules(model: Any) -> list[ModuleType]:
    names = {type(part).__module__ for part in model.modules()}
    loaded = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in loaded if hasattr(module, NAME)]


def _tapped(original: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def attention(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any = None,
        scale: float = 1.0,
        mask: Any = None,
        **rest: Any,
    ) -> mx.array:
        if not isinstance(cache, CountedCache):
            return original(queries, keys, values, cache=cache, scale=scale, mask=mask, **rest)
        mask = cache.mask_for(queries.shape[2], keys.shape[2], mask)
        if fits(queries, keys, values, mask, rest):
            out, lent = one_token(queries, keys, values, scale, mask, cache.probe)
        else:
            out, lent = original(queries, keys, values, cache=cache, scale=scale, mask=mask, **rest), None
        cache.attended(queries, scale, lent)
        return out

    return attention
