"""Judges at an address, over HTTP from a real server: what is asked, what is read, what goes wrong and what is told."""

from __future__ import annotations

import json
import logging
import time
import traceback
from pathlib import Path

import pytest

from tests.judges.server import DrippingServer, JudgeServer, Say, refusal, words
from velox_eval.errors import ConfigError, JudgeError
from velox_eval.judges import DIMENSIONS, Judge, Limits, ReplyCache, get_judge
from velox_eval.judges.address import Address, find_key, parse_address

KEY = "sk-velox-test-0123456789"
POINTS = dict(zip(DIMENSIONS, (5, 4, 3, 2, 1, 5), strict=True))


def judge_at(server: JudgeServer | DrippingServer, folder: Path | None = None, **limits: float) -> Judge:
    replies = None if folder is None else ReplyCache(folder)
    return get_judge(server.judge, replies=replies, limits=Limits(**{"retries": 1, **limits}))  # type: ignore[arg-type]


def failure(judge: Judge) -> str:
    """What a question that gets no reply raises; one line."""
    with pytest.raises(JudgeError) as caught:
        judge.contains("Week 1: we rest.", "rest")
    message = str(caught.value)
    assert "\n" not in message
    assert judge.id.partition("@")[0].removeprefix("openai:") in message
    return message


def test_a_question_carries_both_texts_the_model_and_the_key(server, monkeypatch):
    monkeypatch.setenv("VELOX_EVAL_JUDGE_KEY", KEY)
    assert judge_at(server).contains("Week 1: we visit the museum.", "a visit to the museum").yes is True
    [asked] = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body["model"] == "m"
    assert asked.body["temperature"] == 0
    assert asked.body["max_tokens"] > 0
    assert "Week 1: we visit the museum." in asked.prompt
    assert "a visit to the museum" in asked.prompt


@pytest.mark.parametrize(
    ("reply", "yes"),
    [
        ("Yes", True),
        ("**no**.", False),
        ("No, as of yesterday it does not", False),  # the official rule, "yes" anywhere, calls this a yes
        ("<think>yes? The entry is short.</think>\nNo.", False),
    ],
)
def test_replies_are_read_by_their_first_word(server, reply, yes):
    server.say = lambda prompt, number: words(reply)
    assert judge_at(server).contains("p", "d").yes is yes


@pytest.mark.parametrize("reply", ["Perhaps yes", "", "<think>yes", None])
def test_a_reply_that_is_neither_is_unreadable_with_the_reason(server, reply):
    server.say = lambda prompt, number: words(reply)
    verdict = judge_at(server).contains("p", "d")
    assert verdict.yes is None
    assert verdict.reason


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "Here you are:\n```json\n{}\n```\nA fair text.", "  {}  "])
def test_ratings_are_read_bare_and_fenced(server, form):
    server.say = lambda prompt, number: words(form.replace("{}", json.dumps(POINTS)))
    judge = judge_at(server)
    assert judge.rates
    assert judge.rate("Write a poem.", "Roses are red.").values == POINTS
    assert "Write a poem." in server.asked[0].prompt
    assert "Roses are red." in server.asked[0].prompt


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"Clarity": 7}, "Clarity is 7,"), ({"Clarity": "7"}, 'Clarity is "7",'), ({"Breadth and Depth": None}, "lacks")],
)
def test_ratings_are_never_filled_in(server, changed, named):
    given = {name: value for name, value in (POINTS | changed).items() if value is not None}
    server.say = lambda prompt, number: words(f"```json\n{json.dumps(given)}\n```")
    ratings = judge_at(server).rate("i", "r")
    assert ratings.values is None
    assert named in ratings.reason


def test_a_busy_server_is_asked_again_when_it_says(server):
    server.say = lambda prompt, number: words("no") if number else refusal(429, "slow down", Retry_After="1")
    began = time.monotonic()
    assert judge_at(server).contains("p", "d").yes is False
    assert time.monotonic() - began >= 1
    assert len(server.asked) == 2


def test_a_server_that_fails_is_tried_again_then_told(server):
    server.say = lambda prompt, number: refusal(500, "out of\nmemory")
    assert "status 500: out of memory" in failure(judge_at(server))
    assert len(server.asked) == 2


def test_too_many_requests_for_too_long(server):
    server.say = lambda prompt, number: refusal(429, "no quota")
    assert "(429): no quota" in failure(judge_at(server, retries=0))


def test_a_reply_that_does_not_come_in_time(server):
    server.say = lambda prompt, number: words("yes", wait=30)
    began = time.monotonic()
    assert "no whole reply within 0.3 s" in failure(judge_at(server, timeout=0.3, retries=0))
    assert time.monotonic() - began < 5


def test_an_answer_that_never_ends(dripping):
    began = time.monotonic()
    assert "no whole reply within 0.3 s" in failure(judge_at(dripping, timeout=0.3, retries=0))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Welcome</html>",
        b"",
        b"\xff\xfe\x00",
        b"{",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": "yes"}]}',
        b'{"choices": [{"message": {"content": ["yes"]}}]}',
        b'{"choices": ' + b"[" * 100_000,
    ],
)
def test_an_answer_that_is_no_completion(server, body):
    server.say = lambda prompt, number: Say(body=body, headers={"Content-Type": "application/json"})
    assert "its answer" in failure(judge_at(server))
    assert len(server.asked) == 1


def test_an_answer_too_large_to_be_one(server):
    server.say = lambda prompt, number: words("yes " * 2_000_000)
    assert "longer than 4194304 bytes" in failure(judge_at(server, retries=0))


def test_a_long_reply_is_cut_before_it_is_kept(server, tmp_path):
    server.say = lambda prompt, number: words("yes " * 100_000)
    assert judge_at(server, tmp_path).contains("p", "d").yes is True
    assert (tmp_path / "replies.sqlite3").stat().st_size < 100_000


def test_half_a_surrogate_pair_can_be_asked_and_answered(server, tmp_path):
    server.say = lambda prompt, number: words("well \ud800")
    verdict = judge_at(server, tmp_path).contains("broken \udcff", "d")
    assert verdict.yes is None
    verdict.reason.encode()


def test_no_key_and_a_refused_one(server, monkeypatch):
    server.say = lambda prompt, number: refusal(401, f"bad key {KEY}")
    assert "wants a key (401): set $VELOX_EVAL_JUDGE_KEY" in failure(judge_at(server))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    message = failure(judge_at(server))
    assert "refuses the key in $OPENAI_API_KEY (401)" in message
    assert KEY not in message
    assert len(server.asked) == 2


def test_the_key_is_told_to_the_server_alone(server, monkeypatch, tmp_path, caplog):
    """A server that repeats the key in replies and errors gets it into no message, traceback, log or file."""
    monkeypatch.setenv("VELOX_EVAL_JUDGE_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    judge = judge_at(server, tmp_path, retries=0)
    server.say = lambda prompt, number: words(f"{KEY} is your key")
    assert KEY not in judge.contains("p", "d").reason
    for say in (refusal(500, f"{KEY} crashed"), Say(body=KEY.encode()), refusal(404, KEY), words([KEY])):
        server.say = lambda prompt, number, say=say: say
        with pytest.raises(JudgeError) as caught:
            judge.contains(f"p {say.body[:40]!r}", "d")
        assert KEY not in "".join(traceback.format_exception(caught.value))
    server.say = lambda prompt, number: refusal(400, f"{KEY} too long")
    assert KEY not in judge.contains("q", "d").reason
    assert len(server.asked) == 6
    assert KEY not in caplog.text
    assert all(KEY.encode() not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert KEY not in repr(vars(judge))


def test_a_model_that_is_not_there(server):
    server.say = lambda prompt, number: refusal(404, "The model `m` does not exist")
    with pytest.raises(JudgeError, match=r"no such model or address \(404\): The model `m` does not exist"):
        judge_at(server).prepare()


def test_a_refused_question_is_unreadable_and_not_kept(server, tmp_path):
    server.say = lambda prompt, number: refusal(400, "context length exceeded") if number == 0 else words("yes")
    judge = judge_at(server, tmp_path)
    verdict = judge.contains("p", "d")
    assert verdict.yes is None
    assert "refused the question (400): context length exceeded" in verdict.reason
    assert judge.contains("p", "d").yes is True


def test_settings_the_server_refuses_show_at_the_start(server):
    server.say = lambda prompt, number: refusal(400, "temperature must be 1")
    with pytest.raises(JudgeError, match="temperature must be 1"):
        judge_at(server).prepare()


def test_a_server_that_is_not_there(server):
    server.close()
    with pytest.raises(JudgeError, match=r"judge m at http://127\.0\.0\.1:\d+/v1: no reply: .*refused"):
        judge_at(server).prepare()


def test_many_questions_share_the_room_and_keep_their_order(server):
    server.say = lambda prompt, number: words("yes" if "even" in prompt else "no", wait=0.05)
    judge = judge_at(server, concurrency=3)
    questions = [(f"floor {number} is {('even', 'odd')[number % 2]}", "d") for number in range(12)]
    verdicts = judge.contains_all(questions)
    assert [verdict.yes for verdict in verdicts] == [True, False] * 6
    assert server.most_at_once == 3


def test_one_failure_ends_the_questions_and_keeps_the_replies(server, tmp_path):
    server.say = lambda prompt, number: words("yes") if number < 2 else refusal(500, "gone")
    judge = judge_at(server, tmp_path, concurrency=1, retries=0)
    questions = [(f"p{number}", "d") for number in range(5)]
    with pytest.raises(JudgeError, match="gone"):
        judge.contains_all(questions)
    server.say = lambda prompt, number: words("no")
    verdicts = judge.contains_all(questions)
    assert [verdict.yes for verdict in verdicts] == [True, True, False, False, False]


def test_missing_client_is_one_line(server, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    assert "pip install 'velox-eval[judge]'" in failure_line(judge_at(server))


def failure_line(judge: Judge) -> str:
    with pytest.raises(JudgeError) as caught:
        judge.prepare()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "model", "url"),
    [
        ("gpt-4o", "gpt-4o", "https://api.openai.com/v1"),
        ("qwen2.5:7b@http://localhost:11434/v1/", "qwen2.5:7b", "http://localhost:11434/v1"),
        ("@cf/meta/llama@https://HOST.example/a", "@cf/meta/llama", "https://host.example/a"),
        ("m@http://[::1]:80", "m", "http://[::1]:80/v1"),
    ],
)
def test_addresses(text, model, url):
    assert parse_address(text) == Address(model, url)


@pytest.mark.parametrize(
    "name",
    [
        "openai:m@https://user:hunter2@host/v1",
        "openai:m@user:hunter2@host/v1",
        "openai:m@https://host/v1?key=hunter2",
        "openai:m@https://host/v1#hunter2",
        "openai:m@http://host:hunter2",
        "opena:m@https://user:hunter2@host",
        "openai:m@ftp://user:hunter2@host",
        "openai:m@http://",
        "openai:",
        "openai",
        "mlx:",
        "ruls",
    ],
)
def test_names_that_cannot_work_are_refused_without_repeating_a_password(name):
    with pytest.raises(ConfigError) as caught:
        get_judge(name)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_openais_key_goes_to_encrypted_addresses_and_this_machine_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = {url: find_key(Address("m", url))[0] for url in ("https://a/v1", "http://a/v1", "http://127.0.0.1:1/v1")}
    assert found == {"https://a/v1": KEY, "http://a/v1": "", "http://127.0.0.1:1/v1": KEY}
    monkeypatch.setenv("VELOX_EVAL_JUDGE_KEY", "other")
    assert find_key(Address("m", "http://a/v1")) == ("other", "VELOX_EVAL_JUDGE_KEY")
    monkeypatch.setenv("VELOX_EVAL_JUDGE_KEY", f"{KEY}\u00e9")
    with pytest.raises(JudgeError) as caught:
        find_key(Address("m", "http://a/v1"))
    assert KEY not in str(caught.value)
