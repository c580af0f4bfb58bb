"""Any task of lm-eval in our runner: its own Task object loads, prompts, filters and scores; we count and record.

`--task lm_eval/NAME` with `--data DIR` (a folder of YAML tasks, lm-eval's include path) and `--variant` (`chat`, and
metadata of the task as NAME=VALUE, joined by `;`). Sums over samples are ours where the task takes means; every other
aggregation is the task's own function. lm-eval is imported only when such a task is made.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from velox_eval.engine.requests import Generate, LogLikelihood
from velox_eval.errors import DataError
from velox_eval.judges.base import Judge
from velox_eval.records.schema import Likelihoods
from velox_eval.records.score import Score
from velox_eval.tasks import LM_EVAL
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.lm_eval_files import pooled
from velox_eval.tasks.sources import content_sha256

CHAT = "chat"
DEFAULT_MAX_TOKENS = 256  # lm-eval's, where the task says nothing
AT_LENGTH = "at_length"  # RULER: the score at the length a sample has
_LOGLIKELIHOOD = "_loglikelihood"
# Aggregations of lm-eval that are a function of a ratio of sums.
_FROM_RATIO: Mapping[str, Callable[[float], float]] = {
    "perplexity": lambda mean: math.exp(-mean),
    "weighted_perplexity": lambda mean: math.exp(-mean),
    "bits_per_byte": lambda mean: -mean / math.log(2),
}
_MEANS = ("mean", "nanmean")
# What code of a task, written for other answers, may raise on one answer.
_TASK_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError, AssertionError)


class LmEvalTask(Task):
    """One task of lm-eval: a sample is a document, with all it asks of the model.

    `task` is lm-eval's own object; `built`: it has made its requests. `release` is lm-eval's version.
    """

    def __init__(self, task: Any, options: TaskOptions, *, source: str, release: str, built: bool = False) -> None:
        self.task = task
        self._built = built
        self.release = release
        self._how = {name: _aggregation(function) for name, function in task.aggregation().items()}
        self._filters = [ensemble.name for ensemble in task._filters]
        self._by_length = any(how == "ruler" for how in self._how.values())
        self._instances: dict[str, list[Any]] = {}
        super().__init__(self._info(), options)
        self.source = source

    def _info(self) -> TaskInfo:
        first = next(iter(self._how), "")
        primary = AT_LENGTH if self._by_length else self._name(first, self._filters[0])
        if self._how.get(first) in _FROM_RATIO:
            primary += _LOGLIKELIHOOD
        higher = self._how.get(first) in _FROM_RATIO or bool(self.task.higher_is_better().get(first, True))
        name, version = f"{LM_EVAL}{self.task.task_name}", str(self.task.VERSION)
        return TaskInfo(
            name=name,
            summary=f"{self.task.task_name} of lm-eval {self.release}",
            version=int(float(version)) if version.replace(".", "", 1).isdecimal() else 0,
            primary=primary,
            accuracy=primary,
            sources=("official",),
            changelog=(f"version {version} of the task in lm-eval {self.release}",),
            paper="-",
            settings={},
            higher_is_better=higher,
        )

    def _name(self, metric: str, key: str) -> str:
        """The name of a score: the metric's, with the filter's where the task has several."""
        return metric if len(self._filters) == 1 else f"{metric},{key}"

    def load(self) -> TaskData:
        """Returns the documents as samples, built into requests by the task itself where it has not done so."""
        if not self._built:
            self.task.build_all_requests(limit=self.options.limit, rank=0, world_size=1)
            self._built = True
        by_doc: dict[int, list[Any]] = {}
        for instance in self.task.instances:
            by_doc.setdefault(instance.doc_id, []).append(instance)
        samples = [self._sample(doc_id, instances) for doc_id, instances in by_doc.items()]
        total = len(self.task.eval_docs)
        what = {"task": self.info.name, "version": str(self.task.VERSION), "lm_eval": self.release}
        return TaskData(
            samples=samples,
            source=self.source,
            origin=f"lm-eval {self.release}, {self.task.task_name} version {self.task.VERSION}",
            sha256=content_sha256([what, *({"id": sample.sample_id, "doc": sample.data["doc"]} for sample in samples)]),
            total=total,
            incomplete=None if len(samples) == total else f"{len(samples)} of {total} samples",
            notes=self._notes(),
        )

    def _sample(self, doc_id: int, instances: list[Any]) -> Sample:
        instances.sort(key=lambda instance: int(instance.idx))
        doc = json.loads(json.dumps(instances[0].doc, default=str))
        asked = [json.loads(json.dumps(list(instance.args), default=str)) for instance in instances]
        sample_id = f"{doc_id}-{content_sha256([{'doc': doc}])[:8]}"
        self._instances[sample_id] = instances
        stratum = str(doc["max_length"]) if self._by_length else self.task.task_name
        return Sample(sample_id, stratum, {"doc": doc, "arguments": asked})

    def _notes(self) -> tuple[str, ...]:
        settings = self.task.config.generation_kwargs or {}
        if settings.get("do_sample") or settings.get("temperature"):
            return (f"{self.info.name} samples ({settings}); here --temperature, --top-p and --seed decide",)
        return ()

    def instances(self, sample: Sample) -> Sequence[Any]:
        """Returns lm-eval's own requests for a sample, in order; empty before `load`."""
        return self._instances.get(sample.sample_id, ())

    def request(self, sample: Sample) -> Generate | LogLikelihood:
        """Returns one answer to write, or all continuations of the document to score."""
        asked, kind = sample.data["arguments"], self.task.OUTPUT_TYPE
        if kind == "loglikelihood_rolling":
            return LogLikelihood(sample.sample_id, tuple(("", text) for (text,) in asked), rolling=True)
        if kind != "generate_until":
            return LogLikelihood(sample.sample_id, tuple((context, after) for context, after in asked))
        (context, settings), *_ = asked
        until = settings.get("until") or []
        limit = next((settings[name] for name in _LIMITS if settings.get(name) is not None), DEFAULT_MAX_TOKENS)
        return Generate(
            sample.sample_id,
            context,
            int(self.options.max_tokens or limit),
            stop=(until,) if isinstance(until, str) else tuple(until),
            chat=CHAT in (self.options.variant or "").split(";"),
            cut_left=True,
        )

    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Returns the task's own metrics of an answer."""
        return self._scored(sample, [response])

    def score_likelihoods(self, sample: Sample, likelihoods: Likelihoods) -> Scored:
        """Returns the task's own metrics of log-likelihoods."""
        if self.task.OUTPUT_TYPE == "loglikelihood_rolling":
            return self._scored(sample, list(likelihoods.logprobs))
        return self._scored(sample, list(zip(likelihoods.logprobs, likelihoods.greedy, strict=True)))

    def _scored(self, sample: Sample, found: Sequence[Any]) -> Scored:
        instances = [copy.copy(instance) for instance in self.instances(sample)]
        if len(instances) != len(found):
            raise DataError(f"{self.info.name} asks {len(instances)} things of sample {sample.sample_id!r}")
        for instance, result in zip(instances, found, strict=True):
            instance.resps, instance.filtered_resps = [result], {}
        scores: dict[str, Score] = {}
        unscored: dict[str, str] = {}
        metrics: dict[str, Any] = {}
        try:
            for ensemble in self.task._filters:
                ensemble.apply(instances)
                key = ensemble.name
                results = [instance.filtered_resps[key] for instance in instances]
                for metric, value in self.task.process_results(instances[0].doc, results).items():
                    name = self._name(str(metric), key)
                    metrics[name] = plain_value(value)
                    self._add(scores, unscored, name, self._how.get(str(metric), "mean"), metrics[name])
        except _TASK_ERRORS as error:
            raise DataError(f"{self.info.name} cannot score this answer: {type(error).__name__}: {error}") from error
        if self._by_length:
            length = self._name(str(sample.data["doc"]["max_length"]), self._filters[0])
            if length in scores:
                scores[AT_LENGTH] = scores[length]
        return Scored(scores, unscored, {"metrics": metrics})

    def _add(self, scores: dict[str, Score], unscored: dict[str, str], name: str, how: str, value: Any) -> None:
        if how in _FROM_RATIO:
            num, den = value if isinstance(value, list) else (value, 1.0)
            scores[name + _LOGLIKELIHOOD] = Score(num=float(num), den=float(den))
        elif how == "pooled":
            scores[name] = Score(num=float(value[0]), den=float(value[1]))
        elif value is None:
            unscored[name] = "the task gives no number"
        elif isinstance(value, (int, float)) and not (how == "ruler" and value == -1):  # -1: another length's metric
            scores[name] = Score(num=float(value))

    def derived(self, pooled_scores: Mapping[str, float | None]) -> dict[str, float | None]:
        """Returns the perplexities and bits per byte that the task names."""
        found: dict[str, float | None] = {}
        for name, how in self._each_name():
            if how in _FROM_RATIO:
                mean = pooled_scores.get(name + _LOGLIKELIHOOD)
                found[name] = None if mean is None else _finite(_FROM_RATIO[how](mean))
        return found

    def aggregated(self, details: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """Returns the metrics that the task aggregates by a function of its own (F1, BLEU, ...), over all samples."""
        found: dict[str, float | None] = {}
        functions = self.task.aggregation()
        for name, how in self._each_name():
            values = [item["metrics"][name] for item in details if name in item.get("metrics", {})]
            if how == "own" and values:
                try:
                    found[name] = _finite(float(functions[name.split(",")[0]](values)))
                except _TASK_ERRORS:  # a set too small for the task's own function has no such number
                    found[name] = None
        return found

    def _each_name(self) -> list[tuple[str, str]]:
        return [(self._name(metric, key), how) for key in self._filters for metric, how in self._how.items()]

    def unanswered(self, sample: Sample) -> dict[str, Score]:
        """Returns a zero for the primary score where that is a mean of points; else nothing can be said."""
        first = next(iter(self._how), "")
        points = self._how.get(first) in (*_MEANS, "ruler") and self.info.higher_is_better
        return {self.info.primary: Score(num=0)} if points else {}


_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # lm-eval's names, in its order


def _aggregation(function: Any) -> str:
    """How values become one: lm-eval's name where it is one that we pool ourselves, "pooled", "ruler", else "own"."""
    from lm_eval.api.registry import AGGREGATION_REGISTRY

    if function is pooled:
        return "pooled"
    if getattr(function, "__name__", "") == "aggregate_metrics" and "ruler" in getattr(function, "__module__", ""):
        return "ruler"
    names = [name for name in AGGREGATION_REGISTRY if AGGREGATION_REGISTRY.get(name) is function]
    return next((name for name in names if name in _MEANS or name in _FROM_RATIO), "own")


def plain_value(value: Any) -> Any:
    """Returns a metric's value as JSON has it: NumPy's numbers and arrays as Python's, None for what is not finite."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    return _finite(float(value)) if isinstance(value, float) else str(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
