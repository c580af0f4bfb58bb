"""Requests and scores of task longgenbench, through the task's own interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.conftest import Writer, make_row
from velox_eval.judges import Judge, RuleJudge, Verdict
from velox_eval.records.score import pooled
from velox_eval.tasks import Sample, Task, TaskOptions, get_task


def open_task(path: Path, **options: Any) -> tuple[Task, list[Sample]]:
    task = get_task("longgenbench", TaskOptions(data=str(path), **options))
    return task, list(task.load().samples)


FOUR_FLOORS = make_row(
    checks_once={"1": "library", "4": "bakery"}, checks_range={"2": "hotel rooms", "3": "hotel rooms"}
)


class Unsure(Judge):
    """A judge whose replies about bakeries cannot be read."""

    id = "unsure@1"

    def contains(self, passage: str, description: str) -> Verdict:
        if description == "bakery":
            return Verdict(None, "the reply has no words")
        return RuleJudge().contains(passage, description)


def test_half_of_what_was_asked_and_all_of_it_right(write_rows: Writer) -> None:
    """C3: 4 floors asked, 2 written, both right."""
    task, (sample,) = open_task(write_rows(FOUR_FLOORS))
    scored = task.score(sample, " A quiet library.\n#*# Floor 2: Ten hotel rooms.", RuleJudge())
    values = {name: score.value for name, score in scored.scores.items()}
    assert values["completion"] == 50.0
    assert values["stic_1"] == 1.0
    assert values["stic_2"] == 0.5
    assert values["acc_once"] == 1.0
    assert values["acc_range"] == 1.0
    assert values["acc_periodic"] is None
    assert values["words"] == 9
    assert scored.unscored == {}
    assert scored.details["entries_found"] == [1, 2]
    assert scored.details["blocks"] == 3
    assert scored.details["checks"] == [
        ["once", 1, True, True],
        ["once", 4, False, None],
        ["range", 2, True, True],
        ["range", 3, False, None],
    ]
    assert json.loads(json.dumps(scored.details)) == scored.details


def test_ratios_pool_as_ratios_of_sums_and_completion_as_a_mean(write_rows: Writer) -> None:
    task, samples = open_task(write_rows(FOUR_FLOORS, make_row(number=2, checks_range={}, checks_once={"1": "spa"})))
    answers = [" A library.\n#*# Floor 2: Ten hotel rooms.", " A spa.\n#*# Floor 2: Stairs."]
    scored = [task.score(sample, answer, RuleJudge()) for sample, answer in zip(samples, answers, strict=True)]
    names = scored[0].scores
    together = {name: pooled(item.scores[name] for item in scored) for name in names}
    assert together["stic_2"] == pytest.approx(3 / 5)
    assert together["stic_1"] == 1.0
    assert together["completion"] == 75.0
    derived = task.derived(together)
    assert derived["wavg"] == pytest.approx(75 * 3 / 5)
    assert derived["average_accuracy"] is None  # no periodic check was judged
    curves = task.curves([item.details for item in scored])
    assert curves["accuracy_by_entry"][0] == 1.0
    assert curves["accuracy_by_entry"][7] == 0.0  # floor 4 of 4 was not written
    assert {len(curve) for curve in curves.values()} == {10}


def test_unreadable_verdicts_are_counted_with_their_reason(write_rows: Writer) -> None:
    row = make_row(checks_once={"1": "library", "2": "bakery"}, checks_range={"2": "bakery", "3": "spa"})
    task, (sample,) = open_task(write_rows(row))
    scored = task.score(sample, " A library.\n#*# Floor 2: A bakery.", Unsure())
    assert scored.details["unreadable"] == {"the reply has no words": 2}
    assert (scored.scores["stic_1"].num, scored.scores["stic_1"].den) == (1, 1)
    assert (scored.scores["stic_2"].num, scored.scores["stic_2"].den) == (1, 2)
    assert "acc_range" not in scored.scores
    assert scored.unscored == {"acc_range": "1 verdicts could not be read (the reply has no words)"}


def test_an_answer_without_one_readable_verdict_is_unscored(write_rows: Writer) -> None:
    row = make_row(checks_once={"1": "bakery"}, checks_range={})
    task, (sample,) = open_task(write_rows(row))
    scored = task.score(sample, " A bakery.", Unsure())
    assert set(scored.unscored) == {"acc_once", "stic_1", "stic_2"}
    assert scored.scores["completion"].value == 25.0


def test_an_empty_answer_and_no_answer(write_rows: Writer) -> None:
    task, (sample,) = open_task(write_rows(FOUR_FLOORS))
    empty = task.score(sample, "", RuleJudge()).scores
    assert (empty["stic_2"].num, empty["stic_2"].den) == (0, 4)
    assert empty["completion"].value == 25.0  # the prompt's own header is the first entry
    missed = task.unanswered(sample)
    assert (missed["stic_2"].num, missed["stic_2"].den) == (0, 4)
    assert missed["completion"].value == 0.0


def test_empty_categories_are_tolerated(write_rows: Writer) -> None:
    row = make_row(checks_once={}, checks_range={}, checks_periodic={})
    task, (sample,) = open_task(write_rows(row))
    scored = task.score(sample, " A lobby.", RuleJudge())
    assert scored.scores["stic_2"].value is None
    assert scored.unscored == {}


@pytest.mark.parametrize("end", ["", "\n", "  "])
def test_a_prompt_that_ends_with_its_prefix_stays_as_it_is(write_rows: Writer, end: str) -> None:
    prompt = "Plan.\n#*# Floor 1:" + end
    task, (sample,) = open_task(write_rows(make_row(prompt=prompt)))
    assert task.request(sample).prompt == prompt
    assert task.load().notes == ()


def test_a_prompt_without_its_prefix_gets_it_and_says_so(write_rows: Writer) -> None:
    task, (sample, _) = open_task(write_rows(make_row(prompt="Plan four floors. "), make_row()))
    assert task.request(sample).prompt == "Plan four floors.\n#*# Floor 1:"
    assert task.load().notes == ("1 prompts do not end with their prefix: it is added to them",)
    assert task.score(sample, "", RuleJudge()).details["prefix_added"] is True


@pytest.mark.parametrize(("number", "variant", "limit"), [(100, None, 16000), (300, None, 32000), (100, "long", 32000)])
def test_token_limits_of_official_prompts(write_rows: Writer, number: int, variant: str | None, limit: int) -> None:
    task, (sample,) = open_task(write_rows(make_row(number=number)), variant=variant)
    request = task.request(sample)
    assert (request.max_tokens, request.stop, request.chat) == (limit, ("*** finished",), False)
    assert request.sample_id == sample.sample_id


@pytest.mark.parametrize(
    ("file", "once", "ranged", "periodic", "number"),
    [("Dataset_short.json", 1953, 1256, 2996, 400), ("Dataset_long.json", 2094, 2252, 3869, 400)],
)
def test_the_official_files_have_the_known_checks(
    shared_dir: Path, file: str, once: int, ranged: int, periodic: int, number: int
) -> None:
    path = shared_dir / "data" / "longgenbench_wu" / file
    task, samples = open_task(path)
    assert len(samples) == number
    counts = [sum(len(sample.data[f"checks_{name}"]) for sample in samples) for name in ("once", "range", "periodic")]
    assert counts == [once, ranged, periodic]
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert [dict(sample.data) for sample in samples] == raw
    requests = [task.request(sample) for sample in samples]
    assert [request.prompt for request in requests] == [row["prompt"] for row in raw]
    assert {request.max_tokens for request in requests} == {16000 if "short" in file else 32000}


def test_the_authors_sample_answer_parses_to_the_known_weeks(shared_dir: Path) -> None:
    path = shared_dir / "data" / "longgenbench_wu" / "sample_output_morphkv_llama3.1-8b.jsonl"
    task, (sample,) = open_task(path)
    response = json.loads(path.read_text(encoding="utf-8"))["response"]
    scored = task.score(sample, response, RuleJudge())
    assert scored.details["blocks"] == 45
    assert len(scored.details["entries_found"]) == 44
    assert scored.scores["completion"].value == pytest.approx(100 * 44 / 52)
    assert scored.scores["words"].value == 6332
    assert scored.scores["stic_2"].den == 15
