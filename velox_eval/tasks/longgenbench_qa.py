"""LongGenBench (Liu et al., EMNLP Findings 2024): K questions in one prompt, one long answer to all of them.

Questions and answers go by numbers that follow those of the worked examples. How the scores differ from the authors'
script is in metrics/longgenbench_qa.py. The prompt differs in this: its instruction is in our words and in the user's
turn, as not every chat template takes a system message; headings are ours. The authors ask a model again for what it
left out of an MMLU prompt; here a question left out stays unanswered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, unknown_name
from velox_eval.judges.base import Judge
from velox_eval.metrics import longgenbench_qa as metric
from velox_eval.metrics.longgenbench import accuracy_by_entry
from velox_eval.metrics.thinking import without_thinking
from velox_eval.records.score import Score
from velox_eval.tasks.base import Sample, Scored, Task, TaskData, TaskInfo, TaskOptions
from velox_eval.tasks.qa_files import Asked, AuthorsFiles, Exam, file_exams, gsm8k_exams, mmlu_exams
from velox_eval.tasks.qa_questions import GENERATOR, KINDS, questions
from velox_eval.tasks.sources import content_sha256, samples_sha256

_VARIANTS = {"bundled": KINDS, "official": ("gsm8k", "mmlu"), "data": ("gsm8k", "mmlu")}


class LongGenBenchQA(Task):
    """The task on our own questions (bundled), the authors' (official), or a local file or folder of them."""

    def __init__(self, info: TaskInfo, options: TaskOptions) -> None:
        super().__init__(info, options)
        allowed = _VARIANTS[self.source]
        if options.variant is not None and options.variant not in allowed:
            raise ConfigError(
                unknown_name(f"variant of {info.name} with source={self.source}", options.variant, allowed)
            )
        if self.source != "bundled" and options.data_seed != 0:
            raise ConfigError(f"data_seed={options.data_seed} is for source=bundled; leave it out")
        self.variant = options.variant or ("both" if self.source == "bundled" else "gsm8k")
        official: Mapping[str, Any] = info.settings["official"]
        self._bundled: Mapping[str, int] = info.settings["bundled"]
        default = self._bundled["entries"] if self.source == "bundled" else official[self.variant]["entries"]
        self.entries: int = default if options.entries is None else options.entries
        if self.entries > info.settings["max_entries"]:
            raise ConfigError(f"entries={self.entries} must be at most {info.settings['max_entries']}")

    def load(self) -> TaskData:
        """Returns the samples; raises DataError naming file, line and field, or what to download."""
        asked, default_limit = self._asked()
        samples = [self._sample(index, exam) for index, exam in enumerate(asked.exams)]
        limit = default_limit if self.options.limit is None else self.options.limit
        chosen = samples[:limit]
        part = None if len(chosen) == len(samples) else f"first {len(chosen)} of {len(samples)} samples"
        return TaskData(
            samples=chosen,
            source=self.source,
            origin=asked.origin,
            sha256=samples_sha256(chosen),
            total=len(samples),
            incomplete="; ".join(text for text in (part, asked.incomplete) if text) or None,
            notes=asked.notes,
        )

    def _asked(self) -> tuple[Asked, int | None]:
        if self.source == "bundled":
            return self._make(), self._bundled["limit"]
        files = AuthorsFiles(self.info.settings["official"], self.options.data)
        if self.variant == "mmlu":
            return mmlu_exams(files, self.entries), None
        if files.question_file is not None:
            return file_exams(files.question_file, files, self.entries, self._examples("arithmetic")), None
        return gsm8k_exams(files, self.entries), None

    def _make(self) -> Asked:
        kinds = KINDS if self.variant == "both" else (self.variant,)
        exams = []
        for index in range(self._bundled["samples"]):
            kind = kinds[index % len(kinds)]
            made = questions(kind, self.options.data_seed, self.entries, index)
            pairs = tuple((question.text, question.answer) for question in made)
            shown, first = self._examples(kind)
            exams.append(Exam(kind, "number" if kind == "arithmetic" else "letter", shown, first, pairs))
        origin = f"{GENERATOR}, {self.variant}, seed {self.options.data_seed}, {self.entries} questions a prompt"
        return Asked(tuple(exams), origin)

    def _examples(self, kind: str) -> tuple[str, int]:
        """Our worked examples of a kind, the same for every seed, and the number that follows theirs."""
        made = list(enumerate(questions(kind, 0, self._bundled["examples"], "examples"), 1))
        shown = [f"Question_{number}:\n{question.text}" for number, question in made]
        shown += [f"Answer_{number}:\n{question.solution}" for number, question in made]
        return "\n\n".join(shown), len(made) + 1

    def _sample(self, index: int, exam: Exam) -> Sample:
        numbered = list(enumerate(exam.questions, exam.first))
        asked = "\n\n".join(f"Question_{number}:\n{text}" for number, (text, _) in numbered)
        instruction = self.info.settings["instruction"].format(first=exam.first, last=numbered[-1][0])
        data = {
            "prompt": f"{instruction}\n\nExamples:\n\n{exam.examples}\n\nQuestions:\n\n{asked}",
            "kind": exam.kind,
            "solutions": {str(number): solution for number, (_, solution) in numbered},
        }
        return Sample(f"{exam.name}-{index:04d}-{content_sha256([data])[:8]}", exam.name, data)

    def request(self, sample: Sample) -> Generate:
        """Returns the prompt as the user's turn of a chat."""
        if self.options.max_tokens is not None:
            most = self.options.max_tokens
        elif self.source == "bundled":
            most = self._bundled["tokens_per_entry"] * len(sample.data["solutions"])
        else:
            most = self.info.settings["official"]["max_tokens"]
        return Generate(sample.sample_id, sample.data["prompt"], most, chat=True)

    def score(self, sample: Sample, response: str, judge: Judge) -> Scored:
        """Returns accuracy, accuracy_answered and answered. No judge is asked; a think trace holds no answers."""
        thought = without_thinking(response)
        solutions = {int(number): solution for number, solution in sample.data["solutions"].items()}
        results = metric.question_results(thought.answer, solutions, sample.data["kind"])
        others = sorted(set(metric.answers_by_number(thought.answer)) - set(solutions))
        details = {"questions": [list(result) for result in results], "other_numbers": others[:100], **thought.details}
        return Scored(metric.qa_scores(results), details=details)

    def unanswered(self, sample: Sample) -> dict[str, Score]:
        """Returns the scores of a sample whose answer failed: every question missed."""
        asked = len(sample.data["solutions"])
        return {"accuracy": Score(num=0, den=asked), "answered": Score(num=0, den=asked)}

    def curves(self, details: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Returns accuracy by place of the question in the prompt, in tenths: over all asked, over answered."""
        return accuracy_by_entry(
            (len(item["questions"]), [["", place, *rest] for place, (_, *rest) in enumerate(item["questions"], 1)])
            for item in details
        )
