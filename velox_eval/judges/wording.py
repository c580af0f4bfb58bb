"""The words of a text as the rule judge reads them: for what noun and root each stands, and in what clause."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from velox_eval.judges.vocabulary import FAMILY, IRREGULAR, PHRASES, VERBS, WHOLE, word_set

_WORD = re.compile(r"\w+(?:'\w+)*'?")
_BETWEEN = re.compile(r"(?P<sentence>[.!?]+[\"')\]*]*(?=\s|$)|[;\n])|(?P<clause>[:()\[\]—–]|\s-\s|,)")
_TITLES = {"dr", "mr", "mrs", "ms", "st", "prof"}  # their full stop ends no sentence
# Words that begin a clause of their own where one of these, or the word after a comma, stands.
_CLAUSE_WORDS = word_set(
    """
    but although though because since so while whereas yet until unless when where which who
    """
)
_AFTER_COMMA = word_set(
    """
    i we he she they it you this there here then and instead whose where as where's that's it's i'm we're today
    now
    """
)
_OWN_CLAUSE = word_set("i we he she they it there this")  # "... and we went on"

_ENDINGS = (
    "ations",
    "ation",
    "ated",
    "ating",
    "ates",
    "ate",
    "ings",
    "ing",
    "ists",
    "ist",
    "ians",
    "ian",
    "eries",
    "ery",
    "ers",
    "er",
    "ors",
    "or",
    "ied",
    "ed",
    "ally",
    "al",
    "ment",
    "ly",
)
_DOUBLED = re.compile(r"([bdgklmnprt])\1$")
_SHORT = re.compile(r"[^aeiou][aeiouy][^aeiouwxy]$")  # "hik", "bak": an "e" is gone
_VOWEL = re.compile(r"[aeiouy]")


@dataclass(frozen=True)
class Token:
    """One word of a passage: as written (lower case), for what noun and root it stands, and where.

    `noun` is its singular, `root` also drops what makes other kinds of words of it ("photographers" -> "photograph").
    Numbers of sentence, clause and item (what stands between commas) count through the passage.
    """

    word: str
    noun: str
    root: str
    sentence: int
    clause: int
    item: int
    capital: bool


def normal(text: str) -> str:
    """Returns `text` in lower case with one kind of apostrophe and hyphens as spaces."""
    return _unified(text).casefold()


def _unified(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).replace("’", "'").replace("‘", "'")
    return re.sub(r"(?<=\w)[-‐‑–](?=\w)", " ", folded)


def tokenise(text: str) -> list[Token]:
    """Returns the words of `text` in order, phrases of one meaning replaced by their common one."""
    whole = _unified(text)
    tokens: list[Token] = []
    sentence = clause = item = end = 0
    for match in _WORD.finditer(whole):
        word = match[0].casefold()
        gap, end = whole[end : match.start()], match.end()
        before = tokens[-1].word if tokens else ""
        comma = False
        if gap != " ":
            for found in _BETWEEN.finditer(gap):
                if found["sentence"] and not (before in _TITLES and found["sentence"] == "."):
                    sentence, clause, item = sentence + 1, clause + 1, item + 1
                elif found["clause"] == ",":
                    comma, item = True, item + 1
                else:
                    clause += 1
        if comma and before == "no":
            tokens[-1] = replace(tokens[-1], word="no,")  # "a deck, no, a garden": an exclamation
        starts = word in _CLAUSE_WORDS or (comma and word in _AFTER_COMMA)
        if tokens and (starts or (word in _OWN_CLAUSE and before == "and")):
            clause += 1
        word = (word if word.endswith("s'") else word.rstrip("'")).strip("_")
        noun = singular(word)
        capital = match[0][0].isupper()
        tokens.append(Token(word, noun, root(noun), sentence, clause, item, capital))
    return _with_phrases(tokens)


def _with_phrases(tokens: list[Token]) -> list[Token]:
    """The tokens with every phrase of _BY_FIRST, the longest first, in its common wording."""
    result: list[Token] = []
    at = 0
    while at < len(tokens):
        for said, meant in _BY_FIRST.get(tokens[at].root, ()):
            part = tokens[at : at + len(said)]
            if tuple(token.root for token in part) == said and part[0].item == part[-1].item:
                first, last = part[0], part[-1]
                for word in meant:
                    noun = singular(word)
                    place = (first.sentence, first.clause, last.item, first.capital)
                    result.append(Token(word, noun, root(noun), *place))
                at += len(said)
                break
        else:
            result.append(tokens[at])
            at += 1
    return result


@lru_cache(maxsize=1 << 14)
def singular(word: str) -> str:
    """Returns the singular without possessive, of a family of words the one that stands for it."""
    word = re.sub(r"'s$|'$", "", word)
    word = IRREGULAR.get(word, word)
    if word in FAMILY:
        return FAMILY[word]
    if word.isascii() and word not in WHOLE and len(word) > 3 and not word.endswith(("ss", "us", "is")):
        if word.endswith("ies") and len(word) > 4:
            word = word[:-3] + "y"
        elif word.endswith(("ches", "shes", "sses", "xes", "zzes")):
            word = word[:-2]
        elif word.endswith("s"):
            word = word[:-1]
    return FAMILY.get(word, word)


@lru_cache(maxsize=1 << 14)
def root(noun: str) -> str:
    """Returns a light root: endings that make verbs, agents and adjectives off; of verbs of one meaning the first's."""
    bare = _bare(noun)
    return _VERBS.get(bare, bare)


def _bare(word: str) -> str:
    if not word.isascii() or not word.isalpha():
        return word
    for _ in range(2):  # dressmakers -> dressmaker -> dressmak
        ending = next((end for end in _ENDINGS if word.endswith(end)), None)
        if word in WHOLE or ending is None:
            break
        bare = word[: -len(ending)]
        if ending == "ied":
            word = bare + "y"
        elif len(bare) < 3 or not _VOWEL.search(bare):
            break
        elif _DOUBLED.search(bare):
            word = bare[:-1]
        else:
            word = bare + "e" if len(bare) == 3 and _SHORT.search(bare) else bare
    if word not in WHOLE and len(word) > 4:
        word = re.sub(r"(?:y|ie|i|e)$", "", word)
    return word if word in WHOLE or len(word) < 4 else _DOUBLED.sub(r"\1", word)


def _phrases(lines: str) -> dict[str, list[tuple[tuple[str, ...], Sequence[str]]]]:
    by_first: dict[str, list[tuple[tuple[str, ...], Sequence[str]]]] = {}
    for line in lines.strip().splitlines():
        said, meant = line.split(" > ")
        roots = tuple(root(singular(word)) for word in said.split())
        by_first.setdefault(roots[0], []).append((roots, meant.split()))
    return {first: sorted(found, key=lambda pair: -len(pair[0])) for first, found in by_first.items()}


_VERBS = {_bare(word): _bare(line.split()[0]) for line in VERBS.strip().splitlines() for word in line.split()[1:]}
_BY_FIRST = _phrases(PHRASES)
