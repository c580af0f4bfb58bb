"""Makes bundled questions from a seed: short word problems and questions of four options, our own words throughout.

The same seed gives the same questions on every machine (see tasks/draws.py). Every question comes with worked steps, so
that a few of them can stand in a prompt as examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from velox_eval.tasks.draws import Draws

GENERATOR = "velox-eval questions 1"
KINDS = ("arithmetic", "choice")

_PEOPLE = ("Amara", "Bjorn", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kemi", "Lars")
_THINGS = ("apples", "stamps", "pencils", "shells", "tickets", "marbles", "candles", "buttons", "postcards", "lemons")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_KINDS_OF = {
    "a fruit": ("plum", "cherry", "pear", "mango", "apricot"),
    "a bird": ("heron", "swift", "owl", "magpie", "finch"),
    "a tool": ("hammer", "chisel", "saw", "pliers", "spanner"),
    "a fish": ("trout", "carp", "herring", "salmon", "perch"),
    "a metal": ("copper", "zinc", "tin", "nickel", "iron"),
    "an instrument": ("cello", "flute", "oboe", "harp", "trumpet"),
}
_LETTERS = "ABCD"


class Question(NamedTuple):
    """A question, the steps to its answer, and the answer: digits, or a letter of its options."""

    text: str
    steps: str
    answer: str

    @property
    def solution(self) -> str:
        """The worked answer as an example shows it."""
        shown = f"({self.answer})" if self.answer in _LETTERS else self.answer
        return f"{self.steps} The answer is {shown}."


def questions(kind: str, seed: int, count: int, *name: object) -> list[Question]:
    """Returns `count` questions of a kind (KINDS), no two with one text; `name` tells streams of one seed apart."""
    draws = Draws(GENERATOR, kind, seed, *name)
    makers = _ARITHMETIC if kind == "arithmetic" else _CHOICE
    made: dict[str, Question] = {}
    while len(made) < count:
        question = makers[draws.below(len(makers))](draws)
        made.setdefault(question.text, question)
    return list(made.values())


def _between(draws: Draws, low: int, high: int) -> int:
    return low + draws.below(high - low + 1)


def _one(draws: Draws, items: tuple[str, ...]) -> str:
    return items[draws.below(len(items))]


def _gain_and_give(draws: Draws) -> Question:
    who, what = _one(draws, _PEOPLE), _one(draws, _THINGS)
    start, more, given = _between(draws, 12, 40), _between(draws, 5, 30), _between(draws, 3, 11)
    total = start + more
    return Question(
        f"{who} has {start} {what}, buys {more} more and gives {given} away. How many {what} are left?",
        f"{start} + {more} = {total}. {total} - {given} = {total - given}.",
        str(total - given),
    )


def _boxes(draws: Draws) -> Question:
    who, what = _one(draws, _PEOPLE), _one(draws, _THINGS)
    boxes, each, lost = _between(draws, 3, 9), _between(draws, 4, 12), _between(draws, 1, 9)
    total = boxes * each
    return Question(
        f"{who} packs {boxes} boxes with {each} {what} each. {lost} {what} get lost on the way. How many arrive?",
        f"{boxes} * {each} = {total}. {total} - {lost} = {total - lost}.",
        str(total - lost),
    )


def _shared(draws: Draws) -> Question:
    what = _one(draws, _THINGS)
    friends, each, rest = _between(draws, 3, 8), _between(draws, 4, 12), _between(draws, 1, 2)
    total = friends * each + rest
    return Question(
        f"{friends} friends share {total} {what} evenly and leave {rest} over. How many does each friend get?",
        f"{total} - {rest} = {total - rest}. {total - rest} / {friends} = {each}.",
        str(each),
    )


def _price(draws: Draws) -> Question:
    who, what = _one(draws, _PEOPLE), _one(draws, _THINGS)
    count, price, spare = _between(draws, 2, 9), _between(draws, 3, 12), _between(draws, 2, 20)
    paid = count * price + spare
    return Question(
        f"{who} pays for {count} {what} at {price} coins each with {paid} coins. How many coins come back?",
        f"{count} * {price} = {count * price}. {paid} - {count * price} = {spare}.",
        str(spare),
    )


def _twice(draws: Draws) -> Question:
    first, second = draws.pick(_PEOPLE, 2)
    what, few, times = _one(draws, _THINGS), _between(draws, 4, 15), _between(draws, 2, 4)
    return Question(
        f"{first} has {few} {what} and {second} has {times} times as many. How many do they have together?",
        f"{few} * {times} = {few * times}. {few} + {few * times} = {few + few * times}.",
        str(few + few * times),
    )


def _walk(draws: Draws) -> Question:
    who, days = _one(draws, _PEOPLE), _between(draws, 3, 7)
    each, extra = _between(draws, 4, 12), _between(draws, 2, 9)
    return Question(
        f"{who} walks {each} km a day for {days} days and {extra} km more on the way home. How many km is that in all?",
        f"{days} * {each} = {days * each}. {days * each} + {extra} = {days * each + extra}.",
        str(days * each + extra),
    )


def _options(draws: Draws, text: str, right: str, wrong: list[str], steps: str) -> Question:
    place = draws.below(len(_LETTERS))
    options = [*wrong[:place], right, *wrong[place:]]
    shown = " ".join(f"({letter}) {option}" for letter, option in zip(_LETTERS, options, strict=True))
    return Question(f"{text}\n{shown}", steps, _LETTERS[place])


def _largest(draws: Draws) -> Question:
    numbers = sorted(draws.pick(range(10, 100), 4), reverse=True)
    wrong = [str(number) for number in draws.pick(numbers[1:], 3)]
    return _options(draws, "Which number is the largest?", str(numbers[0]), wrong, f"{numbers[0]} is above all others.")


def _days_later(draws: Draws) -> Question:
    today, later = draws.below(7), _between(draws, 2, 6)
    right = _DAYS[(today + later) % 7]
    wrong = draws.pick([day for day in _DAYS if day != right], 3)
    text = f"Today is {_DAYS[today]}. Which day is it in {later} days?"
    return _options(draws, text, right, wrong, f"{later} days after {_DAYS[today]} comes {right}.")


def _odd_one(draws: Draws) -> Question:
    group, other = draws.pick(list(_KINDS_OF), 2)
    right, wrong = _one(draws, _KINDS_OF[group]), draws.pick(_KINDS_OF[other], 3)
    return _options(draws, f"Which of these is {group}?", right, wrong, f"Of the four, only {right} is {group}.")


def _next_term(draws: Draws) -> Question:
    start, step = _between(draws, 1, 9), _between(draws, 2, 9)
    terms = [start + step * index for index in range(4)]
    right = terms[-1] + step
    wrong = [str(number) for number in draws.pick([right - step - 1, right - 1, right + 1, right + step], 3)]
    text = f"What comes next: {', '.join(map(str, terms))}?"
    return _options(draws, text, str(right), wrong, f"Every number is {step} more; {terms[-1]} + {step} = {right}.")


_ARITHMETIC: tuple[Callable[[Draws], Question], ...] = (_gain_and_give, _boxes, _shared, _price, _twice, _walk)
_CHOICE: tuple[Callable[[Draws], Question], ...] = (_largest, _days_later, _odd_one, _next_term)
