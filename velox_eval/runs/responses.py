"""Scores answers that somebody else's program wrote, read from a file, as if this harness had. Needs no model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, DataError, unknown_name
from velox_eval.judges.base import Judge
from velox_eval.judges.stored import StoredRatings
from velox_eval.records.config import Identity, TaskChoice, build_config, canonical_json, text_sha256
from velox_eval.records.schema import MethodInfo, ModelInfo, ResponsesInfo, RunHeader
from velox_eval.runs.environment import package_versions
from velox_eval.runs.headers import data_info, draft_header, open_folder
from velox_eval.runs.judging import DEFAULT_JUDGING, JudgeOptions, open_judge
from velox_eval.runs.matching import MATCHES, MatchedBy, match_rows
from velox_eval.runs.plan import task_options
from velox_eval.runs.recorder import RunResult, result_of
from velox_eval.runs.rescore import Answer, score_answers
from velox_eval.runs.sample import text_fields
from velox_eval.tasks import Task, TaskData, get_task
from velox_eval.tasks.sources import Row, read_rows

UNKNOWN = "unknown"
FIELDS: Mapping[str, str] = {  # what is read -> the field it is in, where nobody says otherwise
    "response": "response",
    "id": "sample_id",
    "prompt": "prompt",
    "prompt_sha256": "prompt_sha256",
}
READABLE = (*FIELDS, "ratings")
LONGEST_RESPONSE = 5_000_000  # characters


@dataclass(frozen=True)
class ResponseOptions:
    """What a user may choose about scoring a file of answers."""

    responses: str
    task: str
    fields: Mapping[str, str] = field(default_factory=dict)  # READABLE -> field of the file
    match: MatchedBy | None = None  # None: by id, else by prompt
    allow_missing: bool = False
    name: str | None = None  # what wrote the answers, for tables; None: the file's name
    model: str = UNKNOWN  # the model that did, as claimed
    rated_by: str | None = None  # who gave stored ratings
    source: str | None = None
    data: str | None = None
    limit: int | None = None
    entries: int | None = None
    variant: str | None = None
    data_seed: int = 0
    judge: str = "rules"
    judging: JudgeOptions = DEFAULT_JUDGING
    results: Path = Path("results")
    again: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Given:
    """One row as far as it is used."""

    row: Row
    response: str
    ratings: Any | None


def score_responses(options: ResponseOptions) -> RunResult:
    """Returns a run under `options.results` that holds the file's answers and their scores.

    Its header says that the answers are foreign: `responses` names the file, method and model are what the options
    call them, everything about how they were generated is unknown. The same file scored the same way again shows the
    first result unless `again`. Raises ConfigError for options that cannot work and DataError naming file, line and
    field; nothing is written then.
    """
    name, fields = _check(options)
    choice = TaskChoice(
        name=options.task,
        **{key: getattr(options, key) for key in ("source", "data", "limit", "entries", "variant", "data_seed")},
    )
    task = get_task(options.task, task_options(choice))
    judge = open_judge(options.judge, options.judging)
    path = Path(options.responses)
    rows = read_rows(path, get="give JSONL or a JSON array with one answer an object")
    data = task.load()
    prompts = _prompts(task, data)
    matched = match_rows(rows, fields, data, prompts, by=options.match, allow_missing=options.allow_missing)
    given = [(index, _read(row, fields)) for index, row in sorted(matched.rows.items())]
    answers = [_answer(data, prompts, index, item, judge, options) for index, item in given]
    about = ResponsesInfo(
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        rows=len(rows),
        fields={key: fields[key] for key in READABLE if key in fields and fields[key] in rows[0].value},
        matched_by=matched.by,
        rated_by=(options.rated_by or UNKNOWN) if "ratings" in fields else None,
    )
    draft = _draft(options, name, choice, task, data, given, answers[0].judge, about)
    with open_folder(options.results, draft, judge, again=options.again) as folder:
        if folder.state != "finished":
            score_answers(folder, answers, task, command=options.command)
        return result_of(folder)


def _check(options: ResponseOptions) -> tuple[str, dict[str, str]]:
    """The run's name and the fields to read. Raises ConfigError."""
    for key in options.fields:
        if key not in READABLE:
            raise ConfigError(unknown_name("--field", key, READABLE))
    if options.match is not None and options.match not in MATCHES:
        raise ConfigError(unknown_name("--match", options.match, MATCHES))
    if options.rated_by is not None and "ratings" not in options.fields:
        raise ConfigError(f"rated_by={options.rated_by!r} without stored ratings; say where: --field ratings=FIELD")
    name = options.name
    if name is None:
        name = re.sub(r"[^\w.+=-]+", "-", Path(options.responses).stem)[:80].strip("-.") or "responses"
    for what, value in (("name", name), ("model", options.model), ("rated_by", options.rated_by or UNKNOWN)):
        if not re.fullmatch(r"\w[\w.+=:/@ -]{0,79}", value) or (what == "name" and "/" in value):
            raise ConfigError(f"{what}={value!r}: letters, digits and .+=:@- are allowed, 80 at most")
    return name, {**FIELDS, **options.fields}


def _prompts(task: Task, data: TaskData) -> list[str]:
    requests = [task.request(sample) for sample in data.samples]
    if not requests:
        raise DataError(f"{task.info.name}: {data.origin} holds no samples")
    if not isinstance(requests[0], Generate):
        raise ConfigError(f"task {task.info.name} measures a model's probabilities; it has no answers to score")
    return [request.prompt for request in requests]


def _read(row: Row, fields: Mapping[str, str]) -> _Given:
    ratings = None
    if "ratings" in fields:
        ratings = row.need(fields["ratings"])
        if not isinstance(ratings, dict | str):
            row.fail(fields["ratings"], "expected an object of points or a judge's reply as text")
    return _Given(row, row.text(fields["response"], empty=True, most=LONGEST_RESPONSE), ratings)


def _answer(
    data: TaskData, prompts: Sequence[str], index: int, given: _Given, judge: Judge, options: ResponseOptions
) -> Answer:
    sample = data.samples[index]
    fields = {
        "sample_id": sample.sample_id,
        "index": index,
        "stratum": sample.stratum,
        "prompt_sha256": text_sha256(prompts[index]),
        **text_fields(given.response),
    }
    if given.ratings is not None:
        judge = StoredRatings(judge, given.ratings, options.rated_by or UNKNOWN)
    return Answer(fields, sample, given.response, judge)


def _draft(
    options: ResponseOptions,
    name: str,
    choice: TaskChoice,
    task: Task,
    data: TaskData,
    given: Sequence[tuple[int, _Given]],
    judge: Judge,
    about: ResponsesInfo,
) -> RunHeader:
    """The header of a run of foreign answers: known is what the file holds and what its giver claims, nothing else."""
    ids = [data.samples[index].sample_id for index, _ in given]
    content = [[key, item.response, item.ratings] for key, (_, item) in zip(ids, given, strict=True)]
    label = f"responses/{name}"
    config = build_config(
        task={**choice.model_dump(), "source": data.source},
        model=options.model,
        method=label,
        judge=options.judge,
        judge_repeats=1 if options.judging.repeats is None else options.judging.repeats,
    )
    claimed = UNKNOWN if options.model == UNKNOWN else f"{UNKNOWN}, claimed to be {options.model}"
    prompts = [
        [key, text_sha256(task.request(data.samples[index]).prompt)] for key, (index, _) in zip(ids, given, strict=True)
    ]
    identity = Identity(
        task_version=task.info.version,
        data_sha256=data.sha256,
        requests_sha256=text_sha256(canonical_json(prompts)),
        model_sha256=claimed,
        device=UNKNOWN,
        route=UNKNOWN,
        judge=judge.id,
        versions={"velox-eval": package_versions("")["velox-eval"]},
        responses_sha256=text_sha256(canonical_json([label, content])),
    )
    left_out = len(data.samples) - len(given)
    part = f"{len(given)} of {len(data.samples)} samples have a response" if left_out else None
    model = ModelInfo(
        name=options.model,
        content_sha256=claimed,
        device=UNKNOWN,
        route=UNKNOWN,
        dtype=UNKNOWN,
        context_length=None,
        n_layers=0,
    )
    method = MethodInfo(
        name=label,
        variant="foreign",
        params={},
        differs=f"answers read from {about.file}; what wrote them is not known here",
        capacity=UNKNOWN,
        evicts=None,
        query_aware=True,
    )
    counted = data_info(data, samples=len(given), incomplete=part)
    return draft_header(config, identity, counted, model, method, about)
