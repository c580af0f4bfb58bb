"""Sizes as people read them."""

from __future__ import annotations


def human_bytes(count: int | float | None) -> str:
    """Returns a size in binary units (`1.5 MiB`); "-" for None."""
    if count is None:
        return "-"
    size, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
