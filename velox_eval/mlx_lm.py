"""The one door to mlx-lm: every name of it that this package builds on, so that a new release is checked here.

Importing this loads mlx (after a fast BLAS, as velox_eval.mlx explains) and mlx-lm, which takes a second or two:
only modules that run models import it at their top.
"""

from __future__ import annotations

from velox_eval.blas import load_fast_blas

load_fast_blas()

from mlx_lm.generate import wired_limit  # noqa: E402
from mlx_lm.models.cache import KVCache, _BaseCache, create_causal_mask, make_prompt_cache  # noqa: E402
from mlx_lm.sample_utils import apply_top_p  # noqa: E402
from mlx_lm.utils import _get_classes, load_config  # noqa: E402

BaseCache = _BaseCache
model_classes = _get_classes

__all__ = [
    "BaseCache",
    "KVCache",
    "apply_top_p",
    "create_causal_mask",
    "load_config",
    "make_prompt_cache",
    "model_classes",
    "wired_limit",
]
