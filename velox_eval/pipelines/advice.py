"""Advice from evidence: measured methods that fit a memory, the Pareto front of loss, bytes and speed, what is missing.

Losses and speeds are those measured, at the lengths, budgets and on the models they were measured on; only bytes are
worked out for the lengths asked (velox_eval/pipelines/capacity.py). What was measured elsewhere stands apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from velox_eval.engine.memory import machine_memory
from velox_eval.engine.model_identity import content_sha256
from velox_eval.engine.skeleton import Skeleton, find_configuration
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods import MethodConfig, resolve
from velox_eval.pipelines.capacity import BASELINE, Need, Planner
from velox_eval.pipelines.evidence import Measured
from velox_eval.records.config import DEFAULT_PREFILL_STEP, Frozen
from velox_eval.tasks import task_info

LENGTH_FACTOR = 2.0  # prompt and answer both within this factor of those asked: the same length
FEW = 30  # pairs below which an interval is called rough
SAMPLES = 12

Where = Literal["this model and length", "this model, other lengths", "other models"]
PLACES: tuple[Where, ...] = ("this model and length", "this model, other lengths", "other models")


class Choice(Frozen):
    """A measured method with what it would take at the lengths asked."""

    evidence: Measured
    bytes: int  # caches of one sequence at the lengths asked, worked out
    most: int  # sequences that fit
    share: float | None  # rows kept of the sequence asked, at most
    front: bool  # on the Pareto front of its table


class EvidenceTable(Frozen):
    """Choices that were measured under the same conditions; losses of different tables do not compare."""

    where: Where
    title: str
    score: str
    higher_is_better: bool
    full_value: float | None
    prompt_tokens: int
    answer_tokens: int
    choices: list[Choice]  # those that fit, the least loss first
    too_big: list[str]  # measured, but does not fit
    unknown: list[str]  # measured, but its bytes cannot be worked out, with the reason
    front_overlaps: bool  # whether neighbours on the front have losses whose intervals meet


class Advice(Frozen):
    """What was asked, what full would take, the evidence by where it is from, and the sweep that would give more."""

    model: str
    prompt: int
    answer: int
    memory_bytes: int
    cache_room: int
    full_bytes: int
    full_most: int
    budgets: list[int]  # whose rows were counted for the suite
    tables: list[EvidenceTable]
    missing: list[str]
    suite: str  # TOML
    notes: list[str]


def advise(
    skeleton: Skeleton,
    evidence: Sequence[Measured],
    *,
    prompt: int,
    answer: int,
    memory: int | None = None,
    task: str | None = None,
    prefill_step: int = DEFAULT_PREFILL_STEP,
) -> Advice:
    """Returns the advice for one sequence of `prompt` + `answer` tokens within `memory` bytes (default: the machine's).

    `task` limits the evidence to that task. Raises ConfigError for a task or sizes that do not exist.
    """
    if task is not None:
        task_info(task)
    if prompt < 1 or answer < 1:
        raise ConfigError(f"prompt={prompt} and answer={answer} must be at least 1")
    memory = machine_memory() if memory is None else memory
    room = memory - skeleton.weights_bytes
    full = Planner(skeleton, prefill_step).need(resolve(BASELINE), prompt, answer, batch=1, room=room)
    rows = [row for row in evidence if task is None or row.task == task]
    sha = _identity(skeleton)
    groups: dict[tuple[Where, str, int, int], list[Measured]] = {}
    for row in rows:
        where = _where(row, skeleton.name, sha, prompt, answer)
        key = (where, str(sorted(row.conditions.items())), row.prompt_tokens, row.answer_tokens)
        groups.setdefault(key, []).append(row)
    tables = [_table(key[0], group, skeleton, full, room) for key, group in groups.items()]
    tables.sort(key=lambda table: (PLACES.index(table.where), table.title))
    budgets = _budgets(prompt + answer)
    return Advice(
        model=skeleton.name,
        prompt=prompt,
        answer=answer,
        memory_bytes=memory,
        cache_room=room,
        full_bytes=full.batch_bytes,
        full_most=full.most,
        budgets=budgets,
        tables=tables,
        missing=_missing(rows, tables, skeleton.name, prompt, answer, task),
        suite=_suite(skeleton.name, prompt, answer, task, budgets),
        notes=_notes(skeleton, tables, prompt + answer),
    )


def _identity(skeleton: Skeleton) -> str | None:
    """The model's content, where its weights are here."""
    folder = find_configuration(skeleton.name)
    return content_sha256(folder) if any(folder.glob("model*.safetensors")) else None


def _where(row: Measured, name: str, sha: str | None, prompt: int, answer: int) -> Where:
    same = row.model_sha256 == sha if sha is not None else row.model == name
    if not same:
        return "other models"
    near = [
        measured > 0 and 1 / LENGTH_FACTOR <= asked / measured <= LENGTH_FACTOR
        for asked, measured in ((prompt, row.prompt_tokens), (answer, row.answer_tokens))
    ]
    return "this model and length" if all(near) else "this model, other lengths"


def _table(where: Where, rows: Sequence[Measured], skeleton: Skeleton, full: Need, room: int) -> EvidenceTable:
    """`full`: what the full cache needs. Chunks of the prompt are those that the runs had: they decide what is held."""
    found, too_big, unknown = [], [], []
    prompt, answer = full.prompt, full.answer
    planner = Planner(skeleton, int(rows[0].conditions.get("prefill_step", DEFAULT_PREFILL_STEP)))
    for row in rows:
        try:
            method = resolve(row.method, dict(row.params), budget=row.budget, keep=row.keep)
            need = planner.need(method, prompt, answer, batch=1, room=room)
        except (ConfigError, MethodError) as error:
            unknown.append(f"{row.label}: {error}")
            continue
        if need.most < 1:
            too_big.append(row.label)
            continue
        share = _share(method, prompt + answer)
        found.append(Choice(evidence=row, bytes=need.batch_bytes, most=need.most, share=share, front=False))
    found = [
        choice.model_copy(update={"front": not (_dominated(choice, found) or _worse_than_full(choice, full))})
        for choice in found
    ]
    found.sort(key=lambda choice: (choice.evidence.loss, choice.bytes))
    first = rows[0]
    return EvidenceTable(
        where=where,
        title=first.title,
        score=first.score,
        higher_is_better=first.higher_is_better,
        full_value=first.full_value,
        prompt_tokens=first.prompt_tokens,
        answer_tokens=first.answer_tokens,
        choices=found,
        too_big=too_big,
        unknown=unknown,
        front_overlaps=_overlap([choice.evidence for choice in found if choice.front]),
    )


def _share(method: MethodConfig, total: int) -> float | None:
    budget = method.budget_for(total)
    return None if budget is None else min(1.0, budget / total)


def _dominated(one: Choice, others: Sequence[Choice]) -> bool:
    """Whether another loses no more, takes no more bytes and is no slower, and is better in one of them.

    Speeds are over full's; one that is not known is not better than any.
    """
    for other in others:
        ours, theirs = (choice.evidence for choice in (one, other))
        slower = (theirs.decode_ratio or 0.0) < (ours.decode_ratio or 0.0)
        if theirs.loss > ours.loss or other.bytes > one.bytes or slower:
            continue
        if (
            theirs.loss < ours.loss
            or other.bytes < one.bytes
            or (theirs.decode_ratio or 0.0) > (ours.decode_ratio or 0.0)
        ):
            return True
    return False


def _worse_than_full(one: Choice, full: Need) -> bool:
    """Whether the full cache fits, loses no more, takes no more bytes and is no slower."""
    slower = (one.evidence.decode_ratio or 0.0) <= 1.0
    return full.most > 0 and one.evidence.loss >= 0 and one.bytes >= full.batch_bytes and slower


def _overlap(front: Sequence[Measured]) -> bool:
    """Whether two neighbours by loss have intervals that meet."""
    ordered = sorted(front, key=lambda row: row.loss)
    return any(
        better.loss_high is None or worse.loss_low is None or better.loss_high >= worse.loss_low
        for better, worse in pairwise(ordered)
    )


def _missing(
    rows: Sequence[Measured], tables: Sequence[EvidenceTable], name: str, prompt: int, answer: int, task: str | None
) -> list[str]:
    """What nothing was measured for, plainly."""
    of_task = f" on {task}" if task else ""
    if not rows:
        return [f"no measured run{of_task} at all: neither in the results nor among those that come with velox-eval"]
    if not any(table.where != "other models" for table in tables):
        known = ", ".join(sorted({row.model for row in rows}))
        return [f"no measured run of {name}{of_task}; measured: {known}"]
    if not any(table.where == "this model and length" for table in tables):
        lengths = sorted({(t.prompt_tokens, t.answer_tokens) for t in tables if t.where == "this model, other lengths"})
        known = ", ".join(f"{p:,} + {a:,}" for p, a in lengths)
        return [
            f"no measured run of {name}{of_task} near {prompt:,} + {answer:,} tokens (each within a factor of "
            f"{LENGTH_FACTOR:g}); measured at {known}"
        ]
    return []


def _budgets(total: int) -> list[int]:
    """A sixteenth, an eighth and a quarter of the sequence, as powers of two from 32 on."""
    return sorted({max(32, 1 << ((total // share).bit_length() - 1)) for share in (16, 8, 4)})


def _suite(model: str, prompt: int, answer: int, task: str | None, budgets: Sequence[int]) -> str:
    """The sweep that would measure at these lengths: TOML for `velox-eval sweep FILE`."""
    name = task or ("longbench" if prompt > answer else "longgenbench")
    lines = [
        "# What `velox-eval advise` has no evidence for.",
        "",
        'kind = "sweep"',
        'name = "advise"',
        f"models = [{_quoted(model)}]",
        f"budgets = {list(budgets)}",
        "leave_out_impossible = true",
        "",
        "[[task]]",
        f"name = {_quoted(name)}",
        f"limit = {SAMPLES}",
    ]
    if name != "longbench":
        lines.append(f"max_tokens = {answer}")
    else:
        lines += ['source = "official"', f"max_prompt_tokens = {prompt}"]
    if name == "longgenbench":
        lines.append(f"entries = {max(4, answer // 48)}")  # an entry of ours is about that long
    for method in ("streaming_llm", "snapkv:paper", "h2o:paper", "tova:paper", "kvzip:paper", "morphkv:paper"):
        lines += ["", "[[method]]", f"name = {_quoted(method)}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML string; models may be paths."""
    if any(ord(character) < 32 or character == "\x7f" for character in text):
        raise ConfigError(f"model={text!r} has control characters")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _notes(skeleton: Skeleton, tables: Sequence[EvidenceTable], total: int) -> list[str]:
    notes = ["Bytes are worked out for the lengths asked; losses and speeds are as they were measured."]
    fewest = min((c.evidence.pairs for t in tables for c in t.choices), default=FEW)
    if fewest < FEW:
        notes.append(f"Down to {fewest} samples a method: intervals of so few are rough.")
    if any(table.front_overlaps for table in tables):
        notes.append("Some neighbours on a front have intervals that meet: their order is not settled.")
    if any(t.where == "this model, other lengths" for t in tables):
        notes.append(
            "At other lengths the same budget is another share of the sequence; nothing says that the loss stays."
        )
    if any(t.where == "other models" for t in tables):
        notes.append("Losses on other models say nothing certain of this one.")
    if skeleton.context_length is not None and total > skeleton.context_length:
        notes.append(f"{total:,} tokens are more than the model's context of {skeleton.context_length:,}.")
    return [*notes, *skeleton.assumed]
