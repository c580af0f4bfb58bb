"""Ratings in a reply (U25): six whole numbers from 1 to 5 in one JSON object, or nothing."""

from __future__ import annotations

import json

import pytest

from velox_eval.judges import DIMENSIONS, parse_ratings

FOURS = dict.fromkeys(DIMENSIONS, 4)


def test_the_six_dimensions_are_the_benchmarks():
    assert DIMENSIONS == ("Relevance", "Accuracy", "Coherence", "Clarity", "Breadth and Depth", "Reading Experience")


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "```\n{}```", "My grades: {} as asked.", "{ not json } {}"])
def test_one_object_is_found_wherever_it_stands(form):
    assert parse_ratings(form.replace("{}", json.dumps(FOURS))).values == FOURS


def test_other_names_beside_the_six_do_no_harm():
    assert parse_ratings(json.dumps({"Reason": {"Clarity": 1}, **FOURS})).values == FOURS


@pytest.mark.parametrize("points", [7, 0, -1, 6, 10**400, 4.0, 4.5, "4", True, None, [4], float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["Relevance", "Reading Experience"])
def test_anything_but_a_whole_number_from_1_to_5_is_unreadable(name, points):
    ratings = parse_ratings(json.dumps(FOURS | {name: points}))
    assert ratings.values is None
    assert ratings.reason


@pytest.mark.parametrize("name", DIMENSIONS)
def test_a_missing_dimension_is_unreadable_and_named(name):
    ratings = parse_ratings(json.dumps({key: 4 for key in DIMENSIONS if key != name}))
    assert (ratings.values, ratings.reason) == (None, f"the reply lacks {name}")


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "7",
        "Relevance: 5",
        "[4, 4, 4, 4, 4, 4]",
        json.dumps(FOURS)[:-1],
        f"{json.dumps(FOURS)} or rather {json.dumps(FOURS)}",
        json.dumps(FOURS).replace('"Clarity"', '"Relevance"'),
        json.dumps({"scores": FOURS}),
        "{" * 20_000,
        '{"a":' * 4_000,
        "\ud800{}",
    ],
)
def test_everything_else_is_unreadable(reply):
    ratings = parse_ratings(reply)
    assert ratings.values is None
    ratings.reason.encode()
    assert len(ratings.reason) < 200
