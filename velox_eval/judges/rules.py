"""The deterministic judge: does an entry contain what a check says, by its words.

How it decides. A description "A featuring B" asks for A and for B; "X birthday" asks whose birthday it is.
Everything else is reduced to its content words (stems, without words such as "attend" or "local"), and the entry
contains it when enough of them stand close together in a place that is not
- negated ("no bus station", "the film night was cancelled"),
- at another time ("next week", "is still a month away"), or
- in entries about places (Floor, Block), only pointed at ("next to the library", "a view of the lake").

It reads words, not meaning: a paraphrase without the words is a no. tests/judges says how well it does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from velox_eval.judges.base import Judge, Verdict
from velox_eval.judges.birthdays import asked_persons, has_birthday
from velox_eval.judges.wording import STOP_WORDS, WEAK_WORDS, Token, normal, stem, tokenise

_HEADER = re.compile(r"^[\s#*]*(?P<word>[^\W\d]+(?: [^\W\d]+)*) \d+[^:\n]{0,60}:")
_PLACES = {"floor", "block"}
_NEAR_PLACE, _NEAR_EVENT = 6, 16  # tokens that the words of one description may be apart

_NOT = {"not", "never", "without", "neither", "nor", "instead", "rather", "except", "skipped", "missed", "cannot"}
_CALLED_OFF = re.compile(
    r"\b(?:cancell?ed|postponed|abandoned|never (?:built|opened|held)|sold out|moved to|"
    r"(?:is|was|are|were|stays|stayed) closed)\b"
)
_POINTING = {
    "near",
    "beside",
    "opposite",
    "above",
    "below",
    "behind",
    "across",
    "towards",
    "toward",
    "past",
    "from",
    "under",
}
_POINTING |= {"to", "between", "outside", "beyond", "along"}
_ARRIVING = {"home", "dedicated", "devoted", "given", "belongs", "belonging", "converted", "turned"}
_HAVING = {"of", "for", "on", "in", "with", "where", "sells", "selling", "serves", "serving"}
_BREAKS = {"here", "there", "is", "are", "was", "were", "has", "have", "houses", "holds", "where", "which", "that"}
_BREAKS |= {"make", "makes", "offers", "hosts", "fills", "forms", "form", "occupies", "contains", "serves", "turns"}
_SEEING = {"see", "sees", "seen", "view", "views", "overlook", "overlooks", "overlooking", "look", "looks", "connects"}
_SEEING |= {"connected", "connecting", "reaches", "find", "brings", "walk", "supplies", "delivers"}
_AFTER = {"nearby", "upstairs", "downstairs", "downtown", "across", "opposite"}
_ELSEWHEN = re.compile(
    r"\b(?:(?:next|last) (?:week|month|year|time|meeting|summer|winter|spring|autumn)|tomorrow|looking forward|"
    r"(?:week|month|year|day)s? away|used to|one day|some day|promised|hope to|plan(?:ned|ning)? to|"
    r"talked of|thought of|i remember (?:the|how|when|last))\b"
)


@dataclass(frozen=True)
class _Entry:
    tokens: Sequence[Token]
    sentences: Sequence[str]
    about_places: bool


class RuleJudge(Judge):
    """Answers by rules alone: no model, no network, the same verdict on every machine."""

    @property
    def id(self) -> str:
        """Name and version of the rules."""
        return "rules@1"

    def contains(self, passage: str, description: str) -> Verdict:
        """Returns yes or no; unreadable only for a description without any word."""
        parts = _parts(description)
        if not parts:
            return Verdict(None, f"the description {description!r} has no words")
        entry = _read(passage)
        for part in parts:
            if not _has(entry, part):
                return Verdict(False, f"not found: {part}")
        return Verdict(True)


def _parts(description: str) -> list[str]:
    """What a description asks for, each of which must be there."""
    text = normal(description)
    parts = text.split(" featuring ")
    if len(re.findall(r"\bbirthday\b", text)) > 1:
        parts = text.split(",")
    return [part.strip() for part in parts if re.search(r"\w", part)]


def _read(passage: str) -> _Entry:
    header = _HEADER.match(passage)
    body = passage[header.end() :] if header else passage
    tokens = tokenise(body)
    sentences: dict[int, list[str]] = {}
    for token in tokens:
        sentences.setdefault(token.sentence, []).append(token.word)
    count = tokens[-1].sentence + 1 if tokens else 0
    places = bool(header) and normal(header["word"]).split()[-1] in _PLACES if header else False
    return _Entry(tokens, [" ".join(sentences.get(number, [])) for number in range(count)], places)


def _has(entry: _Entry, part: str) -> bool:
    persons = asked_persons(part)
    if persons is not None:
        return any(has_birthday(entry.tokens, person, lambda at: not _denied(entry, at)) for person in persons)
    wanted = _content_words(part)
    need = _needed(wanted, part)
    reach = _NEAR_PLACE if entry.about_places else _NEAR_EVENT
    reach += 3 * max(0, len(wanted) - 2)
    places = [_places_of(entry, wanted, index) for index in range(len(wanted))]
    for anchor in sorted({start for found in places for start in found}):
        window = [next((at for at in found if anchor <= at <= anchor + reach), None) for found in places]
        hits = [at for at in window if at is not None]
        if len(hits) >= need and (not entry.about_places or _names_a_place(entry.tokens, window, _head(wanted, part))):
            return True
    return False


def _names_a_place(tokens: Sequence[Token], window: Sequence[int | None], head: int) -> bool:
    """Whether the head is there, and what stands before it in the description follows it only as "head of/for ...".

    "offices of four law firms" are law offices; "a studio and shelves of records" is no recording studio.
    """
    at = window[head]
    if at is None:
        return False
    late = [other for other in window[:head] if other is not None and other > at]
    return not late or (at + 1 < len(tokens) and tokens[at + 1].word in _HAVING)


def _content_words(part: str) -> list[str]:
    """Stems of the words that carry a description; all its words when none does."""
    words = [token.word for token in tokenise(part)]
    strong = [word for word in words if word not in STOP_WORDS | WEAK_WORDS]
    if len(strong) > 2 and strong[0] == words[0] and strong[0].endswith("ing"):
        strong = strong[1:]  # "building a rowing boat": the ribs, the planks, ... of it are as good
    return list(dict.fromkeys(stem(word) for word in strong or words))


def _needed(wanted: Sequence[str], part: str) -> int:
    loose = re.search(r"\b(?:and|or|with|of|in|by|for|from)\b", part) is not None
    if len(wanted) <= 2 or (len(wanted) == 3 and not loose):
        return len(wanted)
    return -(-2 * len(wanted) // 3)


def _head(wanted: Sequence[str], part: str) -> int:
    """Index of the word that names the thing: the last before the first preposition."""
    phrase = re.split(r"\b(?:for|with|of|in|by|from|at|to)\b", part)[0]
    named = [stem(token.word) for token in tokenise(phrase)]
    return max((index for index, word in enumerate(wanted) if word in named), default=len(wanted) - 1)


def _places_of(entry: _Entry, wanted: Sequence[str], index: int) -> list[int]:
    """Tokens that mention a wanted stem, alone or run together ("heatwave") or split ("day care"), and mean it."""
    forms = {wanted[index]}
    forms |= {stem(first + second) for first, second in pairwise(wanted) if wanted[index] in (first, second)}
    tokens = entry.tokens
    found = []
    for at, token in enumerate(tokens):
        split = at + 1 < len(tokens) and stem(token.word + tokens[at + 1].word) == wanted[index]
        if (token.stem in forms or split) and not _denied(entry, at):
            found.append(at)
    return found


def _denied(entry: _Entry, at: int) -> bool:
    """Whether the mention at token `at` is negated, at another time, or only pointed at."""
    tokens = entry.tokens
    sentence = tokens[at].sentence
    before = [token.word for token in tokens[max(0, at - 7) : at] if token.sentence == sentence]
    after = [token.word for token in tokens[at + 1 : at + 8] if token.sentence == sentence]
    if "no" in before[-3:] or any(word in _NOT or word.endswith("n't") for word in before[-6:]):
        return True
    if _CALLED_OFF.search(" ".join(after)):
        return True
    if _ELSEWHEN.search(entry.sentences[sentence]):
        return True
    return entry.about_places and _pointed_at(before, after)


def _pointed_at(before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether a preposition ("next to the", "close to the school and the") or a verb of seeing governs the mention."""
    joined = any(word in ("and", "or") for word in before[-3:])
    for distance, word in enumerate(reversed(before)):
        if word in _BREAKS:
            break
        governs = distance < (7 if joined else 4)
        if word in _SEEING or (governs and word in _POINTING and _word_before(before, distance) not in _ARRIVING):
            return True
    return any(word in _AFTER for word in after[:1])


def _word_before(before: Sequence[str], distance: int) -> str:
    return before[-distance - 2] if distance + 2 <= len(before) else ""
