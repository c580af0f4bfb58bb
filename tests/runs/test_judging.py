"""Runs whose answers a model judges: over HTTP from a real server, and by a model beside the one that answers."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from dataclasses import replace

import pytest

from tests.judges.server import JudgeServer, refusal, words
from velox_eval.errors import JudgeError, StoreError
from velox_eval.judges import DIMENSIONS
from velox_eval.records.store import load_run
from velox_eval.runs.judging import JudgeOptions
from velox_eval.runs.observer import Observer
from velox_eval.runs.rescore import rescore
from velox_eval.runs.runner import run

KEY = "sk-velox-test-9876543210"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("VELOX_EVAL_JUDGE_KEY", KEY)
    with contextlib.closing(JudgeServer()) as made:
        yield made


@pytest.fixture
def judged(options, server, tmp_path):
    """Makes options with the server as judge and replies kept in a folder of the test's own; three unlike answers."""

    def make(repeats=None, **changes):
        judging = JudgeOptions(repeats=repeats, cache=tmp_path / "replies")
        return options(judge=server.judge, judging=judging, **({"budget": 4000, "temperature": 1.0} | changes))

    return make


def test_verdicts_are_the_judges_and_records_name_it(judged, server):
    server.say = lambda prompt, number: words("yes")
    result = run(judged())
    assert result.header.status == "success"
    assert result.header.identity.judge == server.id
    assert len({record.response for record in result.samples}) == 3
    assert all(["once", 1, True, True] in record.details["checks"] for record in result.samples)
    assert result.header.summary.judging is None
    assert "judge" not in result.samples[0].details
    assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {KEY}"}


def test_the_key_is_in_no_file(judged, server, tmp_path):
    server.say = lambda prompt, number: words(f"yes {KEY}") if number < 2 else refusal(404, f"{KEY} is bad")
    result = run(judged())
    assert sorted(record.status for record in result.samples) == ["error", "error", "ok"]
    assert any("[key] is bad" in (record.error or "") for record in result.samples)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"run.json", "samples.jsonl", "runs.jsonl", "replies.sqlite3"} <= {file.name for file in files}
    assert all(KEY.encode() not in file.read_bytes() for file in files)


def test_identical_answers_get_identical_verdicts_whatever_the_method(judged, server):
    server.say = lambda prompt, number: words(("no", "yes")[number % 2])
    first = run(judged())
    asked = len(server.asked)
    second = run(judged(method="full", budget=None))
    assert [r.response for r in second.samples] == [r.response for r in first.samples]
    assert [r.scores for r in second.samples] == [r.scores for r in first.samples]
    assert len(server.asked) == asked + 1  # the question at the start, which is no answer's


def test_an_unreadable_reply_is_unscored_and_counted(judged, server):
    server.say = lambda prompt, number: words("perhaps")
    result = run(judged())
    summary = result.header.summary
    assert (summary.n, summary.n_ok, summary.n_unscored) == (3, 3, 3)
    for record in result.samples:
        assert "acc_once" not in record.scores
        assert "could not be read" in record.unscored["acc_once"]
        assert ["once", 1, True, None] in record.details["checks"]


def test_a_judge_that_cannot_be_asked_stops_the_run_before_it_writes(judged, server):
    server.say = lambda prompt, number: refusal(401, "who are you")
    with pytest.raises(JudgeError, match=r"refuses the key in \$VELOX_EVAL_JUDGE_KEY \(401\)"):
        run(judged())
    assert not judged().results.exists()


def test_a_folder_that_cannot_keep_replies_stops_the_run_before_it_writes(judged, server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use the judge's replies"):
        run(replace(judged(), judging=JudgeOptions(cache=tmp_path / "file" / "replies")))
    assert not judged().results.exists()


@pytest.fixture
def dropped(judged, server):
    """A run whose judge was there at the start only: every answer is kept and none is scored."""
    server.say = lambda prompt, number: refusal(403, "closed") if number else words("yes")
    result = run(judged())
    assert result.header.status == "error"
    assert "3 only in scoring" in result.header.error
    assert f"velox-eval score {result.path} " in result.header.error  # works whatever --results was
    for record in result.samples:
        assert record.status == "error"
        assert record.error.startswith("scoring failed: judge m at http")
        assert record.response
    server.say = lambda prompt, number: words("yes")
    return result


def test_answers_whose_judge_failed_are_scored_later(dropped, judged, server):
    scored = rescore(dropped.path, results=judged().results, judging=judged().judging)
    assert scored.header.status == "success"
    assert scored.header.identity.judge == server.id
    assert [r.response for r in scored.samples] == [r.response for r in dropped.samples]
    assert all(["once", 1, True, True] in record.details["checks"] for record in scored.samples)
    assert load_run(dropped.path).samples == list(dropped.samples)


def test_the_same_command_scores_them_without_writing_them_again(dropped, judged):
    class Watching(Observer):
        steps = 0

        def step(self, progress):
            self.steps += 1

    watching = Watching()
    resumed = run(judged(), watching)
    assert (resumed.state, resumed.header.status, watching.steps) == ("resumed", "success", 0)
    assert [r.response for r in resumed.samples] == [r.response for r in dropped.samples]
    assert [r.prefill_seconds for r in resumed.samples] == [r.prefill_seconds for r in dropped.samples]
    assert resumed.header.sessions[-1].samples == 3


def test_a_finished_run_is_shown_without_its_judge(judged, server):
    first = run(judged())
    server.say = lambda prompt, number: refusal(500, "gone")
    asked = len(server.asked)
    assert run(judged()).path == first.path
    assert len(server.asked) == asked


def test_repeats_are_reported_beside_the_scores(judged, server):
    """Three answers of one judged check each; of nine replies in a row, each third is a no."""
    server.say = lambda prompt, number: words("no" if number and number % 3 == 0 else "yes")
    result = run(judged(repeats=3))
    assert result.header.identity.judge == f"{server.id} x3"
    assert result.header.config.judge_repeats == 3
    for record in result.samples:
        notes = record.details["judge"]
        assert (notes["repeats"], notes["questions"], notes["pairs"], notes["differing"]) == (3, 1, 3, 2)
        assert ["once", 1, True, True] in record.details["checks"]
    stored = json.loads((result.path / "run.json").read_text())["summary"]["judging"]
    assert (stored["repeats"], stored["questions"], stored["unreadable"]) == (3, 3, 0)
    assert stored["disagreement"]["value"] == pytest.approx(2 / 3)
    assert stored["rating_sd"] is None


def test_how_often_a_judge_is_asked_is_part_of_what_a_run_is(judged):
    once, thrice = run(judged()), run(judged(repeats=3))
    assert once.header.config_hash != thrice.header.config_hash
    assert once.header.identity.requests_sha256 == thrice.header.identity.requests_sha256


def test_scoring_again_with_another_judge(options, judged, server, tmp_path):
    first = run(options())
    second = rescore(
        first.path, results=options().results, judge=server.judge, judging=JudgeOptions(cache=tmp_path / "replies")
    )
    assert (first.header.identity.judge, second.header.identity.judge) == ("rules@2", server.id)
    assert [r.response for r in second.samples] == [r.response for r in first.samples]
    repeated = rescore(second.path, results=options().results, judging=JudgeOptions(2, cache=tmp_path / "replies"))
    assert repeated.header.config.judge_repeats == 2
    kept = rescore(repeated.path, results=options().results, judging=JudgeOptions(cache=tmp_path / "replies"))
    assert kept.header.identity.judge == f"{server.id} x2"


def test_scoring_again_asks_for_several_answers_at_a_time(options, judged, server, data_file, tmp_path):
    first = run(options(data=str(data_file(8))))
    server.say = lambda prompt, number: words("yes", wait=0.1)
    judging = JudgeOptions(concurrency=4, cache=tmp_path / "replies")
    scored = rescore(first.path, results=options().results, judge=server.judge, judging=judging)
    assert server.most_at_once > 1
    assert [record.index for record in scored.samples] == list(range(8))


def test_ratings_reach_the_scores_and_a_missing_dimension_leaves_them_out(judged, server):
    points = dict(zip(DIMENSIONS, (5, 4, 3, 2, 1, 3), strict=True))
    short = {name: value for name, value in points.items() if name != "Clarity"}
    replies = [words("yes"), words(f"```json\n{json.dumps(points)}\n```"), words(json.dumps(short)), words("7")]
    server.say = lambda prompt, number: replies[number]
    result = run(judged(task="longwriter", data=None, limit=3))
    assert result.header.status == "success"
    assert result.header.summary.n_unscored == 2
    assert [record.details["ratings"] for record in result.samples].count(points) == 1
    reasons = sorted(record.unscored["s_q"] for record in result.samples if record.unscored)
    assert reasons[0] == "the reply has no JSON objects where one was asked for: '7'"
    assert reasons[1] == "the reply lacks Clarity"


def test_a_model_beside_the_one_that_answers(options, tiny_model_dir, tmp_path):
    """Judging in the midst of a batch changes no answer, and its replies come from the model."""
    judging = JudgeOptions(cache=tmp_path / "replies")
    plain = run(options(batch_size=2))
    judged = run(options(batch_size=2, judge=f"mlx:{tiny_model_dir}", judging=judging))
    assert [r.response for r in judged.samples] == [r.response for r in plain.samples]
    name, content = judged.header.identity.judge.split("@")
    assert name == f"mlx:{tiny_model_dir.name}"
    assert content == f"{judged.header.model.content_sha256[:12]}#1"
    assert str(tiny_model_dir) not in judged.header.identity.judge
    assert (tmp_path / "replies" / "replies.sqlite3").exists()
    for record in judged.samples:
        assert record.details["unreadable"]  # a random model says neither yes nor no


def test_a_judge_model_that_is_not_there(options):
    with pytest.raises(JudgeError, match=r"judge mlx:/no/such/judge: .*"):
        run(options(judge="mlx:/no/such/judge"))
    assert not options().results.exists()


@pytest.mark.model
def test_the_small_model_judges_for_real(options, tmp_path):
    """It is a bad judge ("The answer is no."), but it answers what it is asked, and what is not readable is said."""
    result = run(options(judge="mlx:smollm2-135m", judging=JudgeOptions(2, cache=tmp_path / "replies")))
    assert result.header.status == "success"
    with contextlib.closing(sqlite3.connect(tmp_path / "replies" / "replies.sqlite3")) as file:
        replies = [row[0] for row in file.execute("SELECT reply FROM replies")]
    assert replies
    assert all(re.search(r"\b(yes|no)\b", reply.lower()) for reply in replies)
    for record in result.samples:
        unclear = sum(check[2] and check[3] is None for check in record.details["checks"])
        assert unclear == sum(record.details["unreadable"].values())
        assert record.details["judge"]["differing"] == 0  # greedy
