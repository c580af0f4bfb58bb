"""What a task is: it loads samples, turns each into a request, scores the answer, sums the scores up.

Tasks import no mlx and no model: a stored or foreign answer scores the same way as a fresh one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from velox_eval.engine.requests import Request
from velox_eval.errors import DataError
from velox_eval.judges.base import Judge
from velox_eval.records.schema import Likelihoods, TeacherForced
from velox_eval.records.score import Score


@dataclass(frozen=True)
class Sample:
    """One item of a task. `stratum` is the type that comparisons pair within; `data` is the task's own row."""

    sample_id: str
    stratum: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class TaskData:
    """Loaded samples and where they come from; `sha256` covers the content of all samples loaded."""

    samples: Sequence[Sample]
    source: str  # "bundled", "official", or "data" (a local file)
    origin: str  # what was read: generator seed, URL and revision, or file name
    sha256: str
    total: int  # samples available before --limit
    incomplete: str | None = None  # why the set is not the whole task, if it is not
    notes: tuple[str, ...] = ()  # what loading changed or found odd; shown and recorded


@dataclass(frozen=True)
class Scored:
    """Scores of one answer. A score that could not be given is absent from `scores` and has a reason in `unscored`."""

    scores: Mapping[str, Score]
    unscored: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)  # JSON-able, kept in the record


@dataclass(frozen=True)
class TaskInfo:
    """A task's definition, read from tasks/<name>.toml."""

    name: str
    summary: str
    version: int
    primary: str  # the score comparisons decide on
    accuracy: str  # the score shown as `accuracy` (a fraction, over everything asked)
    sources: tuple[str, ...]
    changelog: tuple[str, ...]
    paper: str
    settings: Mapping[str, Any]  # the rest of the file, for the adapter
    higher_is_better: bool = True  # of the primary score


@dataclass(frozen=True)
class TaskOptions:
    """What a user may choose about a task; None leaves it to the definition."""

    source: str | None = None
    data: str | None = None  # a local file or directory
    limit: int | None = None
    max_tokens: int | None = None
    entries: int | None = None  # entries per answer, where the task can choose
    variant: str | None = None  # short / long, en / zh, ... where the task has them
    data_seed: int = 0  # bundled material
    max_prompt_tokens: int | None = None  # longer prompts lose their middle, where the task has that
    model: str | None = None  # the model that will run, for tasks whose prompts are measured in its tokens


class Task(ABC):
    """One benchmark: definition, data, requests and official scoring."""

    fixed_strata = False  # strata are the benchmark's own parts, not a draw of many: a score's error is within them

    def __init__(self, info: TaskInfo, options: TaskOptions) -> None:
        self.info = info
        self.options = options
        self.source = "data" if options.data is not None else options.source or info.sources[0]

    @abstractmethod
    def load(self) -> TaskData:
        """Returns the samples. Raises DataError naming file, line and field, ConfigError for bad options."""

    @abstractmethod
    def request(self, sample: Sample) -> Request:
        """Returns the request for a sample; all requests of a task are of one type."""

    @abstractmethod
    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Returns the scores of `response` (generated text, without any prefix of the prompt)."""

    def score_comparison(self, sample: Sample, compared: TeacherForced) -> Scored:
        """Returns the scores of a comparison with the full cache, for tasks that ask for one (TeacherForce)."""
        raise DataError(f"task {self.info.name} scores answers, not comparisons with the full cache")

    def score_likelihoods(self, sample: Sample, likelihoods: Likelihoods) -> Scored:
        """Returns the scores of log-likelihoods, for tasks that ask for them (LogLikelihood)."""
        raise DataError(f"task {self.info.name} scores answers, not log-likelihoods")

    def derived(self, pooled_scores: Mapping[str, float | None]) -> dict[str, float | None]:
        """Returns scores computed from the pooled ones (products and the like); none by default."""
        return {}

    def aggregated(self, details: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """Returns scores that are no ratio of sums, from the `details` of all scored samples; none by default."""
        return {}

    def unanswered(self, sample: Sample) -> dict[str, Score]:
        """Returns the scores of a sample that got no answer, everything asked counting as missed; empty by default."""
        return {}

    def curves(self, details: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Returns series pooled over the `details` of all scored samples (accuracy by position); none by default."""
        return {}
