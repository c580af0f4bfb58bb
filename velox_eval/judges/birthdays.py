"""Whose birthday a text tells of: "my father birthday" is not any birthday near a father."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from velox_eval.judges.wording import Token

_ASKED = re.compile(r"^(?P<who>.+?)(?:'s)? birthday$")
_MEN = {"father", "husband", "brother", "son", "grandfather", "uncle"}
_WOMEN = {"mother", "wife", "sister", "daughter", "grandmother", "aunt"}
_CHILDREN = {"child", "son", "daughter", "kid", "boy", "girl"}
_BY_AGE = {"1": {"first", "eldest", "oldest", "firstborn"}, "2": {"second", "middle"}, "3": {"third", "youngest"}}
_BIRTHDAY = {"birthday", "birthdays", "birthday's"}
_TURNED = {"turned", "turns", "turning"}
_AGE = re.compile(r"\d|(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thir|for|fif)|\w+(?:teen|ty)$")
_RANKS = frozenset().union(*_BY_AGE.values())
_YOURSELF = "yourself"
_NEAR = 5  # tokens between a person and the birthday


def asked_persons(description: str) -> list[str] | None:
    """Returns the persons, one of whose birthday is asked for; None for a description of anything else.

    "husband (yourself) birthday" asks for the narrator's: husband or yourself.
    """
    match = _ASKED.match(description.strip())
    if match is None:
        return None
    names = [re.sub(r"^(?:my|our|the)\s+", "", name.strip()) for name in re.split(r"[()]", match["who"])]
    return [re.sub(r"'s$|'$", "", name) for name in names if name] or None


def has_birthday(tokens: Sequence[Token], person: str, stands: Callable[[int], bool]) -> bool:
    """Returns whether the text tells of `person`'s birthday; `stands` says of a token number that it is not negated."""
    for index, token in enumerate(tokens):
        birthday = token.word in _BIRTHDAY and _celebrated(tokens, index, person)
        turned = token.word in _TURNED and _age_follows(tokens, index) and _subject(tokens, index, person)
        if (birthday or turned) and stands(index):
            return True
    return False


def _celebrated(tokens: Sequence[Token], at: int, person: str) -> bool:
    """Whose birthday the word at `at` is: a possessive before it, a pronoun's owner, or "of/for X" after it."""
    sentence = tokens[at].sentence
    before = [index for index in range(max(0, at - _NEAR), at) if tokens[index].sentence == sentence]
    for index in reversed(before):
        word = tokens[index].word
        if word.endswith("'s") or word.endswith("s'"):
            return _is(tokens, index, person)
        if word in {"his", "her"}:
            return _owner(tokens, index) in _names(person)
        if word in {"my", "own"}:
            if index + 1 < at and _known(tokens[index + 1].stem):
                return _is(tokens, index + 1, person)
            return person == _YOURSELF
        if word == "whose":
            return index > 0 and _is(tokens, index - 1, person)
    after = [index for index in range(at + 1, min(len(tokens), at + 1 + _NEAR)) if tokens[index].sentence == sentence]
    joined = [index for index in after if tokens[index].word in {"of", "for"}]
    if joined:
        return any(_is(tokens, index, person) for index in after if index > joined[0])
    return any(_is(tokens, index, person) for index in before[-2:])


def _subject(tokens: Sequence[Token], at: int, person: str) -> bool:
    """Who turned an age: the word before the verb."""
    for index in range(at - 1, max(-1, at - 4), -1):
        if tokens[index].word == "i":
            return person == _YOURSELF
        if tokens[index].word in {"he", "she"}:
            return _owner(tokens, index) in _names(person)
        if _known(tokens[index].stem) or tokens[index].stem == person or tokens[index].word in _RANKS:
            return _is(tokens, index, person)
    return False


def _owner(tokens: Sequence[Token], at: int) -> str | None:
    """The nearest person before a pronoun that it can stand for."""
    people = _MEN if tokens[at].word in {"his", "he"} else _WOMEN
    for index in range(at - 1, -1, -1):
        if tokens[index].stem in people:
            return tokens[index].stem
    return None


def _names(person: str) -> set[str]:
    number = re.fullmatch(r"child_?(\d*)", person)
    return _CHILDREN if number else {person.split()[-1]}


def _is(tokens: Sequence[Token], at: int, person: str) -> bool:
    """Whether the token names the person; a numbered child must not be called by another child's rank."""
    word = re.sub(r"'s$|'$", "", tokens[at].word)
    number = re.fullmatch(r"child_?(\d*)", person)
    if number is None:
        return tokens[at].stem in _names(person) or word == person
    if re.fullmatch(r"child_\d+", word):
        return word == person
    ranks = {rank for rank, words in _BY_AGE.items() if {word, tokens[at - 1].word if at else ""} & words}
    named = tokens[at].stem in _CHILDREN or bool(ranks)
    return named and (not ranks or not number[1] or number[1] in ranks)


def _known(stem_: str) -> bool:
    return stem_ in _MEN | _WOMEN | _CHILDREN or stem_.startswith("child_")


def _age_follows(tokens: Sequence[Token], at: int) -> bool:
    return any(_AGE.match(token.word) for token in tokens[at + 1 : at + 3])
