"""Words, stems and word lists of the rule judge."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_WORD = re.compile(r"\w+(?:'\w+)*")
_SENTENCE_END = re.compile(r"[.!?;\n]+(?=\s|$)|\n+")
_SPELLING = {
    "theatre": "theater",
    "centre": "center",
    "movie": "film",
    "telephone": "phone",
    "bike": "bicycle",
    "photo": "photograph",
    "gymnasium": "gym",
    "mum": "mother",
    "mom": "mother",
    "dad": "father",
    "officer": "policeman",  # not somebody's office
}
_SUFFIXES = ("ations", "ation", "ings", "ing", "ists", "ist", "ians", "ian", "ers", "er", "ed", "al", "es", "s")
_DOUBLED = re.compile(r"([bdgklmnprt])\1$")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS = _words(
    """a an the of in on at to for with by from and or as into its it this that my our his her their your own each"""
)
# Words that say how, not what: a text that has the rest of a description has the thing.
WEAK_WORDS = _words(
    """
    attend attending join joining participate participating visit visiting explore exploring go going take taking
    volunteer volunteering play have enjoy discover discovering trip
    local large small extensive comprehensive big various public major area areas new old specializing like special
    assorted fresh city week weekly weekend monthly annual long
    """
)
_IRREGULAR = {"children": "child", "wives": "wife", "people": "person"}


# Kept whole: their endings are no endings.
_WHOLE = _words("mother father brother sister daughter grandmother grandfather butter water summer winter")


@dataclass(frozen=True)
class Token:
    """One word of a passage: as written (lower case), its stem, and the number of its sentence."""

    word: str
    stem: str
    sentence: int


def normal(text: str) -> str:
    """Returns `text` in lower case with one kind of apostrophe and hyphens as spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"(?<=\w)[-‐‑–](?=\w)", " ", folded.replace("’", "'").replace("‘", "'"))


def tokenise(text: str) -> list[Token]:
    """Returns the words of `text` in order."""
    tokens = []
    for number, sentence in enumerate(_SENTENCE_END.split(normal(text))):
        for match in _WORD.finditer(sentence):
            tokens.append(Token(match[0], stem(match[0]), number))
    return tokens


def stem(word: str) -> str:
    """Returns a light stem: possessive, plural and the commonest endings off, never under four letters."""
    word = re.sub(r"'s$|'$", "", word)
    word = _SPELLING.get(word, _IRREGULAR.get(word, word))
    word = word[:-1] if word[:-1] in _WHOLE and word.endswith("s") else word
    if word.isdigit() or not word.isascii() or word in _WHOLE:
        return word
    for _ in range(2):  # painters -> painter -> paint
        for suffix in _SUFFIXES:
            if word.endswith(suffix) and len(word) - len(suffix) >= (3 if suffix in {"s", "ing"} else 4):
                if suffix == "s" and word.endswith("ss"):
                    continue
                word = word[: -len(suffix)]
                break
    if len(word) > 3:
        word = _DOUBLED.sub(r"\1", word)
    if word.endswith(("y", "ie", "i")) and len(word) > 4:
        word = re.sub(r"(y|ie|i)$", "", word)
    return word[:-1] if word.endswith("e") and len(word) > 4 else word
