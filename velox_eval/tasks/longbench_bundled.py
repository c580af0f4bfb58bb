"""Makes LongBench-like rows from passages of ours and a seed: small, offline, one data set for each family of scores.

Passages are in tasks/longbench/passages.jsonl. The same seed gives the same rows everywhere: every draw is a SHA-256
of what it is for. Names of data sets are ours, so that nobody takes their scores for the authors' data sets'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from velox_eval.tasks.draws import Draws

GENERATOR = "velox-eval longbench passages 1"
CLASSES = ("date", "number", "number of years", "person", "place")  # one is part of another, as in the official sets
LETTERS = "ABCD"

Passage = Mapping[str, Any]
Made = dict[str, Any]  # input, context, answers and, of a classification, all_classes


def bundled_rows(name: str, passages: Sequence[Passage], seed: int, count: int) -> list[Made]:
    """Returns `count` rows of the bundled data set `name`. Raises KeyError for an unknown one."""
    make, language = _MAKERS[name]
    pool = [passage for passage in passages if passage["language"] == language]
    rows = []
    for index in range(count):
        draws = Draws(GENERATOR, name, seed, index)
        made = make(draws, pool, pool[(index + seed) % len(pool)])
        rows.append({"all_classes": None, **made, "_id": f"{name}-{seed}-{index}"})
    return rows


def bundled_choices(passages: Sequence[Passage], seed: int, count: int) -> list[Made]:
    """Returns `count` rows of four-way questions in LongBench v2's form; longer ones have more passages."""
    pool = [passage for passage in passages if passage["language"] == "en"]
    rows = []
    for index in range(count):
        draws = Draws(GENERATOR, "choice", seed, index)
        asked = pool[(index + seed) % len(pool)]
        length, size = (("short", 3), ("medium", 5), ("long", 7))[index % 3]
        options = draws.pick([asked["answers"][0], *asked["wrong"]], len(LETTERS))
        rows.append(
            {
                "_id": f"choice-{seed}-{index}",
                "domain": "notes",
                "sub_domain": asked["asks"],
                "difficulty": "hard" if asked["asks"].startswith("number") else "easy",
                "length": length,
                "question": asked["question"],
                **{f"choice_{letter}": option for letter, option in zip(LETTERS, options, strict=True)},
                "answer": LETTERS[options.index(asked["answers"][0])],
                "context": _notes(_around(draws, pool, asked, size)),
            }
        )
    return rows


def _around(draws: Draws, pool: Sequence[Passage], asked: Passage, size: int) -> list[Passage]:
    """`size` passages in drawn order, the one asked for among them."""
    others = draws.pick([passage for passage in pool if passage is not asked], size - 1)
    return draws.pick([asked, *others], size)


def _notes(chosen: Sequence[Passage]) -> str:
    return "\n\n".join(f"{passage['title']}: {passage['text']}" for passage in chosen)


def _question(draws: Draws, pool: Sequence[Passage], asked: Passage) -> Made:
    size = 5 if asked["language"] == "en" else 3  # Chinese takes several tokens a character in many models
    return {
        "input": asked["question"],
        "context": _notes(_around(draws, pool, asked, size)),
        "answers": list(asked["answers"]),
    }


def _label(draws: Draws, pool: Sequence[Passage], asked: Passage) -> Made:
    shown = _around(draws, pool, asked, 6)
    examples = [passage for passage in shown if passage is not asked]
    context = "\n".join(
        f"Note: {passage['text']}\nQuestion: {passage['question']}\nType: {passage['asks']}" for passage in examples
    )
    wanted = f"Note: {asked['text']}\nQuestion: {asked['question']}\nType:"
    return {"input": wanted, "context": context, "answers": [asked["asks"]], "all_classes": list(CLASSES)}


def _count(draws: Draws, pool: Sequence[Passage], asked: Passage) -> Made:
    different = 3 + draws.below(3)
    chosen = _around(draws, pool, asked, different)
    repeated = [chosen[draws.below(different)] for _ in range(6 - different)]
    context = _numbered(draws.pick([*chosen, *repeated], 6), "Paragraph {number}: {text}")
    return {"input": "", "context": context, "answers": [str(different)]}


def _find(draws: Draws, pool: Sequence[Passage], asked: Passage) -> Made:
    english = asked["language"] == "en"
    chosen = _around(draws, pool, asked, 5 if english else 3)
    name, pattern = ("Paragraph ", "Paragraph {number}: {text}") if english else ("段落", "段落{number}：{text}")
    answer = f"{name}{chosen.index(asked) + 1}"
    return {"input": asked["abstract"], "context": _numbered(chosen, pattern), "answers": [answer]}


def _numbered(chosen: Sequence[Passage], pattern: str) -> str:
    return "\n\n".join(pattern.format(number=number, text=passage["text"]) for number, passage in enumerate(chosen, 1))


def _summary(draws: Draws, pool: Sequence[Passage], asked: Passage) -> Made:
    chosen = _around(draws, pool, asked, 5)
    return {"input": "", "context": _notes(chosen), "answers": [" ".join(passage["abstract"] for passage in chosen)]}


_THINGS = ("boat", "bell", "hive", "ticket", "lamp", "rope", "letter", "kettle")


def _code(draws: Draws, pool: Sequence[Passage], asked: Passage) -> Made:
    """A class whose methods all add a thing in the same way; the last one breaks off after its first line."""
    things = draws.pick(_THINGS, 5)
    lines = ["class Ledger:", '    """Things the town owns, by kind."""', "", "    def __init__(self) -> None:"]
    lines += [f"        self.{thing}s: list[str] = []" for thing in things]
    for thing in things:
        lines += [
            "",
            f"    def add_{thing}(self, {thing}: str) -> int:",
            f'        """Adds a {thing} unless it is there and returns how many there are."""',
            f"        if {thing} not in self.{thing}s:",
            f"            self.{thing}s.append({thing})",
            f"        return len(self.{thing}s)",
        ]
    code, answer = lines[:-2], lines[-2]
    return {"input": "", "context": "\n".join(code) + "\n", "answers": [answer]}


_MAKERS: Mapping[str, tuple[Callable[[Draws, Sequence[Passage], Passage], Made], str]] = {
    "notes_qa": (_question, "en"),
    "notes_label": (_label, "en"),
    "notes_count": (_count, "en"),
    "notes_find": (_find, "en"),
    "notes_code": (_code, "en"),
    "notes_summary": (_summary, "en"),
    "notes_qa_zh": (_question, "zh"),
    "notes_find_zh": (_find, "zh"),
}
