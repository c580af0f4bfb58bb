"""The header of a run that begins, and the folder it goes to: of new runs, re-scored ones and foreign answers alike."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from platform import python_version

from velox_eval.judges.base import Judge
from velox_eval.records.config import Identity, RunConfig, config_hash
from velox_eval.records.schema import DataInfo, MethodInfo, ModelInfo, ResponsesInfo, RunHeader
from velox_eval.records.store import RunFolder, RunStore
from velox_eval.runs.environment import platform_name, source_revision
from velox_eval.tasks.base import TaskData


def draft_header(
    config: RunConfig,
    identity: Identity,
    data: DataInfo,
    model: ModelInfo,
    method: MethodInfo,
    responses: ResponsesInfo | None = None,
) -> RunHeader:
    """Returns the header of a run that begins here and now, before it has an id."""
    return RunHeader(
        run_id="",
        status="started",
        config=config,
        config_hash=config_hash(config, identity),
        identity=identity,
        created_at=datetime.now(UTC),
        platform=platform_name(),
        python=python_version(),
        revision=source_revision(),
        data=data,
        model=model,
        method=method,
        responses=responses,
    )


def data_info(data: TaskData, *, samples: int | None = None, incomplete: str | None = None) -> DataInfo:
    """Returns what the records say about a task's data.

    `samples`: how many of them the run has (None: all); `incomplete`: why it has no more, besides what the data says.
    """
    return DataInfo(
        source=data.source,
        origin=data.origin,
        sha256=data.sha256,
        samples=len(data.samples) if samples is None else samples,
        total=data.total,
        incomplete="; ".join(text for text in (data.incomplete, incomplete) if text) or None,
        notes=data.notes,
    )


def open_folder(results: Path | str, draft: RunHeader, judge: Judge | None, *, again: bool) -> RunFolder:
    """Returns the folder of the draft's run under `results`, to be closed: the latest one of its hash, or a new one.

    Unless the run is finished, `judge` (None: nothing is judged) is prepared first. Raises JudgeError for one that
    cannot be asked, before anything is written, and StoreError as `RunStore.open`.
    """
    store = RunStore(results)
    if judge is not None and (again or not store.is_finished(draft.config_hash)):
        judge.prepare()
    return store.open(draft.config_hash, lambda run_id: draft.model_copy(update={"run_id": run_id}), again=again)
