"""Replies kept by the content judged: one verdict for identical answers, also between processes and judges."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.judges.server import words
from velox_eval.errors import StoreError
from velox_eval.judges import Limits, ReplyCache, get_judge


def judge_at(server, folder, **options):
    return get_judge(server.judge, replies=ReplyCache(folder), limits=Limits(retries=0), **options)


def test_identical_answers_get_one_verdict(server, tmp_path):
    server.say = lambda prompt, number: words("no" if number else "yes")
    first = judge_at(server, tmp_path).contains_all([("p", "d"), ("p", "d"), ("q", "d")])
    assert sorted(verdict.yes for verdict in first[1:]) == [False, True]
    assert first[0] == first[1]
    assert len(server.asked) == 2
    server.say = lambda prompt, number: words("never asked")
    assert judge_at(server, tmp_path).contains_all([("q", "d"), ("p", "d")]) == [first[2], first[0]]
    assert len(server.asked) == 2


def test_texts_kind_and_judge_are_told_apart(server, tmp_path):
    server.say = lambda prompt, number: words("yes")
    judge = judge_at(server, tmp_path)
    judge.contains("p", "d")
    judge.contains("d", "p")
    judge.rate("p", "d")
    other = get_judge(server.judge.replace(":m@", ":m2@"), replies=ReplyCache(tmp_path))
    other.contains("p", "d")
    assert len(server.asked) == 4


def test_an_unreadable_reply_stays_what_it_was(server, tmp_path):
    server.say = lambda prompt, number: words("hm" if number == 0 else "yes")
    first = judge_at(server, tmp_path).contains("p", "d")
    assert first.yes is None
    assert judge_at(server, tmp_path).contains("p", "d") == first


def test_two_processes_agree_on_who_was_first(tmp_path):
    code = (
        "import sys; from pathlib import Path; from velox_eval.judges import ReplyCache; "
        "cache = ReplyCache(Path(sys.argv[1])); "
        "print([cache.settle(str(key), 'j', 'k', sys.argv[2]) for key in range(60)])"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    said = [worker.communicate(timeout=60)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    assert said[0] == said[1]
    assert [ReplyCache(tmp_path).get(str(key)) for key in range(60)] == eval(said[0])


def test_a_file_that_is_no_store_is_one_line(tmp_path):
    (tmp_path / "replies.sqlite3").write_text("not a database, but long enough to be looked at as one" * 20)
    with pytest.raises(StoreError, match=r"cannot use the judge's replies in .*name another folder"):
        ReplyCache(tmp_path).get("k")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use the judge's replies"):
        ReplyCache(tmp_path / "file").settle("k", "j", "k", "r")
