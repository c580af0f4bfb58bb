"""CountedCache: what every cache of ours says of itself, counted from arrays, whatever keeps its rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from velox_eval.caches.attention import Lent
from velox_eval.errors import MethodError
from velox_eval.mlx import mx
from velox_eval.mlx_lm import BaseCache


class _NamesOurEngine(type):
    """mlx-lm refuses to batch a cache without `merge` by printing its class: let that say what does batch it."""

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__qualname__}', which velox_eval.engine.engine.Engine batches,>"


class CountedCache(BaseCache, metaclass=_NamesOurEngine):  # type: ignore[misc]
    """A layer's cache that counts its rows and bytes per sequence, and refuses mlx-lm's own batching.

    It has no `merge`, `to_quantized` or `bits`: mlx-lm would swap a cache that has them for a plain one.
    """

    def __init__(self, budget: int | None) -> None:
        self.budgets: list[int | None] = [budget]  # rows per KV head after each step; None: unbounded
        self.rows = [0]  # rows held, the same for every head
        self.tokens_seen = [0]
        self.peak_rows = [0]  # rows in transit included
        self.peak_aux_bytes = 0  # per sequence
        self.peak_slots = 0
        self.tapped = False  # whether the attention tap is sure to show this layer's attention

    @abstractmethod
    def kept_positions(self) -> mx.array:
        """Returns int32 [B, H, C]: the true position of the row in each slot, -1 where none is held."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of one row (key and value, all KV heads), from the arrays held."""

    @property
    @abstractmethod
    def aux_bytes(self) -> int:
        """Bytes held beside keys and values, all sequences."""

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes of the key and value buffers, free slots included."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the rows held, all sequences."""
        return sum(self.rows) * self.row_bytes

    @property
    def full_seq_bytes(self) -> int:
        """Bytes the rows of all tokens seen would take."""
        return sum(self.tokens_seen) * self.full_row_bytes

    @property
    def full_row_bytes(self) -> int:
        """Bytes of one row in the full cache: those of a row here, unless a cache stores rows in another type."""
        return self.row_bytes

    @property
    def positions_known(self) -> bool:
        """Whether `kept_positions` says where every row comes from."""
        return True

    @property
    def reported(self) -> Mapping[str, float]:
        """What a cache that is not ours says of itself, by the names it uses."""
        return {}

    @property
    def evicted_rows(self) -> list[int]:
        """Rows evicted so far, per sequence and KV head."""
        return [seen - rows for seen, rows in zip(self.tokens_seen, self.rows, strict=True)]

    @property
    def compression_ratio(self) -> float:
        """full_seq_bytes over kept_bytes; 1.0 while nothing was evicted."""
        return self.full_seq_bytes / self.kept_bytes if self.kept_bytes else 1.0

    def mask_for(self, new: int, slots: int, mask: Any) -> Any:
        """Returns the mask this layer needs for `new` queries over `slots` rows, given the model's own.

        The model makes one mask from one layer's cache. Where this layer holds other rows it is replaced: what was
        held is older than what came in, so the lower-right aligned "causal" says the same. Raises MethodError where
        the model adds scores through its mask.
        """
        if not isinstance(mask, mx.array) or mask.shape[-1] == slots:
            return mask
        if mask.dtype != mx.bool_:
            raise MethodError("this model adds scores through its mask, and its layers hold different rows")
        return "causal" if new > 1 else None

    @property
    def awaits_queries(self) -> bool:
        """Whether a policy waits to be shown the last step's attention."""
        return False

    @property
    def probe(self) -> mx.array | None:
        """Keys [B, H, 1, D] whose logits are wanted beside those of one token's queries; None: none are."""
        return None

    def attended(self, queries: mx.array, scale: float, lent: Lent | None = None) -> None:
        """Called after each attention with its queries [B, H_q, S, D], the logits' scale, and what it lends."""

    def finish_prompt(self) -> None:
        """Called once the whole prompt is in, before the first decoded token."""

    def size(self) -> int:
        """Rows held by the longest sequence."""
        return max(self.rows)

    def empty(self) -> bool:
        """Whether nothing was fed yet."""
        return max(self.tokens_seen) == 0

    @property
    def nbytes(self) -> int:
        """Bytes of everything held."""
        return self.allocated_bytes + self.aux_bytes

    @property
    def state(self) -> list[mx.array]:
        """All arrays held, for mx.eval."""
        return []

    @state.setter
    def state(self, _value: Any) -> None:
        raise MethodError("an eviction cache cannot be restored from arrays alone; prefill the prompt again")
