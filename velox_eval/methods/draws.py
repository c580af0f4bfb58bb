"""Seeded draws that depend on sample, layer, head and position only: never on batch, slot or chunk.

Two kinds: `keyed_uniform` draws MLX's random numbers by key, as VeloxQuant-MLX does, one a head and position;
`hashed_uniform` is an integer hash, cheap enough for one a head and pair of positions, and stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox_eval.methods.policy import Layer
from velox_eval.mlx import mx

GOLDEN = 0x9E3779B9  # odd, far from every simple fraction of 2^32
STRIDE = 1_000_003  # positions a stream has before it runs into the next one's
HEADS = LAYERS = 2**10
SAMPLES = 2**22
AHEAD = 64  # draws made together, since one costs nearly as much as many


def stream(layer: Layer, seed: int) -> mx.array:
    """Returns int64 [1, 1, 1]: the number of the layer's first stream; head h has the h-th after it.

    Of the first layer and a sample seeded 0 it is `seed`, as in VeloxQuant-MLX.
    """
    number = (layer.seed % SAMPLES * LAYERS + layer.index) * HEADS + seed
    return mx.array([[[number]]], mx.int64)


def by_head(streams: mx.array, heads: int) -> mx.array:
    """Returns int64 [B, heads, 1]: each head's stream, of the first ones int64 [B, 1, 1]."""
    return streams + mx.arange(heads, dtype=mx.int64)[:, None]


def keyed_uniform(streams: mx.array, draws: mx.array, low: float = 0.0) -> mx.array:
    """Returns float32 in [low, 1): what MLX draws with key `stream * 1_000_003 + draw`; the two broadcast."""
    number = streams * STRIDE + draws.astype(mx.int64)
    keys = mx.stack([number >> 32, number & 0xFFFFFFFF], axis=-1).astype(mx.uint32)
    drawn: mx.array = mx.vmap(lambda key: mx.random.uniform(low, 1.0, key=key))(keys.reshape(-1, 2))
    return drawn.reshape(number.shape)


def drawn_ahead(streams: mx.array, numbers: Sequence[int], old: mx.array | None, low: float = 0.0) -> mx.array:
    """Returns float32 [B, H, AHEAD] that `drawn` takes draw `numbers[b]` from, and the next ones as far as they go.

    `old` is what it returned for the number before; None, or after a leap: nothing that serves.
    """
    if old is not None and all(number % AHEAD for number in numbers):
        return old
    first = mx.array([number - number % AHEAD for number in numbers], mx.int32)[:, None, None]
    return keyed_uniform(streams, first + mx.arange(AHEAD, dtype=mx.int32), low)


def drawn(ahead: mx.array, numbers: Sequence[int]) -> mx.array:
    """Returns float32 [B, H, 1]: draw `numbers[b]` of each sequence's streams, from `drawn_ahead`."""
    places = [number % AHEAD for number in numbers]
    if len(set(places)) == 1:
        return ahead[..., places[0] : places[0] + 1]
    index = mx.broadcast_to(mx.array(places, mx.int32)[:, None, None], (*ahead.shape[:2], 1))
    return mx.take_along_axis(ahead, index, axis=-1)


def hashed_uniform(streams: mx.array, coordinates: Sequence[mx.array]) -> mx.array:
    """Returns float32 inside (0, 1) by a hash of the stream and integer coordinates, all broadcast.

    Coordinates are mixed in one after the other, so put what varies most last.
    """
    bits = mixed(streams.astype(mx.uint32) * GOLDEN + (streams >> 32).astype(mx.uint32))
    for coordinate in coordinates:
        bits = mixed(bits + coordinate.astype(mx.uint32) * GOLDEN)
    return (bits >> 9).astype(mx.float32) * 2.0**-23 + 2.0**-24  # below 1 in float32 too


def mixed(bits: mx.array) -> mx.array:
    """Returns uint32 numbers in which every bit depends on every bit of `bits` (xor-shifts and odd products)."""
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = (bits ^ (bits >> 15)) * 0x735A2D97
    return bits ^ (bits >> 15)


def gumbel(uniform: mx.array) -> mx.array:
    """Returns standard Gumbel noise from uniform numbers inside (0, 1)."""
    return -mx.log(-mx.log(uniform))
