"""Turning stored keys back: the rotation a layer's own RoPE gave a key, undone by a number of positions.

RoPE turns each pair of a key's features by its position times the pair's frequency, so a key stored at one position
is moved to another by turning it by the difference: one step from what is stored, whatever happened in between.
"""

from __future__ import annotations

from typing import Any

from velox_eval.errors import MethodError
from velox_eval.methods.policy import Layer
from velox_eval.mlx import mx

_STEP = 256  # the table of angles grows by this many positions


class Rotation:
    """The rotary embedding of a layer's keys: which features it turns, in which pairs, how fast.

    Raises MethodError, naming what was found, unless the layer has exactly one, mlx's plain RoPE (scaled or not) or
    mlx-lm's Llama3RoPE or YarnRoPE: what others do to a key depends on more than its position.
    """

    def __init__(self, layer: Layer) -> None:
        from mlx.nn.layers.positional_encoding import RoPE
        from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE

        parts = [] if layer.module is None else layer.module.modules()
        found = [part for part in parts if _is_positional(part)]
        if len(found) != 1 or type(found[0]) not in (RoPE, Llama3RoPE, YarnRoPE):
            kinds = ", ".join(sorted({type(part).__name__ for part in found})) or "no rotary module"
            raise MethodError(
                f"positions inside the cache need a plain, llama3-scaled or yarn RoPE in every layer, but evicting "
                f"layer {layer.index} has {kinds}: use the adapted variant, which keeps positions as they are"
            )
        rope, plain = found[0], type(found[0]) is RoPE
        self.dims: int = rope.dims
        self.traditional: bool = rope.traditional  # pairs are neighbours instead of halves
        self._base: float | None = rope.base if plain else None
        self._scale: float = rope.scale if plain else 1.0
        self._frequencies: mx.array | None = None if plain else rope._freqs
        numbers = None if plain else rope._freqs.tolist()
        self._name = f"angles of {self.dims} {self._base} {self._scale} {numbers}"
        self._shared = layer.shared  # layers of a session use one table

    def back(self, keys: mx.array, steps: mx.array, longest: int) -> mx.array:
        """Returns `keys` [B, H, C, D] as they would be `steps` positions earlier, in their own type.

        `steps` int32 [B, H, C] (or [B, 1, C] for all heads) from 0 to at most `longest`; 0 changes nothing.
        """
        half = self.dims // 2
        angles = mx.take(self._table(longest), steps, axis=0)
        cosine, sine = angles[..., :half], angles[..., half:]
        if self.traditional:
            pairs = keys[..., : self.dims].reshape(*keys.shape[:-1], half, 2)
            first, second = pairs[..., 0], pairs[..., 1]
        else:
            first, second = keys[..., :half], keys[..., half : self.dims]
        turned = [first * cosine + second * sine, second * cosine - first * sine]
        if self.traditional:
            turned = [mx.stack(turned, axis=-1).reshape(*keys.shape[:-1], self.dims)]
        rest = [keys[..., self.dims :]] if self.dims < keys.shape[-1] else []
        return mx.concatenate([*(part.astype(keys.dtype) for part in turned), *rest], axis=-1)

    def _table(self, longest: int) -> mx.array:
        """Cosines and sines [at least longest + 1, dims] of every number of positions, from mlx's own rope."""
        table = self._shared.get(self._name)
        if table is None or table.shape[0] <= longest:
            count = (longest // _STEP + 1) * _STEP
            unit = mx.concatenate([mx.ones((1, 1, count, self.dims // 2)), mx.zeros((1, 1, count, self.dims // 2))], -1)
            table = mx.fast.rope(
                unit,
                self.dims,
                traditional=False,
                base=self._base,
                scale=self._scale,
                offset=0,
                freqs=self._frequencies,
            )[0, 0]
            self._shared[self._name] = table
        return table


def _is_positional(part: Any) -> bool:
    name = type(part).__name__.lower()
    return not part.children() and any(word in name for word in ("rope", "rotary", "nope"))
