"""Runs one sample of a stored run again, to see what its method kept; records do not hold that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from velox_eval.engine.requests import LogLikelihood, TeacherForce
from velox_eval.errors import DataError, ModelError, StoreError
from velox_eval.methods import resolve
from velox_eval.records.config import text_sha256
from velox_eval.records.schema import RunHeader, SampleRecord
from velox_eval.records.store import load_run
from velox_eval.runs.plan import stored_task

if TYPE_CHECKING:
    from velox_eval.engine.requests import Generate
    from velox_eval.engine.trace import Trace


@dataclass(frozen=True)
class Inspection:
    """A sample of a run, with what was held while its answer was written."""

    header: RunHeader
    record: SampleRecord
    trace: Trace


def inspect_run(
    run: Path, sample: str | None = None, *, every: int = 8, data: str | None = None, model: str | None = None
) -> Inspection:
    """Returns the trace of one sample of the run in folder `run`: `sample` is its id or index (default: the first).

    The stored tokens are fed, or the stored answer's text is, which a tokenizer may cut a little differently. `data`
    and `model` say where the task's data and the model are now. Raises StoreError for a sample that is not there or
    has no answer, DataError and ModelError when data or model are not those of the run, MethodError where a cache
    does not say what it keeps.
    """
    header, samples = load_run(run)
    if header.responses is not None:
        raise StoreError(f"run {run} holds answers of another program; there is no cache to look at")
    record = _record(samples, sample, run)
    request = _request(header, record, data)
    from velox_eval.engine.models import load_model
    from velox_eval.engine.trace import trace

    loaded = load_model(model or header.config.model)
    if loaded.content_sha256 != header.model.content_sha256:
        raise ModelError(
            f"run {header.run_id} used model {header.model.content_sha256[:12]} ({header.model.name}); "
            f"{loaded.name} is {loaded.content_sha256[:12]}; give that model with --model"
        )
    config = header.config
    if record.teacher_forced is not None:
        tokens = list(record.teacher_forced.tokens)
    else:
        tokens = list(loaded.tokenizer.encode(record.response or "", add_special_tokens=False))
    traced = trace(
        loaded,
        resolve(config.method, config.params, budget=config.budget, keep=config.keep),
        request,
        tokens,
        every=every,
        prefill_step=config.prefill_step,
        evict_block=config.evict_block,
    )
    return Inspection(header, record, traced)


def _record(samples: list[SampleRecord], wanted: str | None, run: Path) -> SampleRecord:
    answered = [record for record in samples if record.answer]
    if wanted is None:
        if not answered:
            raise StoreError(f"run {run} has no answered sample to inspect")
        return answered[0]
    found = [record for record in samples if wanted in (record.sample_id, str(record.index))]
    if not found:
        ids = ", ".join(f"{record.index} ({record.sample_id})" for record in samples[:5])
        raise StoreError(f"run {run} has no sample {wanted!r}; it has {ids}{', ...' if len(samples) > 5 else ''}")
    if found[0] not in answered:
        raise StoreError(f"sample {found[0].sample_id!r} of run {run} has no answer: {found[0].error or 'it is empty'}")
    return found[0]


def _request(header: RunHeader, record: SampleRecord, data: str | None) -> Generate:
    """The prompt as the run read it, with the room it had."""
    task = stored_task(header.config, data)
    loaded = task.load()
    sample = next((sample for sample in loaded.samples if sample.sample_id == record.sample_id), None)
    request = None if sample is None else task.request(sample)
    if request is None or text_sha256(request.prompt) != record.prompt_sha256:
        raise DataError(
            f"run {header.run_id}: {loaded.origin} does not give the prompt of sample {record.sample_id!r}; "
            "give the data of the run with --data"
        )
    if isinstance(request, LogLikelihood):
        raise StoreError(f"run {header.run_id} scored log-likelihoods; it has no answer to follow")
    if not isinstance(request, TeacherForce):
        return request
    if request.continuation is None or record.teacher_forced is None:
        return request.reading
    return replace(request.reading, max_tokens=len(record.teacher_forced.tokens))
