"""How much of a text repeats itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

DECILES = 10

# Runs of word characters, apostrophes inside a word kept ("don't" is one word); Chinese, Japanese and Korean
# characters one by one, as these scripts put no spaces between words; everything else separates.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+(?:['’][^\W{_CJK}]+)*")
_WORD_OR_MARK = re.compile(rf"{_WORD.pattern}|[^\w\s]")

Part = Literal["whole", "second_half"]


def words(text: str, *, marks: bool = False) -> list[str]:
    """Returns the lower-cased words of `text` by this project's one tokeniser (see the pattern above).

    With `marks` every punctuation mark and symbol is a word too, as for NLTK's tokeniser.
    """
    pattern = _WORD_OR_MARK if marks else _WORD
    return [word.replace("’", "'") for word in pattern.findall(text.lower())]


class Span(NamedTuple):
    """A stretch of a text, in characters, `end` excluded."""

    start: int
    end: int


def repetition_rate(
    text: str, n: int = 4, *, part: Part = "whole", marks: bool = False, least_words: int = 0
) -> float | None:
    """Returns 1 - unique / total word n-grams of a text: 0 when none repeats, towards 1 in a loop.

    `part` "second_half" looks at the second half of its words alone (the middle one of an odd number included).
    None under n words there, or under `least_words` in the whole text (marks are none of them). Raises ValueError
    for n below 1.

    MorphKV's authors count punctuation too (`marks`); n = 10 on answers of at least 5,000 words in LongWriter, n = 20
    on the second half of the entries in LongGenBench. On their LongWriter answers this is within 0.02 of their
    stored values; the rest is NLTK's finer tokeniser.
    """
    if least_words and len(words(text)) < least_words:
        return None
    tokens = words(text, marks=marks)
    repeats = _repeats(tokens[len(tokens) // 2 :] if part == "second_half" else tokens, n)
    return sum(repeats) / len(repeats) if repeats else None


class EqualLengthRates(NamedTuple):
    """Repetition of two texts, both cut to the words of the shorter."""

    first: float
    second: float
    words: int


def rates_at_equal_length(first: str, second: str, n: int = 4) -> EqualLengthRates | None:
    """Returns the `repetition_rate` of both texts over as many words as the shorter has: a longer text repeats more.

    None where the shorter has under n words. Raises ValueError for n below 1.
    """
    ours, theirs = words(first), words(second)
    length = min(len(ours), len(theirs))
    first_repeats, second_repeats = (_repeats(tokens[:length], n) for tokens in (ours, theirs))
    if not first_repeats:
        return None
    grams = len(first_repeats)
    return EqualLengthRates(sum(first_repeats) / grams, sum(second_repeats) / grams, length)


def repeated_spans(text: str, n: int = 4) -> list[Span]:
    """Returns where `text` repeats itself: the stretches covered by word n-grams that stood earlier in it.

    In order and apart from each other; empty where nothing repeats. Raises ValueError for n below 1.
    """
    places = _places(text)
    spans: list[Span] = []
    for first, repeats in enumerate(_repeats(words(text), n)):
        if not repeats:
            continue
        start, end = places[first].start, places[first + n - 1].end
        if spans and start <= spans[-1].end:
            spans[-1] = Span(spans[-1].start, end)
        else:
            spans.append(Span(start, end))
    return spans


def repetition_by_decile(text: str, n: int = 4) -> list[tuple[int, int]]:
    """Returns, a tenth of the text each, how many of its word n-grams stood earlier in it, and how many it has.

    The sums over the tenths give `repetition_rate`. Empty under n words. Raises ValueError for n below 1.
    """
    repeats = _repeats(words(text), n)
    sums = [(0, 0)] * DECILES if repeats else []
    for index, again in enumerate(repeats):
        tenth = index * DECILES // len(repeats)
        sums[tenth] = (sums[tenth][0] + again, sums[tenth][1] + 1)
    return sums


def _repeats(tokens: Sequence[str], n: int) -> list[bool]:
    """Whether each n-gram, by its first word, stood earlier."""
    if n < 1:
        raise ValueError(f"n={n} must be at least 1")
    seen: set[tuple[str, ...]] = set()
    repeats = []
    for start in range(len(tokens) - n + 1):
        gram = tuple(tokens[start : start + n])
        repeats.append(gram in seen)
        seen.add(gram)
    return repeats


def _places(text: str) -> list[Span]:
    """Where each of the text's `words` stands in it; a letter that lower-cases to two is still one of the text."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return [Span(*match.span()) for match in _WORD.finditer(lowered)]
    origin = [index for index, character in enumerate(text) for _ in character.lower()]
    return [Span(origin[match.start()], origin[match.end() - 1] + 1) for match in _WORD.finditer(lowered)]
