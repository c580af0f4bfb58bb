"""The one door to mlx: `from velox_eval.mlx import mx`.

The first attribute asked of `mx` loads a fast BLAS (Linux CPU only; it must be in the process before
mlx is) and then `mlx.core`. So every module of this package can be imported without loading mlx, and
scoring, reports and `--help` stay instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mlx.core as mx
else:

    class _LazyMLX:
        def __getattr__(self, name: str) -> Any:
            from velox_eval.blas import load_fast_blas

            load_fast_blas()
            import mlx.core

            value = getattr(mlx.core, name)
            setattr(self, name, value)  # the next look-up is a plain attribute
            return value

    mx = _LazyMLX()

__all__ = ["mx"]
