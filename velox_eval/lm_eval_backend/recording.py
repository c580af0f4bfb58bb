"""From an evaluation of lm-eval's to our records: costs beside its logged samples, a run folder and row a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from velox_eval.engine.requests import EngineReport, Generation, LogLikelihood, ScoredPairs
from velox_eval.judges import get_judge
from velox_eval.lm_eval_backend.model import VeloxLM
from velox_eval.lm_eval_backend.settings import generation_settings
from velox_eval.records.config import build_config
from velox_eval.runs.observer import Observer
from velox_eval.runs.plan import Plan, RunOptions
from velox_eval.runs.recorder import Recorder, RunResult, result_of
from velox_eval.runs.runner import model_info, open_run
from velox_eval.runs.sample import cost_fields
from velox_eval.tasks.base import TaskOptions
from velox_eval.tasks.lm_eval_task import LmEvalTask

_KINDS = {"multiple_choice": "loglikelihood"}
_COSTS = (
    "prompt_tokens",
    "cut_tokens",
    "prefill_seconds",
    "compress_seconds",
    "decode_seconds",
    "tokens_per_second",
    "peak_cache_bytes",
    "peak_total_bytes",
    "end_cache_bytes",
    "full_cache_bytes",
    "kept_fraction",
    "evicted_tokens",
    "budget",
)


def add_costs(lm: VeloxLM, tasks: Mapping[str, Any], samples: Mapping[str, list[dict[str, Any]]]) -> None:
    """Puts what each document cost under "velox" in lm-eval's logged samples; null where it is not known."""
    for name, logged in samples.items():
        kind = _kind(tasks[name])
        for sample in logged:
            found = lm.answers.find(kind, sample["arguments"])
            sample["velox"] = None if found is None else _costs(found)


def _kind(task: Any) -> str:
    return str(_KINDS.get(task.OUTPUT_TYPE, task.OUTPUT_TYPE))


def _costs(found: Generation | ScoredPairs) -> dict[str, Any]:
    fields = cost_fields(found)
    costs = {name: fields[name] for name in _COSTS}
    if isinstance(found, Generation):
        costs |= {
            "generated_tokens": len(found.tokens),
            "finish_reason": found.finish_reason,
            "truncated": found.truncated,
        }
    return costs


def record_task(
    lm: VeloxLM,
    task: Any,
    *,
    source: Literal["official", "data"],
    results: Path,
    command: Sequence[str],
    observer: Observer | None = None,
) -> RunResult | None:
    """Returns the run of one task that lm-eval has just evaluated, written under `results`, its samples scored anew.

    `source`: official for a task of lm-eval's own, data for a task from elsewhere.
    None, and a note to the observer, where a sample's outcome is not known (it came from a cache that another program
    filled, or the task asks for several answers a document).
    """
    observer = observer or Observer()
    adapter = LmEvalTask(task, TaskOptions(), source=source, release=version("lm-eval"), built=True)
    data = adapter.load()
    outcomes = []
    for sample in data.samples:
        instances = adapter.instances(sample)
        found = lm.answers.find(_kind(task), [instance.args for instance in instances])
        if found is None or not _is_what_was_scored(found, instances):
            observer.note(f"{task.task_name}: no run is recorded, the cost of document {sample.sample_id} is not known")
            return None
        outcomes.append(replace(found, sample_id=sample.sample_id))
    plan = _plan(lm, adapter, data)
    options = RunOptions(results=results, again=True)
    report = lm.answers.reports.get(task.config.task, EngineReport())
    report = replace(report, eviction_layers=lm.engine.eviction_layers, other_layers=lm.engine.other_layers)
    with open_run(plan, model_info(lm.loaded), options) as folder:
        recorder = Recorder(plan, folder, lambda: report, observer, command=command)
        recorder.watch.add("engine", report.prefill_seconds + report.decode_seconds)
        recorder.begin()
        try:
            for outcome in outcomes:
                recorder.record(outcome)
        except KeyboardInterrupt:
            recorder.interrupted()
            raise
        recorder.finish()
        return result_of(folder)


def _is_what_was_scored(found: Generation | ScoredPairs, instances: Sequence[Any]) -> bool:
    """Whether the outcome holds the very answers that lm-eval scored, one each."""
    given = [instance.resps for instance in instances]
    if any(len(answers) != 1 for answers in given):
        return False
    if isinstance(found, Generation):
        return [found.text] == [answers[0] for answers in given]
    scores = [answers[0][0] if isinstance(answers[0], (tuple, list)) else answers[0] for answers in given]
    return list(found.logprobs) == scores


def _plan(lm: VeloxLM, adapter: LmEvalTask, data: Any) -> Plan:
    requests = tuple(adapter.request(sample) for sample in data.samples)
    sampling = lm.engine.sampling
    if isinstance(requests[0], LogLikelihood):
        sampling = replace(sampling, temperature=0.0, top_p=1.0)
    else:  # what the task asks for, and what it is told where it says nothing
        asked = [instance.args[1] for sample in data.samples for instance in adapter.instances(sample)]
        settings = [generation_settings(given, max_tokens=lm.max_gen_toks, seed=lm.seed) for given in asked]
        sampling = settings[0].sampling
        requests = tuple(
            replace(request, max_tokens=how.max_tokens, stop_after=lm.think_end or None)
            for request, how in zip(requests, settings, strict=True)
            if not isinstance(request, LogLikelihood)
        )
    config = build_config(
        task={"name": adapter.info.name, "source": data.source},
        model=lm.pretrained,
        method=lm.method.label,
        params=dict(lm.method.params),
        budget=lm.method.budget,
        keep=lm.method.keep,
        prefill_step=lm.engine_settings["prefill_step"],
        evict_block=lm.engine_settings["evict_block"],
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=lm.seed,
        performance={
            "batch_size": lm.engine_settings["batch_size"],
            "memory_limit": lm.engine_settings["memory_limit"],
        },
    )
    return Plan(config=config, method=lm.method, task=adapter, data=data, requests=requests, judge=get_judge("rules"))
