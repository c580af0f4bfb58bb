"""LongBench-Write and LongWrite-Ruler (Bai et al., ICLR 2025): write a text of a required number of words.

The prompt is the user's turn of the model's own chat template. The authors wrap it in [INST] ... [/INST] for models
with "llama" in their name and draw at temperature 0.5; ours is greedy unless `--temperature` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, unknown_name
from velox_eval.judges.base import Judge
from velox_eval.metrics import longwriter as metric
from velox_eval.metrics.thinking import without_thinking
from velox_eval.records.score import Score
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.definition import task_files
from velox_eval.tasks.sources import (
    Row,
    content_sha256,
    github_page,
    github_raw_url,
    read_official,
    read_rows,
    refuse_repeated,
    samples_sha256,
)

MORPHKV = "morphkv"
_VARIANTS = {
    "bundled": ("all", "en", "zh"),
    "official": ("all", "en", "zh", "ruler", MORPHKV),
    "data": ("all", MORPHKV),
}
_LONGEST_PROMPT = 1_000_000  # characters
_MOST_WORDS = 1_000_000


class LongWriter(Task):
    """The task on our own prompts (bundled), the authors' (official) or a local file of the same form."""

    def __init__(self, info: TaskInfo, options: TaskOptions) -> None:
        super().__init__(info, options)
        self.variant = options.variant or "all"
        allowed = _VARIANTS[self.source]
        if self.variant not in allowed:
            kind = f"variant of {info.name} with source={self.source}"
            raise ConfigError(unknown_name(kind, self.variant, allowed))

    def load(self) -> TaskData:
        """Returns the samples; raises DataError naming file, line and field, or what to download."""
        rows, origin, default_limit = self._read()
        samples = _samples(rows)
        limit = default_limit if self.options.limit is None else self.options.limit
        chosen = samples[:limit]
        return TaskData(
            samples=chosen,
            source=self.source,
            origin=origin,
            sha256=samples_sha256(chosen),
            total=len(samples),
            incomplete=None if len(chosen) == len(samples) else f"first {len(chosen)} of {len(samples)} samples",
        )

    def _read(self) -> tuple[list[Row], str, int | None]:
        settings = self.info.settings
        if self.source == "bundled":
            bundled = settings["bundled"]
            path = task_files() / bundled["file"]
            rows = read_rows(path, get="reinstall velox-eval")
            kept = [row for row in rows if self.variant in ("all", row.text("language"))]
            return kept, f"velox-eval prompts, {self.variant}", bundled["limit"]
        official = settings["official"]
        if self.source == "official":
            urls = {
                name: github_raw_url(official["repository"], official["revision"], file)
                for name, file in official["files"].items()
            }
            if self.variant == "zh":  # no file of its own: what the English half lacks
                english = {row.text("prompt") for row in read_official(urls["en"])}
                rows = [row for row in read_official(urls["all"]) if row.text("prompt") not in english]
                return rows, f"{urls['all']} without {official['files']['en']}", None
            url = urls["en" if self.variant == MORPHKV else self.variant]
            return read_official(url), url, None
        path = Path(str(self.options.data))
        places = " or ".join(official["files"].values())
        get = f"get {places} from {github_page(official['repository'], official['revision'])}"
        return read_rows(path, get=get), path.name, None

    def request(self, sample: Sample) -> Generate:
        """Returns the prompt as the user's turn of a chat."""
        return Generate(sample.sample_id, sample.data["prompt"], self._max_tokens(sample), chat=True)

    def _max_tokens(self, sample: Sample) -> int:
        settings: Mapping[str, Any] = self.info.settings
        words: int = sample.data["length"]
        if self.options.max_tokens is not None:
            return self.options.max_tokens
        most: int = settings["max_tokens"]
        per_word: int | None = None
        if self.source == "bundled":
            per_word = settings["bundled"]["tokens_per_word"]
        elif self.variant == MORPHKV:
            per_word = settings["morphkv_tokens_per_word"]
        return most if per_word is None else min(most, per_word * words)

    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Returns s_l, length_following, official_words, long_repetition and, of a judge that rates, s_q by dimension.

        `long_repetition` counts answers of 5,000 official words and more alone. A rating that cannot be read leaves
        the s_q scores out, with the reason in `unscored`. A think trace is no part of the answer.
        """
        thought = without_thinking(response)
        text, required = thought.answer, sample.data["length"]
        written = metric.official_words(text)
        points = metric.length_score(required, written)
        repetition = metric.long_repetition(text, written)
        scores = {
            "s_l": Score(num=points),
            "length_following": Score(num=points / 100),
            "official_words": Score(num=written),
            "long_repetition": Score(num=repetition or 0.0, den=0.0 if repetition is None else 1.0),
        }
        details: dict[str, Any] = {"required_words": required, "official_words": written, **thought.details}
        unscored: dict[str, str] = {}
        if judge.rates:
            ratings = judge.rate(sample.data["prompt"], text)
            details["ratings"] = None if ratings.values is None else dict(ratings.values)
            if ratings.values is None:
                unscored["s_q"] = ratings.reason or "no reason given"
            else:
                scores |= metric.quality_scores(ratings.values)
        else:
            details["s_q"] = f"left out: judge {judge.id} does not rate texts"
        return Scored(scores, unscored, details)

    def unanswered(self, sample: Sample) -> dict[str, Score]:
        """Returns the length scores of a sample whose answer failed: nothing written."""
        return {"s_l": Score(num=0), "length_following": Score(num=0)}


def _samples(rows: list[Row]) -> list[Sample]:
    refuse_repeated(rows, "id")
    samples = []
    for index, row in enumerate(rows):
        data: dict[str, Any] = {
            "prompt": row.text("prompt", most=_LONGEST_PROMPT),
            "type": row.text("type", most=100),
            "length": row.whole("length", least=1),
        }
        if data["length"] > _MOST_WORDS:
            row.fail("length", f"is {str(data['length'])[:40]}; it must be at most {_MOST_WORDS}")
        sample_id = row.text("id", most=100) if "id" in row.value else f"{index:04d}-{content_sha256([data])[:8]}"
        samples.append(Sample(sample_id, data["type"], data))
    return samples
