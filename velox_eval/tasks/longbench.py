"""LongBench (Bai et al., ACL 2024) and LongBench-E: questions on long contexts, scored as the authors score them.

Rows become prompts by the authors' templates, which are read from their config and never kept here. A prompt that
is too long loses its middle; most data sets are asked through the chat template, few-shot and code ones never are.
`score` is the mean over data sets, in percent: each sample weighs so much that every data set weighs the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, unknown_name
from velox_eval.judges.base import Judge
from velox_eval.metrics import longbench as metric
from velox_eval.metrics.aggregate import mean
from velox_eval.metrics.segment import segmenter
from velox_eval.metrics.thinking import without_thinking
from velox_eval.records.score import Score
from velox_eval.tasks import longbench_files as files
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.definition import task_files
from velox_eval.tasks.longbench_bundled import GENERATOR, bundled_rows
from velox_eval.tasks.longbench_rows import (
    E_SUFFIX,
    DataSet,
    Template,
    bucket,
    data_sets,
    read_row,
    read_templates,
)
from velox_eval.tasks.sources import Row, read_rows, refuse_repeated, samples_sha256

_GROUPS = ("all", "e")


class LongBench(Task):
    """The task on passages of ours (bundled), the authors' data (official), or local files of the same form."""

    fixed_strata = True  # data sets

    def __init__(self, info: TaskInfo, options: TaskOptions) -> None:
        super().__init__(info, options)
        table = "bundled_datasets" if self.source == "bundled" else "datasets"
        self.sets = data_sets(info.settings[table])
        self.names = self._names(options.variant)
        if self.source != "bundled" and options.data_seed != 0:
            raise ConfigError(f"data_seed={options.data_seed} is for source=bundled; leave it out")

    def _names(self, variant: str | None) -> list[str]:
        """The data sets asked for: `all`, `e`, or names with commas between."""
        plain = [name for name in self.sets if not name.endswith(E_SUFFIX)]
        if variant in (None, "all"):
            return plain
        e_sets = [name for name in self.sets if name not in plain]
        if variant == "e" and e_sets:
            return e_sets
        names = [name.strip() for name in variant.split(",")]
        for name in names:
            if name not in self.sets:
                raise ConfigError(unknown_name("variant", name, (*_GROUPS[: 1 + bool(e_sets)], *self.sets)))
        if len(set(names)) < len(names):
            raise ConfigError(f"variant={variant} names a data set twice")
        return names

    def load(self) -> TaskData:
        """Returns the samples; raises DataError naming file, line and field, or what to download.

        A limit takes rows in turns from the data sets. `incomplete` says what is missing of the whole.
        """
        limit = self.options.limit
        if limit is None and self.source == "bundled":
            limit = self.info.settings["bundled"]["limit"]
        found, origin = self._found()
        if any(self.sets[name].metric in metric.CHINESE for name in found):
            segmenter()  # a missing one is said before a model is loaded
        sizes: dict[str, int] = {}
        kept: dict[str, list[dict[str, Any]]] = {}
        for name, rows, template in self._rows(found):
            items = [read_row(row, self.sets[name], template) for row in rows]
            refuse_repeated(rows, "_id")
            sizes[name] = len(items)
            kept[name] = items if limit is None else items[:limit]
        counts = _in_turns(sizes, limit)
        samples = [
            sample
            for name, items in kept.items()
            for sample in _samples(items[: counts.get(name, 0)], sum(counts.values()), len(counts))
        ]
        return TaskData(
            samples=samples,
            source=self.source,
            origin=origin,
            sha256=samples_sha256(samples),
            total=sum(sizes.values()),
            incomplete=self._incomplete(sizes, counts),
        )

    def _found(self) -> tuple[dict[str, Path | None], str]:
        """The data sets there are, each with its file where it has one, and where they come from."""
        settings = self.info.settings
        if self.source == "bundled":
            return dict.fromkeys(self.names), f"{GENERATOR}, seed {self.options.data_seed}"
        if self.source == "official":
            place = settings["official"]["data"]
            return dict.fromkeys(self.names), f"{place['repository']} {place['file']} {place['revision']}"
        path, get = Path(str(self.options.data)), files.how_to_get(settings)
        if path.is_dir():
            return dict(files.local_files(path, self.names, get)), path.name
        if self.options.variant in (None, *_GROUPS):
            return {files.name_of_file(path, self.sets, files.rows_of(path, get)): path}, path.name
        if len(self.names) > 1:
            raise ConfigError(f"variant={self.options.variant}: {path} is one file, so name one data set")
        return {self.names[0]: path}, path.name

    def _rows(self, found: Mapping[str, Path | None]) -> Iterator[tuple[str, Sequence[Row], Template | None]]:
        """Each data set's rows and its template, one after another."""
        settings = self.info.settings
        if self.source == "bundled":
            bundled = settings["bundled"]
            passages = [row.value for row in read_rows(task_files() / bundled["passages"], get="reinstall velox-eval")]
            (prompts,) = read_rows(task_files() / bundled["prompts"], get="reinstall velox-eval")
            templates = read_templates(prompts, list(found))
            for name in found:
                made = bundled_rows(name, passages, self.options.data_seed, bundled["samples"])
                rows = [
                    Row(f"{name} {i}", {**row, "dataset": name, "length": _length(row)}) for i, row in enumerate(made)
                ]
                yield name, rows, templates[name]
        elif self.source == "official":
            official = settings["official"]
            templates = files.official_templates(list(found), official["prompts"])
            for name in found:
                yield name, files.official_rows(name, official["data"]), templates[name]
        else:
            get = files.how_to_get(settings)
            place = Path(str(self.options.data))
            for name, path in found.items():
                assert path is not None
                rows = files.rows_of(path, get)
                bare = any("origin_prompt" not in row.value for row in rows)
                yield name, rows, files.local_templates(place, [name], get)[name] if bare else None

    def _incomplete(self, sizes: Mapping[str, int], counts: Mapping[str, int]) -> str | None:
        parts = []
        missing = [name for name in self.names if name not in sizes]
        if missing and (self.options.data is None or Path(self.options.data).is_dir()):
            parts.append(f"{len(missing)} of {len(self.names)} data sets are missing: {', '.join(missing)}")
        for name, size in sizes.items():
            whole = self.sets[name].rows
            if whole is not None and size < whole:
                parts.append(f"{name} has {size} of {whole} rows")
        total, taken = sum(sizes.values()), sum(counts.values())
        if taken < total:
            parts.append(f"{taken} of {total} samples")
        return "; ".join(parts) or None

    def request(self, sample: Sample) -> Generate:
        """Returns the prompt as the authors ask it: its middle cut out where it is too long, greedy."""
        one = self.sets[sample.data["dataset"]]
        return Generate(
            sample.sample_id,
            sample.data["prompt"],
            self.options.max_tokens or one.max_tokens,
            stop=("\n",) if one.newline_stops else (),
            chat=one.chat,
            context=None if sample.data["context"] is None else tuple(sample.data["context"]),
            cut_middle=self.options.max_prompt_tokens or self.info.settings["max_prompt_tokens"],
            never_empty=one.newline_stops,
        )

    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Returns score (percent), accuracy (fraction) and score_NAME of the data set, each by the official metric.

        A think trace is no part of the answer. Classifications also have score_NAME_intended: see
        `metrics.longbench.classification`. LongBench-E has score_NAME_BUCKET, empty in the other two buckets.
        """
        data, one = sample.data, self.sets[sample.data["dataset"]]
        thought = without_thinking(response)
        prediction = metric.first_line(thought.answer) if one.first_line else thought.answer
        value = metric.best(one.metric, prediction, data["answers"], data["classes"])
        scores = self._scores(data, value)
        if one.metric == "classification":
            meant = max(
                metric.classification(prediction, answer, data["classes"], official=False) for answer in data["answers"]
            )
            scores[f"score_{one.name}_intended"] = Score(num=100 * meant)
        details: dict[str, Any] = {"metric": one.metric, "length": data["length"]}
        return Scored(scores, details=details | thought.details)

    def _scores(self, data: Mapping[str, Any], value: float) -> dict[str, Score]:
        weight, name = data["weight"], f"score_{data['dataset']}"
        scores = {
            "score": Score(num=100 * value * weight, den=weight),
            "accuracy": Score(num=value * weight, den=weight),
            name: Score(num=100 * value),
        }
        group = bucket(data)
        if group is not None:
            scores |= {
                f"{name}_{label}": Score(num=100 * value) if label == group else Score(num=0, den=0)
                for label in metric.BUCKETS
            }
        return scores

    def unanswered(self, sample: Sample) -> dict[str, Score]:
        """Returns the scores of a sample whose answer failed: nothing right."""
        return self._scores(sample.data, 0.0)

    def derived(self, pooled_scores: Mapping[str, float | None]) -> dict[str, float | None]:
        """Returns means over data sets: by kind and language, by language over kinds (the authors' tables), by bucket.

        One that lacks a data set is null. Languages with no data set in the run are left out.
        """
        if self.source == "bundled":
            return {}
        return {**_table_means(self.sets, pooled_scores), **_bucket_means(pooled_scores)}


def _table_means(sets: Mapping[str, DataSet], scores: Mapping[str, float | None]) -> dict[str, float | None]:
    ending = E_SUFFIX if any(f"score_{name}" in scores for name in sets if name.endswith(E_SUFFIX)) else ""
    chosen = [one for one in sets.values() if one.name.endswith(E_SUFFIX) == bool(ending)]
    means: dict[str, float | None] = {}
    for language in ("en", "zh"):
        spoken = [one for one in chosen if one.language == language]
        if not any(f"score_{one.name}" in scores for one in spoken):
            continue
        spoken += [one for one in chosen if one.language == "code"]  # in both of the authors' tables
        kinds = dict.fromkeys(one.kind for one in spoken)
        by_kind = {
            kind: _mean([scores.get(f"score_{one.name}") for one in spoken if one.kind == kind]) for kind in kinds
        }
        means |= {f"{kind}_{language}": value for kind, value in by_kind.items()}
        means[f"average_{language}"] = _mean(list(by_kind.values()))
    return means


def _bucket_means(scores: Mapping[str, float | None]) -> dict[str, float | None]:
    means = {}
    for label in metric.BUCKETS:
        values = [value for name, value in scores.items() if name.endswith(f"{E_SUFFIX}_{label}")]
        if values:
            means[f"score_{label}"] = _mean(values)
    return means


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where a value is missing."""
    return None if None in values else mean(values)


def _length(row: Mapping[str, Any]) -> int:
    """Words of a bundled row, characters of a Chinese one, as the authors count `length`."""
    text = " ".join([row["input"], row["context"], *row["answers"]])
    return len(text.split()) if text.isascii() else len(text)


def _in_turns(sizes: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How many samples each data set gives when they take turns until `limit` samples are there; none gives none."""
    total = sum(sizes.values())
    left = total if limit is None else min(limit, total)
    counts = dict.fromkeys(sizes, 0)
    while left:
        for name, size in sizes.items():
            if left and counts[name] < size:
                counts[name] += 1
                left -= 1
    return {name: count for name, count in counts.items() if count}


def _samples(items: Sequence[Mapping[str, Any]], total: int, sets: int) -> list[Sample]:
    """The samples of one data set; their weights sum to the same in every data set."""
    samples = []
    for index, item in enumerate(items):
        data = dict(item)
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        data["weight"] = total / (sets * len(items))
        samples.append(Sample(f"{item['dataset']}-{index:04d}-{digest[:8]}", item["dataset"], data))
    return samples
