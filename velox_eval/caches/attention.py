"""One token's attention on a CPU, and what of it is lent to the method that chooses rows.

mlx's attention on a CPU is three plain products a query head. Here the query heads that share a KV head go through one
product, so that its keys are read once; a key that stands in for a query goes with them. Keys do not fit into a
processor's cache: a method that read them once more for its ranking would pay for that more than for all the rest.
Next come exponentials, so the weights are lent too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from velox_eval.caches.slots import rows_mask
from velox_eval.errors import MethodError
from velox_eval.mlx import mx


class Lent(NamedTuple):
    """What attention has at hand of one token's queries, and of a key in place of one: float32."""

    logits: mx.array  # [B, H, G + 1, C]: scaled, without the mask; the key's, scaled by 1/sqrt(D), come last
    weights: mx.array  # [B, H, G, C]: the queries' softmax over the rows that count; 0 for others


def lends() -> bool:
    """Returns whether attention here is `one_token` where it fits: on a CPU."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def fits(queries: mx.array, keys: Any, values: Any, mask: Any, rest: Mapping[str, Any]) -> bool:
    """Returns whether `one_token` computes this attention: one new token, float32, a plain mask, on a CPU."""
    return (
        queries.shape[2] == 1
        and lends()
        and all(isinstance(array, mx.array) and array.dtype == mx.float32 for array in (queries, keys, values))
        and (mask is None or (isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.shape[-3] == 1))
        and all(value is None for value in rest.values())
    )


def one_token(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None, probe: mx.array | None
) -> tuple[mx.array, Lent]:
    """Returns the attention [B, H_q, 1, Dv] of queries [B, H_q, 1, D], and what it lends.

    `mask` boolean [B or 1, 1, 1, C]: the rows that count. `probe` [B, H, 1, D]: keys that stand in for queries; without
    one, its logits are zeros.
    """
    batch, query_heads, _, dim = queries.shape
    heads = keys.shape[1]
    group = query_heads // heads
    asked = (queries * scale).reshape(batch, heads, group, dim)
    # Without a probe zeros take its place: a product of another shape would round in another way.
    beside = mx.zeros((batch, heads, 1, dim)) if probe is None else probe * (1.0 / float(dim) ** 0.5)
    asked = mx.concatenate([asked, beside], axis=2)
    logits = asked @ keys.swapaxes(-1, -2)
    own = logits[:, :, :group]
    weights = mx.softmax(own if mask is None else mx.where(mask, own, -mx.inf), axis=-1)
    return (weights @ values).reshape(batch, query_heads, 1, values.shape[3]), Lent(logits, weights)


def layer_mask(rows: list[int], new: int, slots: int, mask: Any) -> Any:
    """Returns the mask for `new` queries over `slots` rows, of which sequence b holds `rows[b]`, given the model's own.

    The model makes one mask from one layer's cache; where this layer holds other rows, its own replaces it. Raises
    MethodError where the model adds scores through its mask.
    """
    array = isinstance(mask, mx.array)
    boolean = array and mask.dtype == mx.bool_
    if new > 1:
        if not array or mask.shape[-1] == slots:
            return mask
        own: Any = "causal"
    else:
        own = rows_mask(rows)
    if not array or boolean:
        return own
    if mask.shape[-1] != slots or isinstance(own, str):
        raise MethodError("this model adds scores through its mask, and its layers hold different rows")
    return mask if own is None else mx.where(own, mask, -mx.inf)
