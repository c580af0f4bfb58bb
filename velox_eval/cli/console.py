"""How the command line writes: text that nobody vouches for made plain, JSON, and the end that Ctrl-C brings."""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any, NoReturn

import typer
from rich.console import Console

CANCELLED = 130  # what shells say of a process that Ctrl-C ended


def out() -> Console:
    """Returns the console of results (stdout)."""
    return Console(highlight=False, markup=False, emoji=False)


def err() -> Console:
    """Returns the console of everything else (stderr)."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def plain(text: str) -> str:
    """Returns `text` with control, formatting and surrogate characters spelled out, line ends and tabs kept.

    A model's answer may hold escape sequences that would move the cursor, rename the window or hide text.
    """
    return "".join(c if c in "\n\t" or not _unsafe(c) else c.encode("unicode_escape").decode() for c in text)


def _unsafe(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def print_json(document: Any) -> None:
    """Prints one JSON document on stdout, and nothing else; ASCII, so that no terminal acts on it."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def interrupted(left: str = "") -> NoReturn:
    """Says on stderr that Ctrl-C ended the command and what is `left` to do, and exits with CANCELLED."""
    err().print(plain(" ".join(["Interrupted.", left])).strip(), soft_wrap=True)
    raise typer.Exit(CANCELLED)
