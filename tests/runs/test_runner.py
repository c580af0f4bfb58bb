"""Runs end to end on a tiny random model: records, resume, failures, Ctrl-C, sums."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from velox_eval.errors import DataError, MethodError, ModelError, StoreError
from velox_eval.records.store import RunStore, load_run
from velox_eval.runs.observer import Observer
from velox_eval.runs.rescore import rescore
from velox_eval.runs.runner import run

ROW_BYTES = 2 * 8 * 4 * 2  # KV heads x head dim x float32 x (key and value), a layer
LAYERS = 2


class Watching(Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.notes, self.records, self.steps = [], [], 0

    def note(self, message):
        self.notes.append(message)

    def step(self, progress):
        self.steps += 1

    def recorded(self, record):
        self.records.append(record)


class InterruptAfter(Watching):
    """Presses Ctrl-C once `count` samples are recorded."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def recorded(self, record):
        super().recorded(record)
        if len(self.records) == self.count:
            raise KeyboardInterrupt


def test_every_field_of_every_sample_is_there_and_true(options):
    result = run(options())
    assert (result.state, result.header.status) == ("new", "success")
    assert [record.index for record in result.samples] == [0, 1, 2]
    for record in result.samples:
        missing = {name for name, value in record if value is None}
        unknown = {name for name in missing if "repetition_rate" in name}  # of an answer of few words
        assert missing - unknown == {"error", "teacher_forced", "likelihoods"}
        seen = record.prompt_tokens + record.generated_tokens - 1  # the last token is never fed
        assert record.generated_tokens == 12
        assert (record.finish_reason, record.truncated) == ("length", True)
        assert record.kept_tokens == (32, 32)
        assert record.evicted_tokens == LAYERS * (seen - 32)
        assert record.method_fired is True
        assert record.kept_fraction == pytest.approx(32 / seen)
        assert record.end_cache_bytes == LAYERS * 32 * ROW_BYTES
        assert record.full_cache_bytes == LAYERS * seen * ROW_BYTES
        assert record.peak_cache_bytes > record.end_cache_bytes
        assert record.budget == 32
        assert record.response_sha256 == hashlib.sha256(record.response.encode()).hexdigest()
    assert load_run(result.path).samples == list(result.samples)
    assert load_run(result.path).header == result.header


def test_the_record_says_whether_the_question_was_seen_and_what_the_passes_took(options):
    """U14: a method that compresses whatever will be asked says so."""
    result = run(options(method="kvzip:paper"))
    assert result.header.method.query_aware is False
    assert all(0 < sample.compress_seconds < sample.prefill_seconds for sample in result.samples)
    assert run(options(method="kvzip")).header.method.query_aware is True


def test_the_header_says_what_ran(options):
    header = run(options(batch_size=2, settings={"window": "6"}, command=("velox-eval", "run"))).header
    assert header.config.params == {"n_sink": 4, "window": 6}
    assert header.method.eviction_layers == (0, 1)
    assert (header.method.capacity, header.method.evicts) == ("budget", True)
    assert header.data.source == "data"
    assert header.identity.versions.keys() == {"mlx", "mlx-lm", "velox-eval"}
    assert header.sessions[0].command == ["velox-eval", "run"]
    assert header.sessions[0].batch_sizes == (1, 2)
    cost = header.summary.cost
    assert cost.prefill_tokens == sum(record.prompt_tokens for record in load_run_samples(header, options))
    assert 0 < cost.engine_seconds <= cost.wall_seconds
    assert cost.harness_seconds == pytest.approx(cost.wall_seconds - cost.engine_seconds)
    assert cost.scoring_seconds + cost.store_seconds <= cost.harness_seconds


def load_run_samples(header, options):
    return load_run(options().results / header.run_id).samples


def test_runs_jsonl_line_agrees_with_the_summary(options):
    result = run(options())
    [row] = RunStore(options().results).rows()
    summary = result.header.summary
    assert (row.method, row.variant, row.budget, row.n, row.status) == ("morphkv", "adapted", 32, 3, "success")
    assert (row.accuracy, row.primary, row.peak_cache_bytes) == (
        summary.accuracy,
        "stic_2",
        max(record.peak_cache_bytes for record in result.samples),
    )
    raw = (options().results / "runs.jsonl").read_text()
    assert "NaN" not in raw
    assert json.loads(raw)["run_id"] == result.header.run_id


def test_a_finished_run_is_shown_not_repeated(options):
    first = run(options())
    lines = (first.path / "samples.jsonl").read_bytes()
    watching = Watching()
    shown = run(options(batch_size=3), watching)  # the batch size is no part of what a run is
    assert (shown.state, shown.path, watching.records) == ("finished", first.path, [])
    assert shown.samples == first.samples
    again = run(options(again=True))
    assert (again.state, again.path.name) == ("new", first.path.name[:-1] + "2")
    assert [record.response for record in again.samples] == [record.response for record in first.samples]
    assert (first.path / "samples.jsonl").read_bytes() == lines
    assert len(RunStore(options().results).rows()) == 2


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("done", [1, 2, 3])
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(options, done, batch_size):
    stopped = run(options(batch_size=batch_size), InterruptAfter(done))
    assert stopped.header.status == "cancelled"
    assert len(stopped.samples) == done
    assert stopped.header.summary.n == done
    watching = Watching()
    resumed = run(options(batch_size=batch_size), watching)
    assert (resumed.state, resumed.header.status) == ("resumed", "success")
    assert len(watching.records) == 3 - done
    assert [record.index for record in resumed.samples] == [0, 1, 2]
    assert [session.samples for session in resumed.header.sessions] == [done, 3 - done]
    fresh = run(options(again=True))
    assert [r.response_sha256 for r in fresh.samples] == [r.response_sha256 for r in resumed.samples]


def test_an_interrupted_run_leaves_the_model_as_it_was(options):
    """The attention tap must be gone whatever ended the run."""
    from mlx_lm.models import llama

    before = llama.scaled_dot_product_attention
    run(options(), InterruptAfter(1))
    assert llama.scaled_dot_product_attention is before


def test_a_failed_sample_is_recorded_and_counts_as_missed(options, data_file):
    path = str(data_file(4, too_long=(1,)))
    watching = Watching()
    result = run(options(data=path), watching)
    assert result.header.status == "error"
    assert result.header.error == "1 of 4 samples failed (allowed share: 0)"
    [failed] = [record for record in result.samples if record.status == "error"]
    assert failed.index == 1
    assert "leave no room in the model's context of 4096" in failed.error
    assert failed.response is None
    summary = result.header.summary
    assert (summary.n, summary.n_ok, summary.n_error) == (4, 3, 1)
    asked = sum(record.scores["stic_2"].den for record in result.samples)
    right = sum(record.scores["stic_2"].num for record in result.samples)
    assert asked == 16  # the failed sample's four checks count
    assert summary.accuracy == right / asked
    assert summary.accuracy_scored == right / 12
    [row] = RunStore(options().results).rows()
    assert (row.status, row.n_error) == ("error", 1)


def test_failed_samples_run_again_and_a_share_may_be_allowed(options, data_file):
    path = str(data_file(4, too_long=(1,)))
    run(options(data=path))
    watching = Watching()
    retried = run(options(data=path, max_error_share=0.25), watching)
    assert [record.index for record in watching.records] == [1]
    assert (retried.state, retried.header.status) == ("resumed", "success")
    assert len(RunStore(options().results).rows()) == 1
    assert run(options(data=path)).state == "finished"


def test_full_says_that_a_budget_has_no_effect_and_never_fires(options):
    watching = Watching()
    result = run(options(method="full"), watching)
    assert watching.notes == ["full keeps every row: budget=32 has no effect"]
    assert result.header.summary.n_not_fired is None
    assert all(r.end_cache_bytes == r.full_cache_bytes for r in result.samples)


def test_a_budget_that_is_never_reached_is_counted(options):
    summary = run(options(budget=4000)).header.summary
    assert (summary.n_not_fired, summary.kept_fraction) == (3, 1.0)


def test_kept_fraction_is_measured_not_configured(options):
    """--keep asks for half of prompt + limit; the answer's rows held over the tokens seen is what is recorded."""
    for record in run(options(budget=None, keep=0.5)).samples:
        assert record.budget == (record.prompt_tokens + 12) // 2
        assert record.kept_fraction == pytest.approx(record.budget / (record.prompt_tokens + 11))


@pytest.mark.parametrize(
    ("bad", "error"),
    [({"model": "/no/such/model"}, ModelError), ({"data": "/no/such/data.json"}, DataError)],
)
def test_nothing_is_written_when_it_cannot_start(options, bad, error):
    with pytest.raises(error):
        run(options(**bad))
    assert not options().results.exists()


def test_offline_and_moved_data_is_the_same_run(options, data_file, monkeypatch):
    """Local files count by content: another path gives the same ids, the same hash and the stored run."""
    import socket

    def no_network(*_args, **_kwargs):
        raise AssertionError("network")

    monkeypatch.setattr(socket, "socket", no_network)
    first = run(options())
    moved = run(options(data=str(data_file(name="moved.json"))))
    assert (moved.state, moved.path) == ("finished", first.path)


def test_rescoring_gives_a_new_run_and_keeps_the_old(options, data_file):
    path = data_file(4, too_long=(2,))
    old = run(options(data=str(path)))
    before = {file.name: file.read_bytes() for file in old.path.iterdir() if file.is_file()}
    new = rescore(old.path, results=options().results)
    assert new.path != old.path
    assert new.header.identity.rescored_from == old.path.name
    assert new.header.config_hash != old.header.config_hash
    assert [r.scores for r in new.samples] == [r.scores for r in old.samples]
    assert [r.response for r in new.samples] == [r.response for r in old.samples]
    assert new.header.status == "error"  # a sample without an answer stays failed
    for name in ("decode_tokens_per_second", "peak_cache_bytes", "accuracy", "n_error"):
        assert getattr(new.header.summary, name) == getattr(old.header.summary, name)
    assert {file.name: file.read_bytes() for file in old.path.iterdir() if file.is_file()} == before


def test_rescoring_twice_shows_the_first_result(options):
    old = run(options())
    first = rescore(old.path, results=options().results)
    assert rescore(old.path, results=options().results).state == "finished"
    assert rescore(old.path, results=options().results, again=True).path != first.path


def test_rescoring_refuses_other_data_and_finds_moved_data(options, data_file):
    path = data_file(3)
    old = run(options(data=str(path)))
    moved = path.rename(path.with_name("moved.json"))
    with pytest.raises(DataError, match=r"data\.json"):
        rescore(old.path, results=options().results)
    assert rescore(old.path, results=options().results, data=str(moved)).header.status == "success"
    other = data_file(4, name="other.json")
    with pytest.raises(DataError, match="give that data with --data"):
        rescore(old.path, results=options().results, data=str(other))


def test_rescoring_waits_for_the_run_to_be_finished(options):
    stopped = run(options(), InterruptAfter(1))
    with pytest.raises(StoreError, match="has 1 of 3 samples; finish it before scoring it"):
        rescore(stopped.path, results=options().results)


def test_scores_follow_the_recorded_answer(options):
    """What is scored is the record: a hand-written answer of two right entries scores two of four checks."""
    old = run(options())
    file = old.path / "samples.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["response"] = " There is a gym on this floor.\n#*# Floor 2: This floor has a pool."
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    new = rescore(old.path, results=options().results)
    assert new.samples[0].accuracy == 0.5
    assert new.samples[0].scores["stic_1"].value == 1.0


def test_a_store_with_foreign_samples_is_refused(options):
    stopped = run(options(), InterruptAfter(1))
    file = stopped.path / "samples.jsonl"
    file.write_text(file.read_text().replace(stopped.samples[0].sample_id, "stranger"))
    with pytest.raises(StoreError, match="not in the task: stranger"):
        run(options())


def test_a_method_that_cannot_run_on_the_model_writes_nothing(options, tmp_path, tiny_model_dir):
    """A model whose every layer has a sliding window has no layer to evict from."""
    import shutil

    folder = tmp_path / "windowed"
    shutil.copytree(tiny_model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"layer_types": ["sliding_attention", "sliding_attention"], "sliding_window": 16}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises((MethodError, ModelError)):
        run(dataclasses.replace(options(), model=str(folder)))
    assert not options().results.exists()
