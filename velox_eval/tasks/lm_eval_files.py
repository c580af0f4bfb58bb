"""What the YAML files in `tasks/lm_eval` name: our long-answer tasks as lm-eval tasks, for any backend of lm-eval.

`--include_path tasks/lm_eval --tasks longgenbench`. `--metadata` chooses the samples as `velox-eval run` does: source,
data, variant, entries, data_seed. lm-eval's `--limit` counts; all samples of a source are there. Scores are ours, by
the rules judge; a document carries its sample as JSON text, because its demands differ in their keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from velox_eval.judges import get_judge
from velox_eval.records.score import Score
from velox_eval.tasks import Sample, Task, TaskOptions, get_task

_CHOICES = ("source", "data", "variant", "entries", "data_seed")
_ALL = 10**9


def longgenbench(**metadata: Any) -> dict[str, Any]:
    """Returns LongGenBench's samples as lm-eval's data set; `metadata` is what lm-eval hands over."""
    return _dataset("longgenbench", metadata)


def longwriter(**metadata: Any) -> dict[str, Any]:
    """Returns the writing prompts as lm-eval's data set; `metadata` is what lm-eval hands over."""
    return _dataset("longwriter", metadata)


def longgenbench_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Returns the scores of an answer as (numerator, denominator), for `pooled`; of wavg all it is made of."""
    scores = _scores("longgenbench", doc, results[0])
    found: dict[str, Any] = {name: _pair(score) for name, score in scores.items()}
    found["wavg"] = (*_pair(scores["completion"]), *_pair(scores["stic_2"]))
    return found


def longwriter_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Returns s_l (0 to 100), the same as a fraction, and the authors' word count of an answer."""
    scores = _scores("longwriter", doc, results[0])
    return {name: scores[name].num for name in ("s_l", "length_following", "official_words")}


def pooled(values: Sequence[Sequence[float]]) -> float:
    """Returns sum of numerators / sum of denominators; NaN, which lm-eval shows as such, where nothing was asked."""
    den = sum(value[1] for value in values)
    return sum(value[0] for value in values) / den if den else float("nan")


def wavg(values: Sequence[Sequence[float]]) -> float:
    """Returns completion x STIC-2, in percent, of all answers."""
    return pooled([value[:2] for value in values]) * pooled([value[2:] for value in values])


def _dataset(name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    import datasets

    chosen = {key: metadata[key] for key in _CHOICES if metadata.get(key) is not None}
    task = get_task(name, TaskOptions(**chosen, limit=_ALL))
    rows = []
    for sample in task.load().samples:
        plain = {"sample_id": sample.sample_id, "stratum": sample.stratum, "data": dict(sample.data)}
        rows.append({"prompt": task.request(sample).prompt, "stratum": sample.stratum, "sample": json.dumps(plain)})
    return {"test": datasets.Dataset.from_list(rows)}


def _scores(name: str, doc: dict[str, Any], answer: str) -> dict[str, Score]:
    return dict(_task(name).score(Sample(**json.loads(doc["sample"])), answer, get_judge("rules")).scores)


@cache
def _task(name: str) -> Task:
    return get_task(name)


def _pair(score: Score) -> tuple[float, float]:
    return score.num, score.den
