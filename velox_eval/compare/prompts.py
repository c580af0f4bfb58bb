"""Prompts of a stored run: records hold their hashes, the task's data holds the text."""

from __future__ import annotations

from typing import NamedTuple

from velox_eval.errors import VeloxEvalError
from velox_eval.records.config import text_sha256
from velox_eval.records.store import StoredRun
from velox_eval.runs.plan import stored_task
from velox_eval.tasks import LM_EVAL


class Prompts(NamedTuple):
    """Prompts by sample id, and why some or all are missing (empty: none is)."""

    texts: dict[str, str]
    missing: str


def find_prompts(run: StoredRun) -> Prompts:
    """Returns the prompts of the run's samples, made again from the task's data where that is at hand.

    A prompt counts only if its hash is the recorded one. Official data is not fetched for this, and no task of lm-eval
    is loaded: a record may name any file, and such a task can hold code. Never raises: what is not there is said in
    `missing`.
    """
    if run.header.config.task.name.startswith(LM_EVAL):
        return Prompts({}, "tasks of lm-eval are not loaded to show prompts")
    if run.header.data.source == "official":
        return Prompts({}, "official data is not fetched to show prompts")
    wanted = {record.sample_id: record.prompt_sha256 for record in run.samples}
    texts: dict[str, str] = {}
    try:
        task = stored_task(run.header.config)
        for sample in task.load().samples:
            if sample.sample_id in wanted:
                prompt = task.request(sample).prompt
                if text_sha256(prompt) == wanted[sample.sample_id]:
                    texts[sample.sample_id] = prompt
    except VeloxEvalError:  # its message may quote a file of this machine, and pages are passed on
        return Prompts({}, f"the task's data ({run.header.data.origin}) is not at hand")
    lost = len(wanted) - len(texts)
    return Prompts(texts, f"{lost} of {len(wanted)} prompts are not in the task's data as it is now" if lost else "")
