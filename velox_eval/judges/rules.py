"""The deterministic judge: does an entry contain what a check says, by its words.

How it decides. A description "A featuring B" asks for A and for B; "X birthday" asks whose birthday it is.
Everything else is reduced to its content words (without words such as "attend" or "local"), and the entry contains
it when enough of them, or words of the same family, stand close together in a place that is not
- negated ("no bus station", "the film night was cancelled"),
- at another time ("next week", "two years ago"), or
- in entries about places (Floor, Block), only pointed at ("next to the library", "a view of the lake").
What follows a preposition in the description may be elsewhere ("training for a marathon"). A place must be called what
it is: its last word counts as singular or plural only ("parking" is no park), and what stands before it must belong to
it. A dish is one item of the menu. Families of words are in vocabulary.py, what counts as there in standing.py.

It reads words, not meaning: a paraphrase without the words is a no. tests/judges says how well it does.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from velox_eval.judges.base import Judge, Verdict
from velox_eval.judges.birthdays import asked_persons, has_birthday
from velox_eval.judges.standing import Entry, read, stands
from velox_eval.judges.vocabulary import OCCASIONS, OCCASIONS_ALONE, STOP_WORDS, WEAK_IN_DIARIES, WEAK_WORDS, word_set
from velox_eval.judges.wording import Token, normal, root, singular, tokenise

_NEAR_PLACE, _NEAR_DISH, _NEAR_EVENT = 10, 8, 16  # tokens that the words of one description may be apart
_PLACE, _DIARY, _NAME, _DISH = "place", "diary", "name", "dish"
_LOOSE = re.compile(r"\b(?:and|or|with|of|in|by|for|from|to|at|on|across|along|during|like)\b")
_BEFORE_DETAIL = re.compile(r"\b(?:with|for)\b")  # "hospital with various departments" is a hospital
_BEFORE_COMPLEMENT = re.compile(r"\b(?:for|with|of|in|by|from|at|to)\b")
_GOES_ON = re.compile(r"continu(?:e|es|ed|ing|ation)$")
_HAVING = word_set("of for on in with where stands sits lies belongs sells selling serves serving")
# A place whose kind has several names: one of these may stand for another after the same modifier.
_KINDS = [
    frozenset(line.split())
    for line in (
        "office firm practice agency bureau clinic surgery consultancy service chamber",
        "room hall lounge space",
        "bar counter stand kiosk",
        "workshop studio atelier",
        "terrace deck platform",
        "institute institution laboratory",
    )
]
# Named alike, and another thing: a car park is no park, a post office no office.
_OTHER_THINGS = {
    "park": word_set("car skate office business industrial theme amusement water science technology trailer retail"),
    "office": {"post", "box", "ticket"},
    "theater": {"movie", "operating", "lecture", "home", "puppet", "marionette", "toy"},
    "farm": {"wind", "server", "solar"},
}
# "a library of samples" is no library; "school classes", "hotel guests" are people from elsewhere as often as not.
_COLLECTION = {"library": "of"}
_FOLLOWERS = word_set(
    """
    class classes trip trips bus buses card cards critic critics guide tickets bench benches view views chair
    chairs uniform uniforms children pupils kids teacher teachers holidays hours furniture worker
    workers patients students visitors guests yard garden boy girl boys girls themed style inspired scene
    life
    """
)
# A head with one of these before it is another place: "a recording booth and a dance studio".
_MODIFIERS = frozenset(
    root(singular(word))
    for word in word_set(
        """
        dance music recording yoga photography design art language law medical dental police fire bus railway coffee
        flower tea prayer meeting laundry conference business shopping industrial residential boxing chess martial toy
        clock maritime record book radio television ski pottery jewelry tailor cooking culinary driving riding
        """
    )
)


@dataclass(frozen=True)
class _Asked:
    """What one part of a description asks for: its content words, how many and which it takes, its head.

    What follows a preposition (not `main`) may be denied or elsewhere: one trains for a marathon that is to come.
    "golf lessons at the local club" needs no club; "a pitch to investors" needs the pitch. The head names the thing.
    """

    words: tuple[Token, ...]
    need: int
    must: frozenset[int]
    main: frozenset[int]
    head: int
    joined: bool
    kind: str


class RuleJudge(Judge):
    """Answers by rules alone: no model, no network, the same verdict on every machine."""

    @property
    def id(self) -> str:
        """Name and version of the rules."""
        return "rules@2"

    def contains(self, passage: str, description: str) -> Verdict:
        """Returns yes or no; unreadable only for a description without any word."""
        parts = _parts(description)
        if not parts:
            return Verdict(None, f"the description {description!r} has no words")
        entry = read(passage)
        for number, part in enumerate(parts):
            if not _has(entry, part, number):
                return Verdict(False, f"not found: {part}")
        return Verdict(True)


def _parts(description: str) -> list[str]:
    """What a description asks for, each of which must be there."""
    text = normal(description)
    parts = text.split(" featuring ")
    if len(re.findall(r"\bbirthday\b", text)) > 1:
        parts = text.split(",")
    return [part.strip() for part in parts if re.search(r"\w", part)]


def _has(entry: Entry, part: str, number: int) -> bool:
    persons = asked_persons(part)
    if persons is not None:
        return any(has_birthday(entry.tokens, person, lambda at: stands(entry, at, scope=3)) for person in persons)
    kind = _PLACE if entry.about_places else _DIARY if not entry.is_menu else _DISH if number else _NAME
    asked = _asked(part, kind)
    reach = _NEAR_PLACE if entry.about_places else _NEAR_DISH if entry.is_menu else _NEAR_EVENT
    reach += 3 * max(0, len(asked.words) - 2)
    places = [_places_of(entry, asked, index) for index in range(len(asked.words))]
    for anchor in sorted({start for found in places for start in found}):
        window = [_first(found, anchor, anchor + reach) for found in places]
        hits = [at for at in window if at is not None]
        if entry.about_places and _goes_on(entry, asked, window):
            return True
        if _enough(asked, window, hits) and _belong_together(entry, asked, window, hits):
            return True
    return False


def _first(found: Sequence[int], first: int, last: int) -> int | None:
    """The first of ascending `found` that lies from `first` to `last`."""
    at = bisect_left(found, first)
    return found[at] if at < len(found) and found[at] <= last else None


def _enough(asked: _Asked, window: Sequence[int | None], hits: Sequence[int]) -> bool:
    """Whether enough words are there, all that must be, and one that is more than a complement."""
    there = {index for index, at in enumerate(window) if at is not None}
    return len(hits) >= asked.need and asked.must <= there and (not asked.main or bool(asked.main & there))


@lru_cache(maxsize=1 << 12)
def _asked(part: str, kind: str) -> _Asked:
    """The words that carry a description; all its words when none does."""
    kept = _BEFORE_DETAIL.split(part)[0] if kind == _PLACE else part
    weak = WEAK_WORDS | WEAK_IN_DIARIES if kind == _DIARY else WEAK_WORDS
    words = _content_words(kept, weak) or _content_words(part, weak) or tokenise(part)
    if kind == _DIARY and len(words) > 2 and words[0] == tokenise(part)[0] and words[0].word.endswith("ing"):
        words = words[1:]  # "building a rowing boat": the ribs, the planks, ... of it are as good
    if kind == _DIARY and len(words) == 2 and words[-1].word in OCCASIONS and words[0].noun in OCCASIONS_ALONE:
        words = words[:-1]
    count = len(words)
    named = {token.noun for token in tokenise(_BEFORE_COMPLEMENT.split(kept)[0])}
    main = frozenset(index for index, word in enumerate(words) if word.noun in named)
    loose = _LOOSE.search(kept) is not None and (" and " in kept or len(main) > 1)
    must = main if count == 3 and loose and " and " not in kept and kind == _DIARY else frozenset()
    need = count if count <= 2 or (count == 3 and (not loose or kind == _NAME)) else -(-2 * count // 3)
    head = max((index for index, word in enumerate(words) if word.noun in named), default=count - 1)
    return _Asked(tuple(words), need, must, main, head, " and " in kept, kind)


def _content_words(part: str, weak: frozenset[str]) -> list[Token]:
    words = [token for token in tokenise(part) if token.word not in STOP_WORDS | weak]
    return list({token.root: token for token in reversed(words)}.values())[::-1]


def _places_of(entry: Entry, asked: _Asked, index: int) -> list[int]:
    """Tokens that mention a wanted word, alone or run together ("heatwave") or split ("day care"), and mean it."""
    word = asked.words[index]
    strict = entry.about_places and index == asked.head and not word.word.endswith("ing")
    forms = {word.noun} if strict else {word.root}
    own = next(iter(forms))
    if strict and len(asked.words) > 1:
        forms |= next((kinds for kinds in _KINDS if word.noun in kinds), frozenset()) - {"service"}
        forms |= {word.noun}
    for first, second in pairwise(asked.words):
        if word in (first, second):
            forms.add(_joined(first, second, strict))
    tokens = entry.tokens
    found = []
    for at, token in enumerate(tokens):
        form = token.noun if strict else token.root
        split = at + 1 < len(tokens) and _joined(token, tokens[at + 1], strict) == own
        named = (form in forms or split) and (not strict or _is_the_thing(entry, asked, at))
        if named and ((asked.main and index not in asked.main) or stands(entry, at)):
            found.append(at)
    return found


def _joined(first: Token, second: Token, strict: bool) -> str:
    return first.noun + second.noun if strict else root(first.noun + second.noun)


def _is_the_thing(entry: Entry, asked: _Asked, at: int) -> bool:
    """Whether the word at `at` names a place, and is no part of another thing's name."""
    tokens = entry.tokens
    wanted = {word.noun for word in asked.words}
    token = tokens[at]
    if at and tokens[at - 1].noun not in wanted and tokens[at - 1].word in _OTHER_THINGS.get(token.noun, ()):
        return False
    if at + 1 == len(tokens) or tokens[at + 1].item != token.item:
        return True
    following = tokens[at + 1]
    if following.word == _COLLECTION.get(token.noun) and not token.capital:
        return False
    return following.noun in wanted or following.word not in _FOLLOWERS or token.word.endswith("'s")


def _belong_together(entry: Entry, asked: _Asked, window: Sequence[int | None], hits: Sequence[int]) -> bool:
    tokens = entry.tokens
    if asked.kind == _DISH and not asked.joined:
        first, last = tokens[min(hits)], tokens[max(hits)]  # "herring, smoked over birch" is one item
        if last.item == first.item + 1:
            opening = next(token.word for token in tokens if token.item == last.item)
            return last.word.endswith("ed") or opening in {"with", "in", "on", "topped", "served"}
        return last.item == first.item and last.clause == first.clause
    if asked.kind == _NAME and len(asked.words) == 2 and hits[0] > hits[1]:
        # "season of truffles"; "on Friday: chicken pie" is no Pie Friday
        return tokens[hits[1] + 1].word in {"of", "for"}
    if entry.is_menu:
        return asked.joined or tokens[min(hits)].sentence == tokens[max(hits)].sentence
    return not entry.about_places or _names_a_place(entry, asked, window, hits)


def _goes_on(entry: Entry, asked: _Asked, window: Sequence[int | None]) -> bool:
    """Whether the entry says that a place of several entries goes on: "The gym continues on this floor"."""
    at = window[asked.head]
    if at is None:
        return False
    tokens = entry.tokens
    plain = at == 0 or tokens[at - 1].word in STOP_WORDS | WEAK_WORDS
    near = tokens[max(0, at - 4) : at + 5]
    return plain and any(_GOES_ON.match(token.word) and token.sentence == tokens[at].sentence for token in near)


def _names_a_place(entry: Entry, asked: _Asked, window: Sequence[int | None], hits: Sequence[int]) -> bool:
    """Whether the head is there, and what stands before it in the description belongs to it.

    "offices of four law firms" are law offices; "a studio and shelves of records" is no recording studio, nor is
    "a recording booth and a dance studio". "X and Y Z" is one place of two kinds: both of them are enough.
    """
    tokens = entry.tokens
    at = window[asked.head]
    if tokens[min(hits)].sentence != tokens[max(hits)].sentence:
        # "A vet looks after dogs here. The clinic ..."
        return asked.joined or (at is not None and at == max(hits) and tokens[at - 1].word in {"the", "this"})
    if at is None:
        return asked.joined
    if asked.words[asked.head].noun == "rent":
        return True  # "rent bicycles" is bicycle rental
    early = [other for other in window[: asked.head] if other is not None]
    if any(other > at for other in early) and not (asked.joined and min(early) < at):
        return at + 1 < len(tokens) and tokens[at + 1].word in _HAVING
    before = tokens[at - 1] if at else None
    own = before is not None and before.root in _MODIFIERS and before.root not in {word.root for word in asked.words}
    return not (early and own)
