"""What comes from a model or a data file cannot act on the terminal."""

from __future__ import annotations

import pytest

from velox_eval.cli.console import plain
from velox_eval.records.sizes import human_bytes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 你好 tab\there\nnext", "plain é 你好 tab\there\nnext"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("over\rwrite", "over\\rwrite"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("null\x00", "null\\x00"),
        ("\ud800", "\\ud800"),
    ],
)
def test_plain(text, shown):
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (3 * 2**40, "3.0 TiB")],
)
def test_human_bytes(count, text):
    assert human_bytes(count) == text
