"""Fidelity: teacher-forced, a method beside the full cache, on its own greedy answer and on a fixed human text.

Needs no judge and no model that follows instructions. Both kinds of text are there because a small model's own
answer may loop, and in a loop every method agrees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from velox_eval.engine.requests import TeacherForce
from velox_eval.errors import ConfigError, DataError, unknown_name
from velox_eval.judges.base import Judge
from velox_eval.metrics import fidelity as metric
from velox_eval.records.schema import TeacherForced
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.definition import task_files
from velox_eval.tasks.sources import Row, content_sha256, read_rows, samples_sha256

HUMAN, OWN = "human_text", "own_answer"
BY_KIND = ("mean_kl", "top1_agreement", "nll_full", "nll_method")  # scores also given for each kind alone
_GET = 'write JSONL of {"prompt": ..., "continuation": ...}; without continuation only the own answer is compared'


class Fidelity(Task):
    """Two samples a row: the row's own continuation (human_text), and what the full cache writes (own_answer)."""

    def __init__(self, info: TaskInfo, options: TaskOptions) -> None:
        super().__init__(info, options)
        if options.variant not in (None, HUMAN, OWN):
            raise ConfigError(unknown_name("variant", options.variant, (HUMAN, OWN)))

    def load(self) -> TaskData:
        """Returns the samples; raises DataError naming file, line and field."""
        bundled = self.source == "bundled"
        path = task_files() / self.info.settings["bundled"]["file"] if bundled else Path(str(self.options.data))
        samples = [sample for row in read_rows(path, get=_GET) for sample in _samples(row)]
        kept = [sample for sample in samples if self.options.variant in (None, sample.stratum)]
        if not kept:
            raise DataError(f"{path}: no row has a continuation, which variant={self.options.variant} compares")
        chosen = kept[: self.options.limit]
        return TaskData(
            samples=chosen,
            source=self.source,
            origin=f"velox-eval texts, {path.name}" if bundled else path.name,
            sha256=samples_sha256(chosen),
            total=len(samples),
            incomplete=None if len(chosen) == len(samples) else f"{len(chosen)} of {len(samples)} samples",
        )

    def request(self, sample: Sample) -> TeacherForce:
        """Returns the comparison on a sample's text."""
        most = self.info.settings["max_tokens"] if self.options.max_tokens is None else self.options.max_tokens
        return TeacherForce(sample.sample_id, sample.data["prompt"], sample.data["continuation"], most)

    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Raises DataError: a text alone has nothing to be compared with."""
        raise DataError("fidelity scores a comparison with the full cache; a text alone has none")

    def score_comparison(self, sample: Sample, compared: TeacherForced) -> Scored:
        """Returns the scores of metrics.fidelity, those BY_KIND also under the sample's kind."""
        scores = metric.fidelity_scores(compared.kl, compared.agree, compared.full_logprob, compared.method_logprob)
        kinds = {f"{name}_{sample.stratum}": scores[name] for name in BY_KIND}
        details = {
            "by_decile": metric.by_decile(compared.kl, compared.agree),
            "by_position": metric.by_position(compared.kl, compared.agree),
        }
        return Scored({**scores, **kinds}, details=details)

    def derived(self, pooled_scores: Mapping[str, float | None]) -> dict[str, float | None]:
        """Returns perplexity_ratio (method / full) and both perplexities, over all and by kind."""
        return metric.perplexities(pooled_scores)

    def curves(self, details: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Returns mean KL and agreement by tenths of the continuation and by position."""
        return metric.curves(details)


def _samples(row: Row) -> list[Sample]:
    prompt = row.text("prompt")
    human = row.value.get("continuation")
    if human is not None:
        human = row.text("continuation")
    stem = row.text("id") if "id" in row.value else content_sha256([{"prompt": prompt, "text": human}])[:12]
    own = Sample(f"{stem}-own", OWN, {"prompt": prompt, "continuation": None})
    if human is None:
        return [own]
    return [Sample(f"{stem}-text", HUMAN, {"prompt": prompt, "continuation": human}), own]
