"""Tables as text: numbers, and rows of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MISSING = "-"


def number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Returns `value` with so many decimals, with `sign` +0.1 for 0.1; "-" for None."""
    if value is None:
        return MISSING
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Returns a share, 1 is all, as a percentage: with a decimal under 10%; "-" for None."""
    if share is None:
        return MISSING
    return f"{share:.0%}" if share >= 0.1 or not share else f"{share:.1%}"


def times(ratio: float | None) -> str:
    """Returns a ratio as `1.25x`; "-" for None."""
    return MISSING if ratio is None else f"{ratio:.2f}x"


def markdown_cell(text: str) -> str:
    """Returns `text` for a cell or line of Markdown: one line, in which nothing is markup. For names others gave."""
    text = " ".join(text.split())
    for mark in "\\`*<>|":
        text = text.replace(mark, "\\" + mark)
    return text.replace("](", "]\\(")


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table; the cells go in as they are (see `markdown_cell`)."""
    return ["| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows)]
