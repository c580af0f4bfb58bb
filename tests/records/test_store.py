"""Run folders: resume, refuse, repair; nothing lost and nothing twice, whatever kills the process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from velox_eval.errors import StoreError
from velox_eval.records.store import RunStore, find_run, load_run

WORKER = [sys.executable, str(Path(__file__).with_name("worker.py"))]


@pytest.fixture
def opened(tmp_path, header):
    """Opens the one run of the tests; every folder opened is closed at the end."""
    folders = []

    def open_run(**options):
        folder = RunStore(tmp_path).open(header().config_hash, header, **options)
        folders.append(folder)
        return folder

    yield open_run
    for folder in folders:
        folder.close()


def finish(folder):
    folder.update(folder.header.model_copy(update={"status": "success"}))
    folder.close()


def test_a_new_run_is_named_by_its_hash(opened, header, tmp_path):
    folder = opened()
    assert folder.state == "new"
    assert folder.path == tmp_path / f"{header().config_hash[:12]}-1"
    assert load_run(folder.path).header == header(folder.path.name)


def test_an_unfinished_run_resumes_with_what_is_done(opened, record):
    first = opened()
    first.append(record(2))
    first.append(record(0))
    first.close()
    again = opened()
    assert again.state == "resumed"
    assert again.path == first.path
    assert again.done == {"s0", "s2"}
    again.append(record(1))
    assert [r.sample_id for r in load_run(again.path).samples] == ["s0", "s1", "s2"]


@pytest.mark.parametrize("status", ["started", "cancelled", "error"])
def test_every_status_but_success_resumes(opened, record, status):
    first = opened()
    first.update(first.header.model_copy(update={"status": status}))
    first.close()
    assert opened().state == "resumed"


def test_failed_samples_run_again_on_resume(opened, record):
    first = opened()
    first.append(record(0))
    first.append(record(1, status="error", error="out of luck"))
    first.close()
    again = opened()
    assert again.done == {"s0"}
    again.append(record(1))
    assert [r.status for r in load_run(again.path).samples] == ["ok", "ok"]


def test_a_finished_run_is_shown_and_again_starts_anew(opened, record):
    first = opened()
    first.append(record(0))
    finish(first)
    shown = opened()
    assert (shown.state, shown.path, shown.done) == ("finished", first.path, {"s0"})
    with pytest.raises(StoreError, match="not open for writing"):
        shown.append(record(1))
    second = opened(again=True)
    assert (second.state, second.path.name[-2:]) == ("new", "-2")
    second.append(record(0))
    second.close()
    assert opened().path == second.path  # the latest one counts


@pytest.mark.parametrize("left", [0, 1])
def test_a_finished_run_that_lost_samples_is_refused_and_made_whole_by_its_command(opened, record, summary, left):
    first = opened()
    first.append(record(0))
    first.append(record(1))
    whole = {"status": "success", "finished_at": datetime.now(UTC), "summary": summary(n=2, n_ok=2, n_error=0)}
    first.update(first.header.model_copy(update=whole))
    first.close()
    path = first.path / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20] if left else "")
    with pytest.raises(StoreError, match=rf"samples.jsonl has lost {2 - left} of the 2 samples of a finished run"):
        load_run(first.path)
    again = opened()
    assert (again.state, again.path, len(again.done)) == ("resumed", first.path, left)
    for index in range(left, 2):
        again.append(record(index))
    again.update(again.header.model_copy(update=whole))
    again.close()
    assert len(load_run(first.path).samples) == 2
    assert opened().state == "finished"


def test_a_sample_cannot_be_recorded_twice(opened, record):
    folder = opened()
    folder.append(record(0))
    with pytest.raises(StoreError, match="'s0' is already recorded"):
        folder.append(record(0))


def test_another_run_with_the_same_first_digits_is_left_alone(opened, header, tmp_path):
    digits = header().config_hash[:12]
    RunStore(tmp_path).open(digits + "0" * 52, lambda run_id: header(run_id, config_hash=digits + "0" * 52)).close()
    assert opened().path.name == f"{digits}-2"


@pytest.mark.parametrize("cut", [1, 5, 200, "newline only", "utf-8"])
def test_a_half_written_last_line_is_repaired_and_said(opened, record, cut):
    folder = opened()
    folder.append(record(0))
    folder.append(record(1, response="é" * 300))
    folder.close()
    path = folder.path / "samples.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    if cut == "newline only":
        kept = len(whole) - 1
    elif cut == "utf-8":
        kept = whole.rindex("é".encode()) + 1  # between the two bytes of one character
    else:
        kept = first + cut
    path.write_bytes(whole[:kept])
    assert [r.index for r in load_run(folder.path).samples] == ([0, 1] if cut == "newline only" else [0])
    assert path.read_bytes() == whole[:kept]  # reading repairs nothing
    again = opened()
    if cut == "newline only":  # the record is whole: it stays, and the next one gets its own line
        assert (again.done, again.repaired) == ({"s0", "s1"}, None)
        again.append(record(2))
    else:
        assert again.done == {"s0"}
        assert f"removed a half-written last line ({kept - first} bytes)" in again.repaired
        again.append(record(1))
        again.append(record(2))
    assert [r.index for r in load_run(folder.path).samples] == [0, 1, 2]


@pytest.mark.parametrize("bad", ["{oops", "", "[1]", "null", '{"sample_id": NaN}'])
def test_a_corrupt_line_in_the_middle_names_file_and_line(opened, record, bad):
    folder = opened()
    for index in range(3):
        folder.append(record(index))
    folder.close()
    path = folder.path / "samples.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], bad, lines[2]]) + "\n")
    for read in (lambda: load_run(folder.path), opened):
        with pytest.raises(StoreError, match=r"samples\.jsonl:2: "):
            read()
    assert len(path.read_text().splitlines()) == 3


def test_a_record_of_another_shape_names_line_and_field(opened, record):
    folder = opened()
    folder.append(record(0))
    folder.close()
    path = folder.path / "samples.jsonl"
    row = json.loads(path.read_text())
    path.write_text(path.read_text() + json.dumps(row | {"sample_id": "s1", "index": "one"}) + "\n")
    with pytest.raises(StoreError, match=r"samples\.jsonl:2: index: "):
        load_run(folder.path)
    path.write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(StoreError, match=r"samples\.jsonl:2: sample 's0' is already on line 1"):
        load_run(folder.path)


def test_a_broken_or_foreign_header_is_an_error(opened):
    folder = opened()
    folder.close()
    path = folder.path / "run.json"
    good = path.read_text()
    path.write_text(good[:-40])
    with pytest.raises(StoreError, match=r"run\.json is not JSON"):
        load_run(folder.path)
    path.write_text(good.replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(StoreError, match="schema version 99; this velox-eval reads 1"):
        load_run(folder.path)
    path.unlink()
    with pytest.raises(StoreError, match=r"cannot read .*run\.json"):
        load_run(folder.path)
    assert opened().path == folder.path  # an empty folder is what a process killed at the start leaves


def test_a_second_process_is_refused_and_told_who_works(opened, tmp_path):
    folder = opened()
    result = subprocess.run([*WORKER, tmp_path, "1", "0"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f"run {folder.path} is being worked on by process {os.getpid()};" in result.stderr
    folder.close()
    result = subprocess.run([*WORKER, tmp_path, "1", "0"], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["resumed", "0", "0"]


def test_runs_jsonl_has_one_line_a_run(opened, header, tmp_path, summary):
    folder = opened()
    done = folder.header.model_copy(
        update={"status": "error", "summary": summary(), "finished_at": datetime(2026, 1, 3, tzinfo=UTC)}
    )
    folder.update(done)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"run_id": "half')
    folder.update(done.model_copy(update={"status": "success"}))
    rows = RunStore(tmp_path).rows()
    assert [(row.run_id, row.status, row.accuracy) for row in rows] == [(folder.path.name, "success", 0.8)]
    finish(opened(again=True))
    assert len(RunStore(tmp_path).rows()) == 1  # a run that attempted nothing has no line


def test_a_damaged_runs_jsonl_is_refused_before_any_work(opened, record, tmp_path):
    index = tmp_path / "runs.jsonl"
    index.write_text('{"run_id": "one"}\nhalf a row\n{"run_id": "three"}\n')
    before = index.read_bytes()
    with pytest.raises(StoreError, match=r"runs\.jsonl:2: not a JSON object .*; repair or remove that line"):
        opened()
    assert sorted(tmp_path.iterdir()) == [index]
    assert index.read_bytes() == before
    index.write_text('{"run_id": "one"}\n{"run_id": "three"}\n')
    assert opened().state == "new"


def test_check_writes_nothing_and_says_what_is_in_the_way(tmp_path):
    RunStore(tmp_path / "deep" / "results").check()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot use the results folder .*: .*file is a file"):
        RunStore(tmp_path / "file" / "results").check()
    (tmp_path / "results" / "runs.jsonl").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot read .*runs\.jsonl: Is a directory"):
        RunStore(tmp_path / "results").check()


def test_find_run(opened, tmp_path):
    one = opened(again=True)
    assert find_run(str(one.path), tmp_path) == find_run(one.path.name, tmp_path) == one.path
    assert find_run(one.path.name[:6], tmp_path) == one.path
    opened(again=True)
    with pytest.raises(StoreError, match="is not unique"):
        find_run(one.path.name[:6], tmp_path)
    with pytest.raises(StoreError, match=f"no run 'zzz' under .*known: {one.path.name}"):
        find_run("zzz", tmp_path)


def test_a_results_folder_that_cannot_be_one(tmp_path, header):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot use the results folder"):
        RunStore(tmp_path / "file").open(header().config_hash, header)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_any_moment_nothing_is_lost_or_twice(tmp_path, header, kill):
    """A process that is killed again and again still records every sample once, and loses at most one a kill."""
    samples, chance = 60, random.Random(7)
    seen = 0
    for _ in range(12):
        process = subprocess.Popen(
            [*WORKER, tmp_path, str(samples), "0.002"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        state = process.stdout.readline().split()
        if not state or state[0] == "finished":
            process.communicate(timeout=30)
            break
        assert int(state[1]) >= seen  # what it said it had recorded is there
        time.sleep(chance.uniform(0, 0.06))
        process.send_signal(kill)
        out, _err = process.communicate(timeout=30)
        seen = int(state[1]) + len(out.split())
    subprocess.run([*WORKER, tmp_path, str(samples), "0"], check=True, capture_output=True)
    runs = [p for p in tmp_path.iterdir() if p.is_dir()]
    assert [p.name for p in runs] == [f"{header().config_hash[:12]}-1"]
    lines = (runs[0] / "samples.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["index"] for line in lines) == list(range(samples))
    assert load_run(runs[0]).header.status == "success"
