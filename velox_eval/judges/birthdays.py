"""Whose birthday a text tells of: "my father birthday" is not any birthday near a father."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from velox_eval.judges.vocabulary import word_set
from velox_eval.judges.wording import Token, singular

_ASKED = re.compile(r"^(?P<who>.+?)(?:'s|s')? birthday$")
_MEN = word_set(
    """
    father husband brother son grandfather uncle nephew boy partner spouse
    """
)
_WOMEN = word_set(
    """
    mother wife sister daughter grandmother aunt niece girl partner spouse
    """
)
_CHILDREN = word_set("child son daughter boy girl")
_PARTNERS = {"wife", "husband"}
_BY_AGE = {
    "1": {"first", "1st", "eldest", "oldest", "firstborn", "older", "elder"},
    "2": {"second", "2nd", "middle"},
    "3": {"third", "3rd", "youngest"},
}
_RANKS = frozenset().union(*_BY_AGE.values())
_STAND_ALONE = {"eldest", "oldest", "youngest", "firstborn"}  # "our youngest" is a child; "the second" is not
_TIMES = word_set(
    """
    today tomorrow yesterday week month year day night morning evening monday tuesday wednesday thursday friday
    saturday sunday january february march april may june july august september october november december
    """
)
_BIRTHDAY = {"birthday", "birthdays", "birthday's", "bday"}
_TURNED = {"turned", "turns", "turning", "turn"}
_BLEW = {"blew", "blows", "blowing", "blow"}
_AGE = re.compile(
    r"(?:\d{1,3}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty)$"
)
# The birthday is spoken of on another day: said after it, or before whose it is.
_OTHER_DAY = re.compile(
    r"^(?:\w+ ){0,2}?(?:which |that |and it )?(?:is|isn't|falls|comes|will be|was)(?: still| only| always)? "
    r"(?:in (?!this|the (?:middle|evening|garden))|next|last|coming|approaching|around|not (?:until|till|for)|"
    r"(?:\w+ ){1,2}(?:away|ago|off))|^(?:next|last) (?:week|month|year)|"
    r"^in (?:january|february|march|april|may|june|july|august|september|october|november|december)\b"
)
_NOT_THE_DAY = re.compile(
    r"\b(?:(?:day|days|week|weeks|month|months|soon|shortly) (?:before|after)|since|ahead of|leftovers from|until)"
    r"(?: \w+){0,4}$"
)
_ORDINAL = re.compile(r"\d{2}th$|\w+(?:ieth|teenth)$")  # "Dad's seventieth"
_YOURSELF = "yourself"
_FIRST_PERSON = {"i", "me", "my", "we", "our", "us", "i'm", "mine", "i've", "we're"}
_NEAR = 6  # tokens between a person and the birthday
_FAR = 80  # tokens between a pronoun and whom it stands for


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
    people = _People(tokens, person)
    for index, token in enumerate(tokens):
        if token.word in _BIRTHDAY:
            found = people.celebrates(index) and people.on_the_day(index)
        elif token.word in _TURNED:
            found = people.age_follows(index) and people.is_subject(index)
        elif _ORDINAL.match(token.word) and index:
            owned = tokens[index - 1].word.endswith("'s") and people.names_it(index - 1)
            found = owned and people.celebrated
        elif token.word in _BLEW:
            following = {other.noun for other in tokens[index + 1 : index + 6]}
            found = bool(following & {"candle"}) and people.is_subject(index)
        else:
            continue
        if found and stands(index):
            return True
    return False


class _People:
    """The persons of one text, and which of them is the one that is asked for."""

    def __init__(self, tokens: Sequence[Token], person: str) -> None:
        self.tokens = tokens
        self.person = person
        number = re.fullmatch(r"child[_ ]?(\d*)", person)
        self.child = None if number is None else number[1]
        self.kin = singular(person.split()[-1])
        self.told_by_one = any(token.word in _FIRST_PERSON for token in tokens)
        self.celebrated = any(token.noun in {"birthday", "cake", "candle"} for token in tokens)
        self.names = self._names()

    def _names(self) -> dict[str, int]:
        """Names that the text explains: "my wife, Emily" and "Lily, our daughter" -> the relative's token number."""
        names: dict[str, int] = {}
        for at, token in enumerate(self.tokens):
            if token.noun not in _MEN | _WOMEN | _CHILDREN or token.word.endswith("'s"):
                continue
            if at + 1 < len(self.tokens) and self._is_name(at + 1, token.sentence):
                names.setdefault(self.tokens[at + 1].noun, at)
            start = at - 1 - (at > 1 and self.tokens[at - 1].word in _RANKS)
            explains = start > 0 and self.tokens[start].word in {"my", "our"}
            if explains and self.tokens[start - 1].item != token.item and self._is_name(start - 1, token.sentence):
                names.setdefault(self.tokens[start - 1].noun, at)
        return names

    def _is_name(self, at: int, sentence: int) -> bool:
        token = self.tokens[at]
        starts = at == 0 or self.tokens[at - 1].sentence != token.sentence
        known = token.noun in _TIMES or token.noun in _MEN | _WOMEN | _CHILDREN or token.word.startswith(("i'", "i "))
        return (
            token.capital and token.sentence == sentence and not known and token.word != "i" and (not starts or at > 0)
        )

    def names_it(self, at: int) -> bool:
        """Whether the token at `at` names the person."""
        return self._is(at)

    def celebrates(self, at: int) -> bool:
        """Whose birthday the word at `at` is: a possessive before it, a pronoun's owner, or "of/for X" after it."""
        tokens = self.tokens
        sentence = tokens[at].sentence
        before = [index for index in range(max(0, at - _NEAR), at) if tokens[index].sentence == sentence]
        for index in reversed(before):
            word = tokens[index].word
            if word.endswith(("'s", "s'")) and tokens[index].noun not in _TIMES and word not in {"it's", "that's"}:
                return self._is(index) or self._two_owners(index)
            if word in {"his", "her", "him"}:
                owner = self._owner(index)
                return owner is not None and self._is(owner)
            if word in {"my", "own", "our"}:
                if index + 1 < at and self._known(index + 1):
                    return self._is(index + 1)
                ranked = index + 2 < at and self._known(index + 2)
                if ranked or word == "our":
                    return ranked and self._is(index + 2)
                return self.person == _YOURSELF
            if word == "whose":
                return any(self._is(other) for other in range(max(0, index - 2), index))
            if word == "me":
                return self.person == _YOURSELF
        after = [
            index for index in range(at + 1, min(len(tokens), at + 1 + _NEAR)) if tokens[index].sentence == sentence
        ]
        joined = [index for index in after if tokens[index].word in {"of", "for", "to"}]
        if joined:
            told = [index for index in after if index > joined[0]]
            mine = self.person == _YOURSELF and tokens[told[0]].word in {"me", "mine"} if told else False
            return mine or any(self._is(index) and not tokens[index].word.endswith("'s") for index in told)
        if at and tokens[at - 1].word == "the":
            return self.is_subject(at, back=1)  # "She is eight now ... the birthday cake"
        return any(self._is(index) for index in before[-2:])

    def on_the_day(self, at: int) -> bool:
        """Whether the birthday at `at` is told of as it comes, not "in August" or "the week before"."""
        sentence = self.tokens[at].sentence
        after = [token.word for token in self.tokens[at + 1 : at + 9] if token.sentence == sentence]
        before = [token.word for token in self.tokens[max(0, at - 7) : at] if token.sentence == sentence]
        return not (_OTHER_DAY.search(" ".join(after)) or _NOT_THE_DAY.search(" ".join(before)))

    def age_follows(self, at: int) -> bool:
        """Whether an age comes within two words of "turned"."""
        return any(_AGE.match(token.word) for token in self.tokens[at + 1 : at + 3])

    def is_subject(self, at: int, back: int = 0) -> bool:
        """Whether the person is who the word at `at` is about: the nearest before it, at most `back` sentences away."""
        for index in range(at - 1, max(-1, at - 6 - 15 * back), -1):
            token = self.tokens[index]
            if token.sentence < self.tokens[at].sentence - back:
                return False
            if token.word in {"i", "i've", "i'm"}:
                return self.person == _YOURSELF
            if token.word in {"he", "she"}:
                owner = self._owner(index)
                return owner is not None and self._is(owner)
            if self._known(index):
                return self._is(index)
        return False

    def _owner(self, at: int) -> int | None:
        """The nearest person before a pronoun that it can stand for."""
        people = _MEN if self.tokens[at].word in {"his", "he", "him"} else _WOMEN
        for index in range(at - 1, max(-1, at - _FAR), -1):
            noun = self.tokens[self.names.get(self.tokens[index].noun, index)].noun
            ranked = self.tokens[index].word in _STAND_ALONE or noun.startswith("child")
            if (noun in people or ranked) and not self._elses(index):
                return index
        return None

    def _two_owners(self, at: int) -> bool:
        """Whether the person is the first of two: "my father and my wife's birthday"."""
        words = [token.word for token in self.tokens[max(0, at - 3) : at]]
        return "and" in words and any(self._is(index) for index in range(max(0, at - 4), at - 1))

    def _known(self, at: int) -> bool:
        token = self.tokens[at]
        return (
            token.noun in _MEN | _WOMEN | _CHILDREN
            or token.noun == self.kin
            or token.noun in self.names
            or token.noun.startswith("child_")
            or token.word in _STAND_ALONE
        )

    def _elses(self, at: int) -> bool:
        """Whether the relative at `at` is another person's ("my friend's father"), or not by blood ("in law")."""
        following = [token.word for token in self.tokens[at + 1 : at + 3]]
        if following[:1] == ["in"] and following[1:] and following[1].startswith("law"):
            return True
        before = self.tokens[at - 1].word if at else ""
        if before in {"step", "god", "great", "foster"}:
            return True
        others = before.endswith(("'s", "s'")) and self.tokens[at - 1].noun not in _TIMES
        return self.told_by_one and (others or before in {"his", "her", "their", "your"})

    def _is(self, at: int) -> bool:
        """Whether the token names the person; a numbered child must not be called by another child's rank."""
        index = self.names.get(self.tokens[at].noun, at)
        token = self.tokens[index]
        if self._elses(index):
            return False
        if self.child is None:
            same = token.noun == self.kin or (token.noun in {"partner", "spouse"} and self.kin in _PARTNERS)
            return same and self.person != _YOURSELF
        numbered = re.fullmatch(r"child_(\d+)", token.noun)
        if numbered is None and token.noun == "child" and index + 1 < len(self.tokens):
            numbered = re.fullmatch(r"(\d+)(?:'s)?", self.tokens[index + 1].word)
        if numbered:
            return not self.child or numbered[1] == self.child
        said = {token.word.removesuffix("'s"), self.tokens[index - 1].word if index else ""}
        ranks = {rank for rank, words in _BY_AGE.items() if said & words}
        named = token.noun in _CHILDREN or bool(said & _STAND_ALONE)
        return named and (not ranks or not self.child or self.child in ranks)
