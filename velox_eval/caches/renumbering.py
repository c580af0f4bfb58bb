"""Whether turning a stored key really moves it to another position, asked of the model itself.

A single token in an empty cache attends to itself alone, so its hidden states are the same at every position and
only its keys' rotation differs. So what a layer stores for it at one position, turned back, must be what it stores
at position 0; where that fails (keys without RoPE, latents of multi-head latent attention), positions inside the
cache cannot be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from velox_eval.errors import MethodError
from velox_eval.methods.rotation import Rotation
from velox_eval.mlx import mx
from velox_eval.mlx_lm import BaseCache, make_prompt_cache

AT = 37  # the position tried
TOLERANCE = {mx.float32: 1e-3, mx.float16: 1e-2, mx.bfloat16: 5e-2}  # of the largest feature


class _At(BaseCache):  # type: ignore[misc]
    """An empty cache whose next token is at `offset`; it keeps that token's keys."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.keys: mx.array | None = None

    def make_mask(self, *_args: Any, **_kwargs: Any) -> None:
        return None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = keys
        return keys, values


def check_rotations(model: Any, layers: Sequence[int], rotations: Sequence[Rotation]) -> None:
    """Raises MethodError unless each rotation moves what its layer (index in the model's caches) stores."""
    stored = [_keys_at(model, layers, offset) for offset in (0, AT)]
    for layer, rotation, here, there in zip(layers, rotations, *stored, strict=True):
        turned = rotation.back(there, mx.full((1, 1, 1), AT, mx.int32), AT)
        off, size = (float(mx.abs(array.astype(mx.float32)).max()) for array in (turned - here, here))
        if not off <= TOLERANCE[here.dtype] * size:
            raise MethodError(
                f"positions inside the cache cannot be had: what layer {layer} of this model "
                f"({type(model).__module__}) stores does not move by its RoPE; use the adapted variant"
            )


def _keys_at(model: Any, layers: Sequence[int], offset: int) -> list[mx.array]:
    caches = make_prompt_cache(model)
    for layer in layers:
        caches[layer] = _At(offset)
    mx.eval(model(mx.array([[1]]), cache=caches))
    return [caches[layer].keys for layer in layers]
