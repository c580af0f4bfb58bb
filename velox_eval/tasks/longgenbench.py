"""LongGenBench (Wu et al., ICLR 2025): one long answer of many numbered entries, with demands on some of them.

The prompt is raw text (no chat template) that ends with the header of the first entry; the model goes on from
there. What is scored is that header followed by the answer. Each demand is a yes/no check on one entry.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, unknown_name
from velox_eval.judges.base import Judge
from velox_eval.metrics import longgenbench as metric
from velox_eval.records.score import Score
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.scenarios import GENERATOR, scenarios
from velox_eval.tasks.sources import (
    Row,
    content_sha256,
    describe,
    github_page,
    github_raw_url,
    read_official,
    read_rows,
    samples_sha256,
)

_VARIANTS = ("short", "long")
_LONG_OVER = 100  # entries; the long set asks for 300 and more


class LongGenBench(Task):
    """The task on our own scenarios (bundled), the authors' prompts (official) or a local file of the same form."""

    def __init__(self, info: TaskInfo, options: TaskOptions) -> None:
        super().__init__(info, options)
        self._bundled: Mapping[str, int] = info.settings["bundled"]
        self.entries = self._bundled["entries"] if options.entries is None else options.entries
        self._check_options()

    def _check_options(self) -> None:
        options, bundled = self.options, self.source == "bundled"
        if not bundled and options.entries is not None:
            raise ConfigError(f"entries={options.entries} is for source=bundled; source={self.source} fixes them")
        if not bundled and options.data_seed != 0:
            raise ConfigError(f"data_seed={options.data_seed} is for source=bundled; leave it out")
        if options.variant is not None:
            if bundled:
                raise ConfigError(f"variant={options.variant} is for source=official or --data; bundled has --entries")
            if options.variant not in _VARIANTS:
                raise ConfigError(unknown_name("variant", options.variant, _VARIANTS))
        least, most = self._bundled["min_entries"], self._bundled["max_entries"]
        if bundled and not least <= self.entries <= most:
            raise ConfigError(f"entries={self.entries} must be from {least} to {most}")

    def load(self) -> TaskData:
        """Returns the samples; raises DataError naming file, line and field, or what to download."""
        samples, origin, default_limit = self._read()
        limit = default_limit if self.options.limit is None else self.options.limit
        chosen = samples if limit is None else samples[:limit]
        return TaskData(
            samples=chosen,
            source=self.source,
            origin=origin,
            sha256=samples_sha256(chosen),
            total=len(samples),
            incomplete=None if len(chosen) == len(samples) else f"first {len(chosen)} of {len(samples)} samples",
            notes=_notes(chosen),
        )

    def _read(self) -> tuple[list[Sample], str, int | None]:
        if self.source == "bundled":
            made = scenarios(self.options.data_seed, self.entries, self._bundled["samples"])
            rows = [Row(f"scenario {index}", row) for index, row in enumerate(made, 1)]
            origin = f"{GENERATOR}, seed {self.options.data_seed}, {self.entries} entries"
            return _samples(rows), origin, self._bundled["limit"]
        if self.source == "official":
            official = self.info.settings["official"]
            file = official["files"][self.options.variant or "short"]
            url = github_raw_url(official["repository"], official["revision"], file)
            return _samples(read_official(url)), url, None
        path = Path(str(self.options.data))
        official = self.info.settings["official"]
        places = " or ".join(official["files"].values())
        get = f"get {places} from {github_page(official['repository'], official['revision'])}"
        return _samples(read_rows(path, get=get)), path.name, None

    def request(self, sample: Sample) -> Generate:
        """Returns the raw prompt; the header of the first entry is added where a prompt lacks it."""
        prompt = sample.data["prompt"]
        if not _ends_with_prefix(sample.data):
            prompt = f"{prompt.rstrip()}\n{sample.data['prefix']}"
        return Generate(sample.sample_id, prompt, self._max_tokens(sample), stop=(self.info.settings["stop"],))

    def _max_tokens(self, sample: Sample) -> int:
        if self.options.max_tokens is not None:
            return self.options.max_tokens
        if self.source == "bundled":
            return self._bundled["max_tokens"] * self.entries // self._bundled["entries"]
        by_size = "long" if sample.data["number"] > _LONG_OVER else "short"
        limits: Mapping[str, int] = self.info.settings["max_tokens"]
        return limits[self.options.variant or by_size]

    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Returns completion, acc_*, stic_1, stic_2 and words.

        A verdict that cannot be read takes its check out of every score; `details["unreadable"]` counts them
        by reason. When no verdict of an answer could be read, its judged scores are in `unscored`.
        """
        row = sample.data
        blocks = metric.split_blocks(row["prefix"] + response)
        written = metric.entries(blocks, row["type"])
        asked = checks(row)
        verdicts = iter(judge.contains_all([(written[entry], text) for _, entry, text in asked if entry in written]))
        results: list[metric.CheckResult] = []
        unreadable: Counter[str] = Counter()
        for category, entry, _ in asked:
            found = entry in written
            yes = None
            if found:
                verdict = next(verdicts)
                yes = verdict.yes
                if yes is None:
                    unreadable[verdict.reason or "no reason given"] += 1
            results.append(metric.CheckResult(category, entry, found, yes))
        scores = {
            "completion": metric.completion(written, row["number"]),
            **metric.check_scores(results),
            "words": Score(num=len(response.split())),
        }
        unscored = _drop_unscored(scores, results, unreadable)
        details = {
            "number": row["number"],
            "blocks": len(blocks),
            "entries_found": sorted(entry for entry in written if 1 <= entry <= row["number"]),
            "checks": [result.as_list() for result in results],
            "unreadable": dict(sorted(unreadable.items())),
            "prefix_added": not _ends_with_prefix(row),
        }
        return Scored(scores, unscored, details)

    def unanswered(self, sample: Sample) -> dict[str, Score]:
        """Returns the scores of a sample whose answer failed: nothing written, every check missed."""
        asked = len(checks(sample.data))
        return {"completion": Score(num=0), "stic_2": Score(num=0, den=asked)}

    def derived(self, pooled_scores: Mapping[str, float | None]) -> dict[str, float | None]:
        """Returns average_accuracy and wavg."""
        return metric.derived_scores(pooled_scores)

    def curves(self, details: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Returns accuracy by entry number, pooled in tenths of the answer."""
        return metric.accuracy_by_entry((item["number"], item["checks"]) for item in details)


def checks(row: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Returns a row's checks as (category, entry, description), by category and entry."""
    return [
        (category, int(entry), description)
        for category in metric.CATEGORIES
        for entry, description in sorted(row[f"checks_{category}"].items(), key=lambda item: int(item[0]))
    ]


def _drop_unscored(
    scores: dict[str, Score], results: Sequence[metric.CheckResult], unreadable: Mapping[str, int]
) -> dict[str, str]:
    """Takes out the scores that have no readable verdict at all and returns why."""
    unscored = {}
    for name in [*(f"acc_{category}" for category in metric.CATEGORIES), "stic_1", "stic_2"]:
        lost = sum(r.unreadable for r in results if name in ("stic_1", "stic_2", f"acc_{r.category}"))
        if lost and not scores[name].den:
            del scores[name]
            unscored[name] = f"{lost} verdicts could not be read ({'; '.join(sorted(unreadable))})"
    return unscored


def _notes(samples: Sequence[Sample]) -> tuple[str, ...]:
    bare = sum(not _ends_with_prefix(sample.data) for sample in samples)
    beyond = sum(entry > sample.data["number"] for sample in samples for _, entry, _ in checks(sample.data))
    notes = []
    if bare:
        notes.append(f"{bare} prompts do not end with their prefix: it is added to them")
    if beyond:
        notes.append(f"{beyond} checks are on entries beyond the number asked for: they count as asked")
    return tuple(notes)


def _ends_with_prefix(row: Mapping[str, Any]) -> bool:
    return str(row["prompt"]).rstrip().endswith(str(row["prefix"]).rstrip())


def _samples(rows: Sequence[Row]) -> list[Sample]:
    samples = []
    for index, row in enumerate(rows):
        data = _read_row(row)
        slug = re.sub(r"\W+", "-", data["type"].lower()).strip("-")
        sample_id = f"{slug}-{index:04d}-{content_sha256([data])[:8]}"
        samples.append(Sample(sample_id, data["type"], data))
    return samples


def _read_row(row: Row) -> dict[str, Any]:
    """The seven fields of the benchmark's schema; others (a stored response) are left out."""
    return {
        "prompt": row.text("prompt"),
        "prefix": row.text("prefix"),
        "type": row.text("type"),
        "number": row.whole("number", least=1),
        **{f"checks_{name}": _read_checks(row, f"checks_{name}") for name in metric.CATEGORIES},
    }


def _read_checks(row: Row, field: str) -> dict[str, str]:
    value = row.need(field)
    if not isinstance(value, dict):
        row.fail(field, f"expected an object of entry -> description, got {describe(value)}")
    seen: set[int] = set()
    for key, description in value.items():
        if not re.fullmatch(r"[0-9]{1,9}", key):
            row.fail(field, f"entry {key!r} is no whole number")
        entry = int(key)  # the official days are written "061"
        if entry < 1:
            row.fail(field, f"entry {entry} must be at least 1")
        if entry in seen:
            row.fail(field, f"entry {entry} is given twice")
        if not isinstance(description, str) or not description.strip():
            row.fail(field, f"entry {entry} needs a description, got {describe(description)}")
        seen.add(entry)
    return dict(value)
