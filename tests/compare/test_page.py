"""The report as a file: data that cannot leave its place, prompts that are the recorded ones, one script alone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.compare.stored import answer, stored
from velox_eval.cli import app
from velox_eval.compare import compare
from velox_eval.compare.page import render_page, write_page
from velox_eval.compare.page_data import embed, run_facts, utf16_spans
from velox_eval.compare.prompts import find_prompts
from velox_eval.errors import ConfigError
from velox_eval.metrics.repetition import repeated_spans
from velox_eval.records.config import TaskChoice, text_sha256
from velox_eval.records.store import StoredRun
from velox_eval.tasks import TaskOptions, get_task


class Blocks(HTMLParser):
    """What a browser's parser makes of the page: scripts by type and id, and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.data: dict[str, str] = {}
        self.scripts: list[str] = []
        self.policy = ""
        self.addresses: list[str] = []
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if tag == "script":
            self._open = found.get("id") or ""
            if found.get("type") is None:
                self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self._open is None:
            return
        if self._open:
            self.data[self._open] = self.data.get(self._open, "") + data
        else:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._open = None


def render(runs: list[StoredRun]) -> tuple[str, Blocks]:
    page = render_page(compare(runs, resamples=100), {run.header.run_id: run for run in runs})
    blocks = Blocks()
    blocks.feed(page)
    return page, blocks


def two_runs(text: str = "An answer. ") -> list[StoredRun]:
    return [
        stored("full", None, [answer(i, text, 1) for i in range(3)]),
        stored("h2o", 64, [answer(i, text + "more", 0) for i in range(3)]),
    ]


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_embedded_data_reads_back_and_ends_nothing(value: Any) -> None:
    text = embed(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")
    text.encode("utf-8")  # also where a lone surrogate was in it


@given(st.text(alphabet="ab \U0001f600é", max_size=60))
def test_spans_count_as_javascript_does(text: str) -> None:
    units = text.encode("utf-16-le")
    flat = utf16_spans(text)
    pieces = [units[2 * a : 2 * b].decode("utf-16-le") for a, b in zip(flat[::2], flat[1::2], strict=True)]
    assert pieces == [text[start:end] for start, end in repeated_spans(text)]


def test_one_script_runs_and_no_address_is_left() -> None:
    page, blocks = render(two_runs())
    (script,) = blocks.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in blocks.policy
    assert blocks.policy.startswith("default-src 'none'")
    assert [address for address in blocks.addresses if not address.startswith(("#", "data:image/png;base64,"))] == []
    outside = re.findall(r"https?://[^\s\"'<]+", page)
    assert set(outside) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names of namespaces


def test_placeholders_in_data_are_data() -> None:
    _, blocks = render(two_runs("{{script}} {{data}} {{nothing}} "))
    answers = json.loads(blocks.data["answers-0-0"])
    assert answers[0]["text"] == "{{script}} {{data}} {{nothing}} "


def test_the_same_runs_give_the_same_page() -> None:
    assert render(two_runs())[0] == render(two_runs())[0]


def test_each_run_says_how_it_was_made() -> None:
    run = stored("h2o", 64, [], command=["velox-eval", "run", "--set", "a b", "--model", "$(x)"])
    facts = run_facts(run.header)
    assert facts["commands"] == ["velox-eval run --set 'a b' --model '$(x)'"]
    assert facts["facts"]["method"] == "h2o:adapted window=8"
    assert facts["cost"]["decode_tokens"] == 1000


def with_data(run: StoredRun, **changes: Any) -> StoredRun:
    """The run with its task choice and data source changed."""
    source = changes.get("source") or "bundled"
    config = run.header.config.model_copy(update={"task": TaskChoice(name="longgenbench", **changes)})
    data = run.header.data.model_copy(update={"source": source})
    return StoredRun(run.header.model_copy(update={"config": config, "data": data}), run.samples)


def test_a_prompt_is_shown_only_if_it_is_the_recorded_one() -> None:
    task = get_task("longgenbench", TaskOptions(source="bundled", limit=2))
    samples = task.load().samples
    prompts = [task.request(sample).prompt for sample in samples]
    records = [
        answer(0, "x", 1, sample_id=samples[0].sample_id, prompt_sha256=text_sha256(prompts[0])),
        answer(1, "x", 1, sample_id=samples[1].sample_id, prompt_sha256=text_sha256("another")),
        answer(2, "x", 1, sample_id="gone"),
    ]
    found = find_prompts(with_data(stored("full", None, records), source="bundled", limit=2))
    assert found.texts == {samples[0].sample_id: prompts[0]}
    assert found.missing == "2 of 3 prompts are not in the task's data as it is now"


def test_prompts_that_are_not_at_hand_are_said_to_be_missing(tmp_path: Path) -> None:
    run = stored("full", None, [answer(0, "x", 1)])
    assert find_prompts(with_data(run, source="official")).texts == {}
    harness = run.header.config.model_copy(update={"task": TaskChoice(name="lm_eval/x", data=str(tmp_path))})
    found = find_prompts(StoredRun(run.header.model_copy(update={"config": harness}), run.samples))
    assert found == ({}, "tasks of lm-eval are not loaded to show prompts")
    secret = tmp_path / "secret.json"
    secret.write_text("password")
    for path in (tmp_path / "gone.json", secret):
        found = find_prompts(with_data(run, source="data", data=str(path)))
        assert found == ({}, "the task's data (seed 0) is not at hand")


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    runs = two_runs()
    by_id = {run.header.run_id: run for run in runs}
    with pytest.raises(ConfigError, match="cannot write"):
        write_page(tmp_path / "no" / "report.html", compare(runs, resamples=100), by_id)


Invoke = Callable[..., Any]


@pytest.fixture
def invoke(tmp_path: Path, run: Any) -> Invoke:
    """Calls the command line with a folder that holds a run of the full cache and one of morphkv."""
    from tests.compare.conftest import store

    results = tmp_path / "results"
    for method, budget in (("full", None), ("morphkv", 64)):
        store(run([1, 0, 1, 1, 0, 1], method, budget), results)

    def call(*arguments: str) -> Any:
        return CliRunner().invoke(app, [arguments[0], str(results), *arguments[1:]])

    return call


def test_page_writes_the_report(invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "x.html"
    done = invoke("page", "-o", str(output))
    assert done.exit_code == 0, done.output
    assert f"page: {output} (2 rows" in done.stdout
    blocks = Blocks()
    blocks.feed(output.read_text(encoding="utf-8"))
    (section,) = json.loads(blocks.data["summary"])["comparison"]["sections"]
    assert [arm["label"] for arm in section["arms"]] == ["full", "morphkv@64"]


def test_compare_draws_when_asked(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("compare", "--format", "json", "--plots", str(tmp_path / "plots"))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sections"]  # standard output holds the document alone
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"quiz-tiny-score.svg", "quiz-tiny-score.png", "quiz-tiny-kept.svg"} <= names


def test_without_matplotlib_nothing_is_compared_first(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for arguments in (("page",), ("compare", "--plots", "x")):
        done = invoke(*arguments)
        assert isinstance(done.exception, ConfigError)
        assert "pip install 'velox-eval[report]'" in str(done.exception)
