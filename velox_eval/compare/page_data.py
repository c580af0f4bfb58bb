"""What the page shows, as JSON that is safe inside HTML. Everything that a model or a file wrote goes this way."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from velox_eval.compare.comparison import VERDICTS, Comparison, Section
from velox_eval.compare.prompts import find_prompts
from velox_eval.metrics.repetition import repeated_spans
from velox_eval.records.schema import RunHeader, SampleRecord
from velox_eval.records.store import StoredRun

_ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def embed(value: Any) -> str:
    """Returns JSON that stays JSON inside a script element: it can end no element, and it can be written as UTF-8."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def summary_data(comparison: Comparison, runs: Mapping[str, StoredRun]) -> dict[str, Any]:
    """Returns the comparison, the facts of every run in it, and the words for verdicts."""
    used = [arm.run_id for arm in comparison.arms()]
    return {
        "comparison": comparison.model_dump(mode="json"),
        "verdicts": VERDICTS,
        "runs": {run_id: run_facts(runs[run_id].header) for run_id in used},
    }


def run_facts(header: RunHeader) -> dict[str, Any]:
    """Returns the exact commands of a run and what it ran on, as shown text."""
    config, summary = header.config, header.summary
    commands = [shlex.join(session.command) for session in header.sessions if session.command]
    limits = config.performance
    facts = {
        "task": f"{config.task.name}, version {header.identity.task_version}",
        "data": f"{header.data.source}: {header.data.origin} (SHA-256 {header.data.sha256[:12]})",
        "model": f"{header.model.name} (SHA-256 {header.model.content_sha256[:12]}), {header.model.dtype}",
        "device": f"{header.model.device}, {header.model.route}; {header.platform}, Python {header.python}",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(header.identity.versions.items())),
        "method": f"{header.method.name}:{header.method.variant} {_pairs(header.method.params)}".strip(),
        "differs": header.method.differs,
        "capacity": header.method.capacity,
        "generation": f"prefill_step={config.prefill_step} temperature={config.temperature:g} seed={config.seed}",
        "judge": header.identity.judge,
        "batch": f"asked {limits.batch_size or 'the default'}"
        + (f", ran {', '.join(map(str, summary.batch_sizes))}" if summary and summary.batch_sizes else ""),
        "answers": "" if header.responses is None else f"read from {header.responses.file}; not written by velox-eval",
        "run": f"{header.run_id}, {header.status}, {header.created_at:%Y-%m-%d %H:%M} UTC",
    }
    return {
        "commands": list(dict.fromkeys(commands)),
        "facts": {name: text for name, text in facts.items() if text},
        "cost": None if summary is None else summary.cost.model_dump(mode="json"),
        "mlx_peak_bytes": None if summary is None else summary.mlx_peak_bytes,
    }


def _pairs(params: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in params.items())


def answers_data(section: Section, run: StoredRun) -> list[dict[str, Any]]:
    """Returns what the page shows of each sample of one run, in the task's order."""
    return [_answer(section.score, record) for record in run.samples]


def _answer(score: str, record: SampleRecord) -> dict[str, Any]:
    primary = record.scores.get(score)
    shown: dict[str, Any] = {
        "id": record.sample_id,
        "stratum": record.stratum,
        "error": record.error,
        "score": None if primary is None else primary.value,
        "scores": {name: [value.num, value.den] for name, value in record.scores.items()},
        "unscored": record.unscored,
        "prompt_tokens": record.prompt_tokens,
        "tokens": record.generated_tokens,
        "finish": record.finish_reason,
        "repetition": record.repetition_rate,
        "seconds": record.decode_seconds,
        "peak": record.peak_cache_bytes,
        "kept": record.kept_fraction,
    }
    if record.teacher_forced is not None:
        forced = record.teacher_forced
        shown |= {
            "text": forced.text,
            "tokens": len(forced.tokens),
            "kl": [float(f"{value:.3g}") for value in forced.kl],
            "agree": "".join("1" if same else "0" for same in forced.agree),
        }
    elif record.likelihoods is not None:
        found = record.likelihoods
        shown |= {"logprobs": [float(f"{value:.5g}") for value in found.logprobs], "greedy": list(found.greedy)}
    elif record.response is not None:
        shown |= {"text": record.response, "repeated": utf16_spans(record.response)}
    return {name: value for name, value in shown.items() if value not in (None, {}, [])}


def utf16_spans(text: str) -> list[int]:
    """Returns starts and ends of the repeated stretches of `text` in turn, counted as JavaScript counts characters."""
    flat = [edge for span in repeated_spans(text) for edge in span]
    if not flat or max(text) < "\U00010000":
        return flat
    units = list(itertools.accumulate((2 if character >= "\U00010000" else 1 for character in text), initial=0))
    return [units[edge] for edge in flat]


def prompts_data(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Returns the prompts of a section by sample id, from the first of `runs` whose data is at hand."""
    found = {"texts": {}, "missing": "no run"}
    for run in runs:
        prompts = find_prompts(run)
        found = {"texts": prompts.texts, "missing": prompts.missing}
        if prompts.texts:
            break
    return found
