"""How much of a text repeats itself."""

from __future__ import annotations

import re

# Runs of word characters, apostrophes inside a word kept ("don't" is one word); Chinese, Japanese and Korean
# characters one by one, as these scripts put no spaces between words; everything else separates.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+(?:['’][^\W{_CJK}]+)*")


def words(text: str) -> list[str]:
    """Returns the lower-cased words of `text` by this project's one tokeniser (see the pattern above)."""
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


def repetition_rate(text: str, n: int = 4) -> float | None:
    """Returns 1 - unique / total word n-grams of the whole text: 0 when none repeats, towards 1 in a loop.

    None under n words. Raises ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"n={n} must be at least 1")
    tokens = words(text)
    total = len(tokens) - n + 1
    if total < 1:
        return None
    return 1 - len({tuple(tokens[start : start + n]) for start in range(total)}) / total
