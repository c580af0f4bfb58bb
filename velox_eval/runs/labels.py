"""What a method's budget is called: in a label beside its name, and in words."""

from __future__ import annotations


def budget_label(budget: int | None, keep: float | None) -> str:
    """Returns what a label says of the budget: `@256`, `@12.5%`; empty where there is none."""
    return f"@{budget}" if budget is not None else f"@{keep * 100:g}%" if keep is not None else ""


def budget_words(budget: int | None, keep: float | None) -> str:
    """Returns the budget as it is asked for: `budget 256`, `keep 0.125`; empty where there is none."""
    return f"budget {budget}" if budget is not None else f"keep {keep:g}" if keep is not None else ""
