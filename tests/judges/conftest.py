"""A real server that judges, and no key of the machine's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.judges.server import DrippingServer, JudgeServer


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "VELOX_EVAL_JUDGE_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with contextlib.closing(JudgeServer()) as made:
        yield made


@pytest.fixture
def dripping() -> Iterator[DrippingServer]:
    with contextlib.closing(DrippingServer()) as made:
        yield made
