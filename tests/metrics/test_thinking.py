"""Think traces are no part of an answer."""

from __future__ import annotations

import pytest

from velox_eval.metrics.thinking import without_thinking


@pytest.mark.parametrize(
    ("text", "answer", "finished"),
    [
        ("plain", "plain", None),
        ("", "", None),
        ("<think>aaa", "", False),
        ("\n<think>aaa", "", False),
        ("<think>aaa</think>\n\nParis", "Paris", True),
        ("aaa</think>Paris", "Paris", True),  # the chat template opened the trace
        ("<think>a</think>b<think>c</think>d", "d", True),
        ("<think></think>", "", True),
        ("I <think> so", "I <think> so", None),
    ],
)
def test_what_is_left(text: str, answer: str, finished: bool | None) -> None:
    assert without_thinking(text) == (answer, finished)
