"""What LongBench's rows and prompts are made of: data sets, templates, and the fields of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from velox_eval.errors import DataError
from velox_eval.metrics import longbench as metric
from velox_eval.tasks.sources import Row, describe

E_SUFFIX = "_e"


@dataclass(frozen=True)
class DataSet:
    """One data set as the task's definition states it (see tasks/longbench.toml)."""

    name: str
    kind: str
    language: str  # en, zh, or code
    metric: str
    max_tokens: int
    rows: int | None = None  # of the whole set; None: not known
    e: bool = False  # there is a LongBench-E version of it
    chat: bool = True
    first_line: bool = False
    newline_stops: bool = False


def data_sets(table: Mapping[str, Mapping[str, Any]]) -> dict[str, DataSet]:
    """Returns the data sets of a definition's table by name, with the LongBench-E version of each that has one."""
    sets = {name: DataSet(name=name, **fields) for name, fields in table.items()}
    for name, one in list(sets.items()):
        if one.e:
            sets[name + E_SUFFIX] = DataSet(**{**vars(one), "name": name + E_SUFFIX, "rows": None})
    return sets


@dataclass(frozen=True)
class Template:
    """A prompt's text in pieces: (literal text, name of the field that follows it or None)."""

    pieces: tuple[tuple[str, str | None], ...]

    def fill(self, fields: Mapping[str, str], mark: str) -> tuple[str, tuple[int, int] | None]:
        """Returns the prompt and where the field `mark` lies in it, None where it is empty or absent."""
        text, span = "", None
        for literal, field in self.pieces:
            text += literal
            if field is not None:
                start = len(text)
                text += fields[field]
                if field == mark and len(text) > start:
                    span = (start, len(text))
        return text, span


def braces_template(text: str, where: str) -> Template:
    """Returns the template of a text with {context} and {input}, doubled braces standing for themselves.

    Raises DataError for any other field: what a file names is never looked up in an object.
    """
    pieces = []
    try:
        for literal, field, spec, conversion in Formatter().parse(text):
            if field not in (None, "context", "input") or spec or conversion:
                raise DataError(f"{where}: a prompt may have {{context}} and {{input}}, not {{{field}}}")
            pieces.append((literal, field))
    except ValueError as error:
        raise DataError(f"{where}: is no prompt with {{context}} and {{input}}: {error}") from None
    return Template(tuple(pieces))


_DOLLARS = re.compile(r"\$(DOC|Q|C_[ABCD])\$")


def dollar_template(text: str, where: str, needs: Sequence[str]) -> Template:
    """Returns the template of a text with $DOC$, $Q$, $C_A$ to $C_D$. Raises DataError when one it needs is missing."""
    parts = _DOLLARS.split(text)
    fields = [*parts[1::2], None]
    missing = sorted(set(needs) - set(fields))
    if missing:
        raise DataError(f"{where}: has no ${'$, $'.join(missing)}$, so it is no prompt of LongBench v2")
    return Template(tuple(zip(parts[0::2], fields, strict=True)))


def read_templates(row: Row, names: Sequence[str]) -> dict[str, Template]:
    """Returns the templates of `names` from the authors' dataset2prompt.json, -E sets under the plain name's."""
    return {
        name: braces_template(row.text(plain_name(name)), f"{row.where}, field {plain_name(name)!r}") for name in names
    }


def plain_name(name: str) -> str:
    """Returns a data set's name without the ending of LongBench-E."""
    return name.removesuffix(E_SUFFIX)


def read_row(row: Row, one: DataSet, template: Template | None) -> dict[str, Any]:
    """Returns what a sample keeps of a row: prompt, span of its context, answers, classes, length.

    A row has either the authors' fields or, as in MiniLongBench, a finished prompt (origin_prompt) and `gold`.
    Raises DataError naming file, line and field.
    """
    if "origin_prompt" in row.value:
        data = _finished(row, one)
    else:
        if template is None:
            row.fail("origin_prompt", "is missing, and so are the templates for rows without a finished prompt")
        data = _official(row, one, template)
    for answer in data["answers"]:
        _check_answer(row, one, answer)
    return {"dataset": one.name, **data}


def _official(row: Row, one: DataSet, template: Template) -> dict[str, Any]:
    said = row.text("dataset")
    if plain_name(said) != plain_name(one.name):
        row.fail("dataset", f"is {said!r} in a file of {one.name}")
    fields = {"context": row.text("context"), "input": row.text("input", empty=True)}
    prompt, span = template.fill(fields, "context")
    row.text("_id")  # must be there; what repeats one is refused with the whole file
    classes = row.texts("all_classes") if one.metric == "classification" else []
    return {
        "prompt": prompt,
        "context": span,
        "answers": row.texts("answers"),
        "classes": classes,
        "length": row.whole("length", least=0),
    }


def _finished(row: Row, one: DataSet) -> dict[str, Any]:
    gold = row.need("gold")
    inner = Row(row.where, {f"gold.{key}": value for key, value in gold.items()} if isinstance(gold, dict) else {})
    if one.metric == "classification":
        if not isinstance(gold, dict):
            row.fail("gold", f"expected an object with answers and all_classes, got {describe(gold)}")
        answers, classes = inner.texts("gold.answers"), inner.texts("gold.all_classes")
    else:
        answers, classes = row.texts("gold") if not inner.value else inner.texts("gold.answers"), []
    return {
        "prompt": row.text("origin_prompt"),
        "context": None,
        "answers": answers,
        "classes": classes,
        "length": None,
    }


def _check_answer(row: Row, one: DataSet, answer: str) -> None:
    """Refuses an answer that its metric could never find, rather than count every prediction as wrong."""
    patterns = {"retrieval": r"Paragraph \d+", "retrieval_zh": r"段落\d+", "count": r"\A\d+\Z"}
    pattern = patterns.get(one.metric)
    if pattern is not None and re.search(pattern, answer) is None:
        row.fail("answers" if "answers" in row.value else "gold", f"{answer[:40]!r} names no number for {one.metric}")


def bucket(data: Mapping[str, Any]) -> str | None:
    """Returns the LongBench-E group of a sample; None where its data set has none, or its length is not known."""
    known = data["dataset"].endswith(E_SUFFIX) and data["length"] is not None
    return metric.length_bucket(data["length"]) if known else None
