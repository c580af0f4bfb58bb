"""Reads the question files of LongGenBench (Liu et al.): GSM8K rows, MMLU tables, and the authors' worked examples.

They come from the authors' repository at a pinned revision, or from a local folder laid out as its `data` folder.
GSM8K's rows are not in it: they come from their own authors' repository, or lie in that folder as GSM8K/test.jsonl.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velox_eval.errors import DataError
from velox_eval.metrics.longgenbench_qa import Kind, final_number
from velox_eval.tasks.sources import (
    Row,
    github_page,
    github_raw_url,
    official,
    read_official,
    read_rows,
    read_text,
    refuse_repeated,
)

LONGEST_QUESTION = 100_000  # characters; also what a table's cell may have
_COLUMNS = ("question", "A", "B", "C", "D", "answer")
_LETTERS = _COLUMNS[1:5]


@dataclass(frozen=True)
class Exam:
    """One prompt's questions with their solutions, the examples before them, and the number of the first question."""

    name: str  # what comparisons pair within
    kind: Kind
    examples: str
    first: int
    questions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Asked:
    """All prompts of a source, and what the record should say about it."""

    exams: tuple[Exam, ...]
    origin: str
    incomplete: str | None = None
    notes: tuple[str, ...] = ()


class AuthorsFiles:
    """Where the files are: in the authors' repository (`data` None), in a local folder, or one local file of rows."""

    def __init__(self, settings: Mapping[str, Any], data: str | None) -> None:
        self.settings = settings
        self.path = None if data is None else Path(data)
        self.home = f"{github_page(settings['repository'], settings['revision'])}/data"

    @property
    def question_file(self) -> Path | None:
        """The one file that --data names; None where it names a folder."""
        return None if self.path is None or self.path.is_dir() else self.path

    @property
    def origin(self) -> str:
        """What is read, for the record."""
        return self.home if self.path is None else self.path.name

    def rows(self, file: str, get: str) -> list[Row]:
        """Returns the rows of a JSON file of the folder (or, without one, of the repository)."""
        if self.path is None:
            return read_official(self._url(file))
        return read_rows(self.path / file, get=get)

    def text(self, file: str) -> tuple[str, str]:
        """Returns the text of a file and its name for messages."""
        if self.path is None:
            url = self._url(file)
            return official(url, str), url
        path = self.path / file
        return read_text(path, get=f"get it from {self.home}", kind="a text file"), str(path)

    def get(self, file: str) -> str:
        """Returns how to get a file, for messages."""
        return f"get {file} from {self.home}"

    def _url(self, file: str) -> str:
        return github_raw_url(self.settings["repository"], self.settings["revision"], f"data/{file}")


def gsm8k_exams(files: AuthorsFiles, entries: int) -> Asked:
    """Returns GSM8K's test questions behind the authors' examples, `entries` a prompt."""
    settings = files.settings["gsm8k"]
    examples, name = files.text(settings["examples"])
    if not examples.strip():
        raise DataError(f"{name}: is empty; {files.get(settings['examples'])}")
    url = github_raw_url(settings["rows_repository"], settings["rows_revision"], settings["rows_file"])
    if files.path is None:
        rows, most = read_official(url), settings["questions"]
    else:
        rows, most = read_rows(files.path / settings["rows"], get=f"get {url}"), None
    notes = () if most is None else (f"the first {most} of {len(rows)} questions, as the authors run it",)
    pairs = _gsm8k_rows(rows)[:most]
    return Asked(_split("gsm8k", pairs, entries, examples.strip(), settings["first"]), files.origin, notes=notes)


def file_exams(path: Path, files: AuthorsFiles, entries: int, examples: tuple[str, int]) -> Asked:
    """Returns the questions of one file of GSM8K's form behind our own examples, `entries` a prompt."""
    settings = files.settings["gsm8k"]
    rows = read_rows(path, get=f"give JSONL of {{question, answer}}, or a folder as {files.home}")
    pairs = _gsm8k_rows(rows)
    note = f"worked examples of ours: {path.name} has none (a folder with {settings['examples']} has)"
    return Asked(_split("gsm8k", pairs, entries, *examples), files.origin, notes=(note,))


def mmlu_exams(files: AuthorsFiles, entries: int) -> Asked:
    """Returns the first `entries` test questions of every subject behind the authors' examples, a prompt a subject."""
    settings = files.settings["mmlu"]
    table = files.rows(settings["examples"], files.get(settings["examples"]))
    if len(table) != 1:
        raise DataError(f"{table[0].where}: expected one object of subject -> examples, got {len(table)} rows")
    subjects = sorted(table[0].value)
    if files.path is None:
        present = subjects
    else:
        folder = files.path / settings["rows"]
        present = sorted(path.name.removesuffix("_test.csv") for path in folder.glob("*_test.csv"))
        if not present:
            raise DataError(f"{folder}: holds no SUBJECT_test.csv; {files.get(settings['rows'])}")
    exams = []
    for subject in present:
        examples = _mmlu_examples(table[0], subject)
        pairs = _mmlu_rows(*files.text(f"{settings['rows']}/{subject}_test.csv"))[:entries]
        exams.append(Exam(subject, "letter", examples, settings["first"], tuple(pairs)))
    missing = len(set(subjects) - set(present))
    return Asked(
        tuple(exams),
        files.origin,
        incomplete=f"{len(present)} of {len(subjects)} subjects" if missing else None,
        notes=(f"the first {entries} questions of each subject and no more, as the authors run it",),
    )


def _split(name: str, pairs: Sequence[tuple[str, str]], entries: int, examples: str, first: int) -> tuple[Exam, ...]:
    parts = (tuple(pairs[start : start + entries]) for start in range(0, len(pairs), entries))
    return tuple(Exam(name, "number", examples, first, part) for part in parts)


def _gsm8k_rows(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Questions, and what follows the last #### of their worked answers (all of one without)."""
    refuse_repeated(rows, "id")
    pairs = []
    for row in rows:
        solution = row.text("answer", most=LONGEST_QUESTION).rpartition("####")[2].strip()
        if final_number(solution) is None:
            row.fail("answer", f"comes to no number: {solution[:40]!r}")
        pairs.append((row.text("question", most=LONGEST_QUESTION).strip(), solution))
    return pairs


def _mmlu_examples(table: Row, subject: str) -> str:
    """The authors' examples of a subject with all questions before all answers, as their script arranges them."""
    blocks = table.text(subject).split("\n\nQ: ")[1:]
    pairs = [block.split("\nA: ", 1) for block in blocks]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        table.fail(subject, "is no list of worked examples: blocks of 'Q: ...' and 'A: ...' were expected")
    shown = [f"Question_{number}:\n{question.strip()}" for number, (question, _) in enumerate(pairs, 1)]
    shown += [f"Answer_{number}:\n{answer.strip()}" for number, (_, answer) in enumerate(pairs, 1)]
    return "\n\n".join(shown)


def _mmlu_rows(text: str, name: str) -> list[tuple[str, str]]:
    """Questions with their options on one line, and the right letter, of a table without a header."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    pairs = []
    try:
        for cells in reader:
            if not cells:
                continue
            where = f"{name}, line {reader.line_num}"
            if len(cells) != len(_COLUMNS):
                raise DataError(f"{where}: has {len(cells)} columns; expected {len(_COLUMNS)}: {', '.join(_COLUMNS)}")
            row = Row(where, dict(zip(_COLUMNS, cells, strict=True)))
            answer = row.text("answer").strip()
            if answer not in _LETTERS:
                row.fail("answer", f"is {answer[:40]!r}; one of {', '.join(_LETTERS)} was expected")
            options = " ".join(f"({letter}) {row.text(letter, empty=True).strip()}" for letter in _LETTERS)
            pairs.append((f"{row.text('question', most=LONGEST_QUESTION).strip()}\n{options}", answer))
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: broken CSV: {error}") from None
    if not pairs:
        raise DataError(f"{name}: holds no rows")
    return pairs
