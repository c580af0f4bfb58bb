"""LongBench v2 (Bai et al., 2024): four-way questions on very long contexts, answered in writing.

The prompt is the authors' (read from their repository, never kept here), its middle cut out where it is too long,
and asked through the chat template. The letter is read from the answer by their two patterns. They sample at
temperature 0.1; here answers are greedy unless --temperature says otherwise. Their chain-of-thought variant, which
takes two answers a question, is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, DataError, unknown_name
from velox_eval.judges.base import Judge
from velox_eval.metrics import longbench as metric
from velox_eval.metrics.thinking import without_thinking
from velox_eval.records.score import Score
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.definition import task_files
from velox_eval.tasks.longbench_bundled import GENERATOR, bundled_choices
from velox_eval.tasks.longbench_rows import Template, dollar_template
from velox_eval.tasks.sources import (
    Row,
    content_sha256,
    github_page,
    github_raw_url,
    hub_page,
    hub_url,
    official,
    read_official,
    read_rows,
    read_text,
    refuse_repeated,
    samples_sha256,
)

_VARIANTS = {"zero_shot": "0shot.txt", "no_context": "0shot_no_context.txt"}
_OPTIONS = tuple(f"C_{letter}" for letter in metric.CHOICES)
_DIFFICULTIES, _LENGTHS = ("easy", "hard"), ("short", "medium", "long")


class LongBenchV2(Task):
    """The task on passages of ours (bundled), the authors' 503 questions (official), or a local file of the same form.

    Variants: zero_shot (default) and no_context, which asks without the text, for what a model knows by heart.
    """

    def __init__(self, info: TaskInfo, options: TaskOptions) -> None:
        super().__init__(info, options)
        self.variant = options.variant or "zero_shot"
        if self.variant not in _VARIANTS:
            raise ConfigError(unknown_name("variant", self.variant, _VARIANTS))
        if self.source == "bundled" and options.variant not in (None, "zero_shot"):
            raise ConfigError(f"variant={options.variant} is for source=official or --data")
        if self.source != "bundled" and options.data_seed != 0:
            raise ConfigError(f"data_seed={options.data_seed} is for source=bundled; leave it out")

    def load(self) -> TaskData:
        """Returns the samples; raises DataError naming file, line and field, or what to download."""
        rows, template, origin = self._read()
        limit = self.options.limit
        if limit is None and self.source == "bundled":
            limit = self.info.settings["bundled"]["limit"]
        samples = [_sample(row, index, template) for index, row in enumerate(rows)][:limit]
        refuse_repeated(rows, "_id")
        return TaskData(
            samples=samples,
            source=self.source,
            origin=origin,
            sha256=samples_sha256(samples),
            total=len(rows),
            incomplete=self._incomplete(len(rows), len(samples)),
        )

    def _incomplete(self, there: int, taken: int) -> str | None:
        whole = self.info.settings["rows"]
        parts = [f"{there} of {whole} rows"] if self.source != "bundled" and there < whole else []
        if taken < there:
            parts.append(f"first {taken} of {there} samples")
        return "; ".join(parts) or None

    def _read(self) -> tuple[Sequence[Row], Template, str]:
        settings = self.info.settings
        if self.source == "bundled":
            bundled = settings["bundled"]
            passages = [row.value for row in read_rows(task_files() / bundled["passages"], get="reinstall velox-eval")]
            (prompts,) = read_rows(task_files() / bundled["prompts"], get="reinstall velox-eval")
            made = bundled_choices(passages, self.options.data_seed, bundled["samples"])
            rows = [Row(f"question {index}", row) for index, row in enumerate(made, 1)]
            return rows, self._template(prompts.text("notes_choice"), prompts.where), _bundled(self.options.data_seed)
        data, prompts_at = settings["official"]["data"], settings["official"]["prompts"]
        file = _VARIANTS[self.variant]
        if self.source == "official":
            where = github_raw_url(prompts_at["repository"], prompts_at["revision"], f"{prompts_at['folder']}/{file}")
            beside = f"put it in {prompts_at['folder']}/ beside {data['file']}, and give the folder of both with --data"
            template = official(where, lambda text: self._template(text, where), instead=beside)
            url = hub_url(**data)
            return read_official(url), template, url
        path = Path(str(self.options.data))
        get = (
            f"get {data['file']} from {hub_page(data['repository'], data['revision'])} and "
            f"{prompts_at['folder']}/{file} from {github_page(prompts_at['repository'], prompts_at['revision'])}"
        )
        if path.is_dir():
            path = path / data["file"]
        rows = read_rows(path, get=get)
        return rows, self._local_template(path.parent, prompts_at["folder"], file, get), path.name

    def _local_template(self, folder: Path, inner: str, file: str, get: str) -> Template:
        for path in (folder / file, folder / inner / file, folder.parent / inner / file):
            if path.is_file():
                return self._template(read_text(path, get=get, kind="a text file"), str(path))
        raise DataError(f"{folder / inner / file}: no such file, and the questions need it; {get}")

    def _template(self, text: str, where: str) -> Template:
        needs = ("Q", *_OPTIONS) if self.variant == "no_context" else ("DOC", "Q", *_OPTIONS)
        return dollar_template(text, where, needs)

    def request(self, sample: Sample) -> Generate:
        """Returns the question in the chat template, greedy, cut in the middle where it is too long."""
        section = self.info.settings["bundled"] if self.source == "bundled" else self.info.settings
        context = sample.data["span"]
        return Generate(
            sample.sample_id,
            sample.data["prompt"],
            self.options.max_tokens or section["max_tokens"],
            chat=True,
            context=None if context is None else (context[0], context[1]),
            cut_middle=self.options.max_prompt_tokens or self.info.settings["max_prompt_tokens"],
        )

    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Returns accuracy, alone and by difficulty and length, and the share of answers with no letter (`unread`).

        Such an answer is wrong; `accuracy_compensated` counts it as a guess, 0.25, which the authors offer too.
        """
        thought = without_thinking(response)
        letter = metric.choice(thought.answer.strip())
        right = float(letter == sample.data["answer"])
        scores = {
            **_accuracies(sample.data, right),
            "accuracy_compensated": Score(num=0.25 if letter is None else right),
            "unread": Score(num=letter is None),
        }
        details: dict[str, Any] = {"choice": letter, "answer": sample.data["answer"], "domain": sample.data["domain"]}
        return Scored(scores, details=details | thought.details)

    def unanswered(self, sample: Sample) -> dict[str, Score]:
        """Returns the scores of a sample whose answer failed: wrong."""
        return _accuracies(sample.data, 0.0)


def _bundled(seed: int) -> str:
    return f"{GENERATOR}, seed {seed}"


def _accuracies(data: Mapping[str, Any], right: float) -> dict[str, Score]:
    """Overall accuracy and the sample's part in those by difficulty and length (den 0: not of that group)."""
    scores = {"accuracy": Score(num=right)}
    for group in (*_DIFFICULTIES, *_LENGTHS):
        member = group in (data["difficulty"], data["length"])
        scores[f"accuracy_{group}"] = Score(num=right if member else 0, den=1 if member else 0)
    return scores


def _sample(row: Row, index: int, template: Template) -> Sample:
    fields = {
        "DOC": row.text("context").strip(),
        "Q": row.text("question").strip(),
        **{f"C_{letter}": row.text(f"choice_{letter}").strip() for letter in metric.CHOICES},
    }
    prompt, span = template.fill(fields, "DOC")
    data = {
        "prompt": prompt,
        "span": span,
        "answer": _one_of(row, "answer", metric.CHOICES),
        "difficulty": _one_of(row, "difficulty", _DIFFICULTIES),
        "length": _one_of(row, "length", _LENGTHS),
        "domain": row.text("domain"),
    }
    row.text("_id")
    return Sample(f"{index:03d}-{content_sha256([data])[:8]}", f"{data['difficulty']} {data['length']}", data)


def _one_of(row: Row, field: str, allowed: Sequence[str]) -> str:
    value = row.text(field)
    if value not in allowed:
        row.fail(field, f"is {value[:40]!r}; it must be one of {', '.join(allowed)}")
    return value
