"""LongGenBench (Liu et al.): many questions in one prompt; finding each answer by its number, and comparing it. Pure.

    accuracy           right / asked: a question without an answer counts as wrong
    accuracy_answered  right / answered
    answered           answered / asked

How this differs from the authors' script:

- An answer belongs to the question whose number its header names (`Answer_9:`), the first one with any text of a
  number counts, and a header of a question ends the answer before it. The script pairs answers and questions in order,
  so that one left out shifts all that follow, and leaves what has no partner out of the denominator.
- What counts is the line of the answer's last "answer is", else all of the answer; the script looks at the answer up
  to its first blank line. In both the last number, or the last letter of the options, decides.
- Numbers are equal by value: 18.00 is 18. The script compares text. A comma goes only between digits where it groups
  three; the script drops every comma of the answer and none of the solution. Both look past signs.
- A letter must stand by itself, in parentheses before without: the A of "Abdominal" is none. The script takes the last
  A, B, C or D of any word.

`official=True` compares one answer's text by the script's rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Literal, NamedTuple

from velox_eval.records.score import Score

Kind = Literal["number", "letter"]

# `Answer_9:` anywhere, with what numbers it in a list ("5. Answer_9:"); without the underscore, and for questions, only
# where a line begins.
_HEADER = re.compile(
    r"(?:^[^\w\n]*\d{1,4}[.)][^\w\n]*)?Answer_(?P<named>\d{1,9})(?!\d)(?=[*_)\s]*(?:[:.\n]|\Z))[*_)]*[:.]?"
    r"|^[^\w\n]*Answer[ #]+(?P<spaced>\d{1,9})(?!\d)[*_) ]*:"
    r"|^[^\w\n]*Question[_ #]*(?P<question>\d{1,9})(?!\d)",
    re.MULTILINE,
)
_CONCLUSION = re.compile(r"\banswer is\b(.*)", re.IGNORECASE)
_GROUPING = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"\d*\.?\d+")
_IN_PARENTHESES = re.compile(r"\(([A-D])\)")
_ALONE = re.compile(r"\b([A-D])\b")
_OFFICIAL_LETTER = re.compile("[ABCD]")
_MOST_DIGITS = 1000  # a looping model can write numbers of thousands of digits; those equal none


class QuestionResult(NamedTuple):
    """One question of one prompt: the number its answer goes by, whether it has one, whether that is right."""

    number: int
    answered: bool
    right: bool


def answers_by_number(text: str) -> dict[int, str]:
    """Returns question number -> what is written under the header of its answer, stripped, the first with any text."""
    found: dict[int, str] = {}
    headers = list(_HEADER.finditer(text))
    ends = [*(header.start() for header in headers[1:]), len(text)]
    for header, end in zip(headers, ends, strict=False):  # without any header there is an end alone
        number = header["named"] or header["spaced"]
        if number is None:
            continue
        answer = text[header.end() : end].strip(" \t\r\n*:")
        if answer:
            found.setdefault(int(number), answer)
    return found


def final_number(text: str, *, official: bool = False) -> str | None:
    """Returns the number that an answer comes to, digits and point; None when it has none."""
    if official:
        numbers = _NUMBER.findall(text.replace(",", ""))
        return numbers[-1] if numbers else None
    for part in _by_weight(text):
        numbers = _NUMBER.findall(_GROUPING.sub("", part))
        if numbers:
            return str(numbers[-1])
    return None


def final_letter(text: str, *, official: bool = False) -> str | None:
    """Returns the option, A to D, that an answer comes to; None when it names none."""
    if official:
        letters = _OFFICIAL_LETTER.findall(text)
        return letters[-1] if letters else None
    for part in _by_weight(text):
        letters = _IN_PARENTHESES.findall(part) or _ALONE.findall(part)
        if letters:
            return str(letters[-1])
    return None


def is_right(answer: str, solution: str, kind: Kind, *, official: bool = False) -> bool:
    """Returns whether `answer` comes to what `solution` comes to; an answer that comes to nothing is wrong."""
    if kind == "letter":
        letter = final_letter(answer, official=official)
        return letter is not None and letter == final_letter(solution, official=official)
    if official:  # the script strips commas from answers only
        numbers = _NUMBER.findall(solution)
        return bool(numbers) and final_number(answer, official=True) == numbers[-1]
    number, wanted = final_number(answer), final_number(solution)
    if number is None or wanted is None or max(len(number), len(wanted)) > _MOST_DIGITS:
        return False
    return Decimal(number) == Decimal(wanted)


def question_results(text: str, solutions: Mapping[int, str], kind: Kind) -> list[QuestionResult]:
    """Returns the result of every question asked, by its number; answers to other numbers count nothing."""
    found = answers_by_number(text)
    return [
        QuestionResult(number, number in found, number in found and is_right(found[number], solution, kind))
        for number, solution in solutions.items()
    ]


def qa_scores(results: Sequence[QuestionResult]) -> dict[str, Score]:
    """Returns accuracy, accuracy_answered and answered, as counts."""
    right, answered = sum(r.right for r in results), sum(r.answered for r in results)
    return {
        "accuracy": Score(num=right, den=len(results)),
        "accuracy_answered": Score(num=right, den=answered),
        "answered": Score(num=answered, den=len(results)),
    }


def _by_weight(text: str) -> list[str]:
    """The line of the last "answer is" if there is one, then all of the text."""
    conclusions = _CONCLUSION.findall(text)
    return [*conclusions[-1:], text]
