"""Which sample a row of foreign answers belongs to.

    id      the row's id is the sample's id; taken when the first row has an id field
    prompt  the row's prompt is what the task asks or the prompt of its data (white space at the end apart), or the
            row's prompt_sha256 is that of what the task asks; taken when the first row has either. Samples that share
            a prompt take its rows in order.
    order   row 1 answers sample 1, and so on; as many rows as samples; only when asked for

A prompt or prompt_sha256 that a row has is checked whatever matched it. Every row has a sample and every sample one
row; samples without one can be allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from velox_eval.errors import DataError
from velox_eval.records.config import text_sha256
from velox_eval.tasks.base import Sample, TaskData
from velox_eval.tasks.sources import Row

MatchedBy = Literal["id", "prompt", "order"]
MATCHES: tuple[MatchedBy, ...] = ("id", "prompt", "order")
_NAMED = 3  # samples that a message names


class Matched(NamedTuple):
    """What told rows and samples together, and the row of each sample by the sample's index."""

    by: MatchedBy
    rows: dict[int, Row]


def match_rows(
    rows: Sequence[Row],
    fields: Mapping[str, str],
    data: TaskData,
    prompts: Sequence[str],
    *,
    by: MatchedBy | None = None,
    allow_missing: bool = False,
) -> Matched:
    """Returns the row of every sample; `fields` says where a row's id, prompt and prompt_sha256 are.

    `prompts` are what the task asks for `data.samples`. Raises DataError naming file, line and field of a row that
    belongs to no sample, to one that has a row already, or whose prompt is another sample's, and the samples without a
    row unless `allow_missing`.
    """
    by = by or _rule(rows[0], fields)
    matched: dict[int, Row] = {}
    for row, place in zip(rows, _places(by, rows, fields, data, prompts), strict=True):
        sample = data.samples[place]
        if place in matched:
            name = fields["id" if by == "id" else "prompt"]
            row.fail(name, f"sample {sample.sample_id!r} has its answer on {matched[place].where} already")
        _check_prompt(row, fields, sample, prompts[place])
        matched[place] = row
    missing = [sample.sample_id for index, sample in enumerate(data.samples) if index not in matched]
    if missing and not allow_missing:
        raise DataError(
            f"{rows[0].where.rpartition(', line')[0]}: {len(missing)} of {len(data.samples)} samples have no row: "
            f"{_some(missing)}; --allow-missing leaves them out and marks the run incomplete"
        )
    return Matched(by, matched)


def _rule(first: Row, fields: Mapping[str, str]) -> MatchedBy:
    if fields["id"] in first.value:
        return "id"
    if fields["prompt"] in first.value or fields["prompt_sha256"] in first.value:
        return "prompt"
    first.fail(
        fields["prompt"],
        f"is missing, and so is {fields['id']!r}: say which field holds one (--field id=NAME, --field prompt=NAME), "
        "or that the rows are in the task's order: --match order",
    )


def _places(
    by: MatchedBy, rows: Sequence[Row], fields: Mapping[str, str], data: TaskData, prompts: Sequence[str]
) -> list[int]:
    """The index of the sample that each row answers."""
    if by == "order":
        if len(rows) != len(data.samples):
            rows[-1].fail(
                fields["response"],
                f"is of row {len(rows)}, and the task has {len(data.samples)} samples: no order fits",
            )
        return list(range(len(rows)))
    if by == "id":
        by_id = {sample.sample_id: index for index, sample in enumerate(data.samples)}
        ids = [_identifier(row, fields["id"]) for row in rows]
        for row, name in zip(rows, ids, strict=True):
            if name not in by_id:
                row.fail(fields["id"], f"{name!r} is no sample of {data.origin} ({_scope(data)})")
        return [by_id[name] for name in ids]
    return _by_prompt(rows, fields, data, prompts)


def _by_prompt(rows: Sequence[Row], fields: Mapping[str, str], data: TaskData, prompts: Sequence[str]) -> list[int]:
    by_hash: dict[str, list[int]] = {}
    for index, sample in enumerate(data.samples):
        for key in {text_sha256(prompts[index]), *(text_sha256(text) for text in _texts(sample, prompts[index]))}:
            by_hash.setdefault(key, []).append(index)
    taken: dict[str, int] = {}
    places = []
    for row in rows:
        if fields["prompt_sha256"] in row.value:
            name, key = fields["prompt_sha256"], row.text(fields["prompt_sha256"])
        else:
            name, key = fields["prompt"], text_sha256(row.text(fields["prompt"]).rstrip())
        if key not in by_hash:
            row.fail(name, f"is of no sample of {data.origin} ({_scope(data)})")
        turn = taken.get(key, 0)
        taken[key] = turn + 1
        places.append(by_hash[key][min(turn, len(by_hash[key]) - 1)])
    return places


def _check_prompt(row: Row, fields: Mapping[str, str], sample: Sample, prompt: str) -> None:
    """Raises DataError when the row has a prompt and it is not the sample's."""
    name = fields["prompt"]
    if name in row.value and row.text(name).rstrip() not in _texts(sample, prompt):
        row.fail(name, f"is not the prompt of sample {sample.sample_id!r}, which the row is matched to")
    name = fields["prompt_sha256"]
    if name in row.value and row.text(name) != text_sha256(prompt):
        row.fail(name, f"is not that of sample {sample.sample_id!r}, which the row is matched to")


def _texts(sample: Sample, prompt: str) -> set[str]:
    """What a row may call the sample's prompt: what is asked and the data's own, without the white space at the end."""
    own = sample.data.get("prompt")
    return {prompt.rstrip(), *([own.rstrip()] if isinstance(own, str) else [])}


def _identifier(row: Row, name: str) -> str:
    value = row.need(name)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else row.text(name, most=200)


def _scope(data: TaskData) -> str:
    return data.incomplete or f"all {data.total}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
