"""The `velox` backend of lm-eval: every task of lm-eval on a model under an eviction method.

Importing this registers the model beside lm-eval's own; `velox-eval lm-eval` is lm-eval's command line with it in.
The only package here that uses lm-eval's model interface; it needs the extra `lm-eval`, and never torch.
"""

from __future__ import annotations

from velox_eval.tasks.lm_eval_loading import require_lm_eval

require_lm_eval()

import lm_eval.models  # noqa: E402, F401  lm-eval registers its own models only while there are none

from velox_eval.lm_eval_backend.model import VeloxLM  # noqa: E402

__all__ = ["VeloxLM"]
