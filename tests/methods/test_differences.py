"""Every entry of the closed list shows itself on its stream, and only its methods are on it."""

from __future__ import annotations

import importlib

import pytest

from .differences import DIFFERENCES, SESSION_DIFFERENCES, Difference, SessionDifference
from .installed import installed_cache, installed_positions
from .streams import feed, kept, new_cache, split


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.id)
def test_the_difference_shows(difference: Difference) -> None:
    case, data = difference.case, difference.data
    tokens, dim = data.keys.shape[2:]
    ours = new_cache(case.method, case.params, case.budget, layer=difference.layer)
    theirs = installed_cache(case, dim)
    for cache in (ours, theirs):
        feed(cache, data, split(tokens, difference.chunk))
    mine, other = kept(ours), installed_positions(case, theirs, data)
    assert mine.shape != other.shape or (mine != other).any()
    assert difference.reason


def test_a_sequence_keeps_the_same_rows_anywhere_in_a_batch() -> None:
    difference = DIFFERENCES[0]
    ours = new_cache(difference.case.method, difference.case.params, difference.case.budget)
    feed(ours, difference.data, [1] * difference.data.keys.shape[2])
    mine = kept(ours)
    assert (mine[0] == mine[1]).all()


@pytest.mark.parametrize("difference", SESSION_DIFFERENCES, ids=lambda difference: difference.what)
def test_a_difference_of_sessions_has_a_test_that_shows_it(difference: SessionDifference) -> None:
    file, function = difference.test.split("::")
    assert callable(getattr(importlib.import_module(f"tests.methods.{file}"), function))
    assert difference.reason
