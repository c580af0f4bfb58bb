"""Scores a stored run again: today's scoring on the answers as recorded. Needs no model and loads no mlx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from velox_eval.errors import DataError, StoreError
from velox_eval.judges.base import Judge
from velox_eval.records.config import RunConfig, config_hash, text_sha256
from velox_eval.records.schema import Cost, Likelihoods, RunHeader, SampleRecord, Session, TeacherForced
from velox_eval.records.store import RunFolder, StoredRun, load_run
from velox_eval.runs.environment import package_versions
from velox_eval.runs.headers import open_folder
from velox_eval.runs.judging import DEFAULT_JUDGING, JudgeOptions, open_judge
from velox_eval.runs.plan import stored_task
from velox_eval.runs.recorder import RunResult, result_of
from velox_eval.runs.sample import scored_fields
from velox_eval.runs.stopwatch import Stopwatch
from velox_eval.runs.summary import summarise
from velox_eval.tasks.base import Sample, Task, TaskData


class Answer(NamedTuple):
    """An answer to score: the fields of its record that scoring does not decide, and None where none came."""

    fields: dict[str, Any]
    sample: Sample
    answer: str | TeacherForced | Likelihoods | None
    judge: Judge


def rescore(
    run: Path,
    *,
    results: Path,
    data: str | None = None,
    judge: str | None = None,
    judging: JudgeOptions = DEFAULT_JUDGING,
    again: bool = False,
    command: Sequence[str] = (),
) -> RunResult:
    """Returns a new run under `results` with the answers of the run in folder `run`, scored anew.

    The stored run stays as it is. Costs are those of the run that generated; samples without an answer stay
    failed. `data` says where the task's data is now, `judge` replaces the stored one. Scoring the same run the
    same way twice shows the first result unless `again`. Raises StoreError for a run that is not finished, DataError
    when the data is not what the run used, JudgeError for a judge that cannot be asked; nothing is written then.
    """
    stored = load_run(run)
    if stored.header.finished_at is None:
        raise StoreError(
            f"run {run} has {len(stored.samples)} of {stored.header.data.samples} samples; finish it before scoring it"
        )
    config = stored.header.config
    task = stored_task(config, data)
    repeats = config.judge_repeats if judging.repeats is None else judging.repeats
    config = config.model_copy(update={"judge": judge or config.judge, "judge_repeats": repeats})
    the_judge = open_judge(config.judge, replace(judging, repeats=repeats))
    task_data = task.load()
    _check_data(stored, task, task_data)
    draft = _draft(stored.header, task, the_judge, config, Path(run).name)
    with open_folder(results, draft, the_judge, again=again) as folder:
        if folder.state != "finished":
            answers = _answers(stored, task_data, the_judge)
            score_answers(folder, answers, task, before=stored.header.sessions, command=command)
        return result_of(folder)


def _answers(stored: StoredRun, data: TaskData, judge: Judge) -> list[Answer]:
    samples = {sample.sample_id: sample for sample in data.samples}
    return [Answer(record.model_dump(), samples[record.sample_id], record.answer, judge) for record in stored.samples]


def _check_data(stored: StoredRun, task: Task, data: TaskData) -> None:
    header = stored.header
    if data.sha256 != header.data.sha256:
        raise DataError(
            f"run {header.run_id} used data {header.data.sha256[:12]} ({header.data.origin}); "
            f"{data.origin} is {data.sha256[:12]}; give that data with --data"
        )
    by_id = {sample.sample_id: sample for sample in data.samples}
    for record in stored.samples:
        sample = by_id.get(record.sample_id)
        if sample is None or text_sha256(task.request(sample).prompt) != record.prompt_sha256:
            raise DataError(f"run {header.run_id}: sample {record.sample_id!r} had another prompt than this task gives")


def _draft(old: RunHeader, task: Task, judge: Judge, config: RunConfig, origin: str) -> RunHeader:
    """The new run's header: the old one with scoring, judge and this package's version as they are now."""
    here = {"velox-eval": package_versions(old.config.method)["velox-eval"]}
    identity = old.identity.model_copy(
        update={
            "task_version": task.info.version,
            "judge": judge.id,
            "versions": old.identity.versions | here,
            "rescored_from": origin,
        }
    )
    foreign = old.responses and old.responses.model_copy(update={"rated_by": None})  # points are given anew
    return old.model_copy(
        update={
            "run_id": "",
            "status": "started",
            "error": None,
            "responses": foreign,
            "config": config,
            "config_hash": config_hash(config, identity),
            "identity": identity,
            "created_at": datetime.now(UTC),
            "finished_at": None,
            "summary": None,
        }
    )


def score_answers(
    folder: RunFolder,
    answers: Iterable[Answer],
    task: Task,
    *,
    before: Sequence[Session] = (),
    command: Sequence[str] = (),
) -> None:
    """Scores the answers that `folder` does not hold yet, records them, and writes the header.

    `before` are the sessions in which they were generated, whose cost the summary counts.
    """
    started, watch = datetime.now(UTC), Stopwatch()
    scored = _scored(task, [item for item in answers if item.fields["sample_id"] not in folder.done])
    while True:
        with watch.measure("scoring"):
            record = next(scored, None)
        if record is None:
            break
        folder.append(record)
    scoring = watch.seconds.get("scoring", 0.0)
    session = Session(
        started_at=started,
        ended_at=datetime.now(UTC),
        command=list(command),
        samples=len(folder.samples),
        cost=Cost(wall_seconds=watch.wall, scoring_seconds=scoring, harness_seconds=watch.wall),
    )
    failed = sum(record.status == "error" for record in folder.samples)
    header = folder.header.model_copy(
        update={
            "sessions": (*before, session),
            "status": "error" if failed else "success",
            "error": f"{failed} of {len(folder.samples)} samples failed" if failed else None,
        }
    )
    folder.update(
        header.model_copy(update={"summary": summarise(task, header, folder.samples), "finished_at": datetime.now(UTC)})
    )


def _scored(task: Task, answers: Sequence[Answer]) -> Iterator[SampleRecord]:
    """Records of the answers, in order; as many are scored at a time as their judges take."""

    def score(item: Answer) -> SampleRecord:
        scored = {} if item.answer is None else scored_fields(task, item.sample, item.answer, item.judge)
        return SampleRecord.model_validate(item.fields | scored)

    parallel = max((item.judge.parallel for item in answers), default=1)
    if parallel == 1:
        yield from map(score, answers)
        return
    workers = ThreadPoolExecutor(parallel, thread_name_prefix="score")
    try:
        yield from workers.map(score, answers)
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
