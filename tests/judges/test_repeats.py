"""A judge asked several times: what decides, and what is told of its disagreement with itself."""

from __future__ import annotations

import json

import pytest

from tests.judges.server import words
from velox_eval.errors import ConfigError
from velox_eval.judges import DIMENSIONS, Limits, ReplyCache, get_judge


def panel(server, folder, repeats):
    return get_judge(server.judge, repeats=repeats, replies=ReplyCache(folder), limits=Limits(concurrency=1))


def in_turn(*replies):
    return lambda prompt, number: words(replies[number])


def test_the_majority_decides_and_pairs_are_counted(server, tmp_path):
    server.say = in_turn("yes", "no", "yes", "yes", "no", "yes")  # two questions, three times
    judge = panel(server, tmp_path, 3).for_answer()
    verdicts = judge.contains_all([("p", "d"), ("q", "d")])
    assert [verdict.yes for verdict in verdicts] == [True, True]
    notes = judge.notes()
    assert (notes["repeats"], notes["questions"]) == (3, 2)
    # p: yes yes no -> 2 of 3 pairs differ; q: no yes yes -> 2 of 3
    assert (notes["pairs"], notes["differing"], notes["unreadable"]) == (6, 4, 0)
    assert judge.for_answer().notes()["pairs"] == 0


@pytest.mark.parametrize(
    ("replies", "yes", "reason"),
    [
        (("yes", "no"), None, "1 of 2 replies say yes, 1 no"),
        (("hm", "no"), False, ""),
        (("hm", "yes", "no", "yes"), True, ""),
        (("hm", "so"), None, "the reply starts with neither yes nor no: 'hm'"),
    ],
)
def test_ties_and_unreadable_replies(server, tmp_path, replies, yes, reason):
    server.say = in_turn(*replies)
    judge = panel(server, tmp_path, len(replies))
    verdict = judge.contains("p", "d")
    assert (verdict.yes, verdict.reason) == (yes, reason)
    assert judge.notes()["unreadable"] == sum(reply in ("hm", "so") for reply in replies)


def test_the_mean_decides_a_rating(server, tmp_path):
    points = [dict.fromkeys(DIMENSIONS, value) for value in (2, 3, 5)]
    server.say = in_turn(*(json.dumps(item) for item in points), "7")
    judge = panel(server, tmp_path, 4)
    assert judge.rates
    assert judge.rate("i", "r").values == pytest.approx(dict.fromkeys(DIMENSIONS, 10 / 3))
    notes = judge.notes()
    assert (notes["pairs"], notes["differing"], notes["unreadable"]) == (18, 18, 1)
    assert notes["squares"] / notes["spreads"] == pytest.approx(7 / 3)  # variance of 2, 3, 5
    assert notes["ratings"][0][:3] == points
    assert "no JSON object" in notes["ratings"][0][3]
    json.dumps(notes, allow_nan=False)


def test_more_repeats_go_on_from_what_was_asked(server, tmp_path):
    server.say = lambda prompt, number: words("yes")
    get_judge(server.judge, replies=ReplyCache(tmp_path)).contains("p", "d")
    panel(server, tmp_path, 3).contains("p", "d")
    assert len(server.asked) == 3
    panel(server, tmp_path, 3).contains("p", "d")
    assert len(server.asked) == 3


def test_the_number_is_part_of_the_id_and_one_is_no_panel(server, tmp_path):
    assert panel(server, tmp_path, 1).id == server.id
    assert panel(server, tmp_path, 3).id == f"{server.id} x3"
    assert get_judge("rules").notes() == {}
    with pytest.raises(ConfigError, match="judge_repeats=0 must be at least 1"):
        get_judge("rules", repeats=0)


def test_rules_never_disagree_and_do_not_rate():
    judge = get_judge("rules", repeats=3)
    assert judge.contains("Floor 1: a gym.", "a gym").yes is True
    assert (judge.notes()["pairs"], judge.notes()["differing"]) == (3, 0)
    assert not judge.rates
