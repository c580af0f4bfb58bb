"""full: keeps every row. The baseline all methods are compared with.

Runs on the same cache, prefill and attention path as the methods, so that a difference is the method's.
"""

from __future__ import annotations

from velox_eval.methods.policy import Policy
from velox_eval.methods.spec import MethodSpec, Variant


class Full(Policy):
    """Never asked for scores: a cache without a budget evicts nothing."""


SPEC = MethodSpec(
    name="full",
    family="baseline",
    ranks_by="keeps all",
    paper="-",
    code="-",
    default_budget=None,
    variants={"adapted": Variant(policy=Full, parameters=(), capacity="every token", differs="faithful")},
)
