"""This machine's memory, in bytes."""

from __future__ import annotations

import os
from pathlib import Path


def machine_memory() -> int:
    """Returns the physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def half_the_memory() -> int:
    """Returns half of it, what caches may take by default."""
    return machine_memory() // 2


def free_memory() -> int | None:
    """Returns what a new process could use without swapping, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return None
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return kilobytes["MemAvailable"] * 1024 if "MemAvailable" in kilobytes else None
