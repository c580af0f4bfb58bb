"""`velox-eval lm-eval`: lm-eval's own command line, its files with our costs in them, our runs; caches kept apart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velox_eval.errors import ConfigError, ModelError, StoreError
from velox_eval.records.store import RunStore, load_run
from velox_eval.runs.plan import RunOptions
from velox_eval.runs.rescore import rescore
from velox_eval.runs.runner import run

TASKS = ("tiny_gen", "tiny_mc", "tiny_roll")


@pytest.fixture
def launch(tiny_model_dir: Path, yaml_tasks: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs lm-eval's command line in this process, on the local tasks alone; its own index takes seconds to build."""
    import lm_eval.tasks

    from velox_eval.lm_eval_backend.launcher import launch as start

    def call(*arguments: str, method: str = "morphkv,budget=16", tasks: str = ",".join(TASKS)) -> Any:
        plain = lm_eval.tasks.TaskManager.__init__
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                lm_eval.tasks.TaskManager, "__init__", lambda self, **how: plain(self, include_defaults=False, **how)
            )
            model = ["--model_args", f"pretrained={tiny_model_dir},method={method}"]
            where = ["--include_path", str(yaml_tasks), "--tasks", tasks, "--output_path", str(tmp_path / "out")]
            return start([*model, *where, *arguments], results=tmp_path / "results")

    return call


def logged(tmp_path: Path, task: str) -> list[dict[str, Any]]:
    [path] = (tmp_path / "out").glob(f"*/samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_task_leaves_lm_evals_files_and_a_run_of_ours(
    launch: Callable[..., Any], tmp_path: Path, tiny_model_dir: Path, yaml_tasks: Path
) -> None:
    runs = launch("--log_samples", "--batch_size", "4")
    assert [found.header.config.task.name for found in runs] == [f"lm_eval/{task}" for task in TASKS]
    [path] = (tmp_path / "out").glob("*/results_*.json")
    results = json.loads(path.read_text())
    assert results["config"]["method"] == "morphkv"
    assert results["config"]["budget"] == 16
    for task, found in zip(TASKS, runs, strict=True):
        stored = load_run(found.path)
        theirs = logged(tmp_path, task)
        assert len(theirs) == len(stored.samples)
        for line, record in zip(theirs, stored.samples, strict=True):
            assert line["velox"]["peak_cache_bytes"] == record.peak_cache_bytes > 0
            assert line["velox"]["evicted_tokens"] == record.evicted_tokens
            assert line["velox"]["prefill_seconds"] == record.prefill_seconds
        assert any(record.method_fired for record in stored.samples)
        summary, scores = found.header.summary, results["results"][task]
        values = {**{name: score.value for name, score in summary.scores.items()}, **summary.derived}
        for name, value in scores.items():
            metric, comma, _ = name.partition(",")
            if comma and "stderr" not in metric:
                assert values[metric] == pytest.approx(value)
        assert found.header.data.source == "data"
    rows = RunStore(tmp_path / "results").rows()
    assert [row.task for row in rows] == [f"lm_eval/{task}" for task in TASKS]
    assert all(row.primary_value is not None and row.peak_cache_bytes for row in rows)

    for task, found in zip(TASKS, runs, strict=True):  # our own runner on the same task is the same run
        options = RunOptions(
            task=f"lm_eval/{task}",
            data=str(yaml_tasks),
            model=str(tiny_model_dir),
            method="morphkv",
            budget=16,
            results=tmp_path / "ours",
        )
        ours = run(options)
        assert ours.header.config_hash == found.header.config_hash
        for one, other in zip(ours.samples, found.samples, strict=True):
            assert one.response == other.response
            assert one.scores.keys() == other.scores.keys()
            for name, score in one.scores.items():
                assert score.num == pytest.approx(other.scores[name].num, abs=1e-3)


def test_two_budgets_on_one_cache_path_never_share_answers(launch: Callable[..., Any], tmp_path: Path) -> None:
    cache = str(tmp_path / "cache" / "answers")
    first = launch("--use_cache", cache, tasks="tiny_gen")
    other = launch("--use_cache", cache, method="morphkv,budget=20", tasks="tiny_gen")
    assert len(list((tmp_path / "cache").glob("*.db"))) == 2
    assert [s.budget for s in first[0].samples] == [16] * 5
    assert [s.budget for s in other[0].samples] == [20] * 5
    again = launch("--use_cache", cache, tasks="tiny_gen")  # answers and costs come from the cache
    assert again[0].header.config_hash == first[0].header.config_hash
    assert [s.decode_seconds for s in again[0].samples] == [s.decode_seconds for s in first[0].samples]
    assert again[0].header.summary.cost.decode_tokens == 0


def test_a_shared_cache_is_refused_by_the_model_itself(
    velox_lm: Callable[..., Any], instance: Callable[..., Any], tmp_path: Path
) -> None:
    from lm_eval.api.model import CachingLM

    path = str(tmp_path / "shared.db")
    request = instance("abc", {"until": [], "max_gen_toks": 4})
    cached = CachingLM(velox_lm(), path)
    [answer] = cached.generate_until([request])
    assert CachingLM(velox_lm(batch_size=4), path).generate_until([request]) == [answer]
    with pytest.raises(ConfigError, match=r"another configuration \(.*budget=32; now .*budget=33\)"):
        CachingLM(velox_lm(budget=33), path)
    foreign = str(tmp_path / "foreign.db")
    from sqlitedict import SqliteDict

    with SqliteDict(foreign, autocommit=True) as table:
        table["some key"] = "an answer of another backend"
    with pytest.raises(ConfigError, match="another model or backend"):
        CachingLM(velox_lm(), foreign)


@pytest.mark.parametrize(
    ("arguments", "tasks", "message"),
    [
        ((), "nope", "Tasks not found: nope .*ls tasks lists them"),
        (("--limit", "0"), "tiny_gen", "--limit 0 must be above 0"),
        (("--limit", "nan"), "tiny_gen", "--limit nan must be above 0"),
        (("--limit", "inf"), "tiny_gen", "--limit inf must be above 0"),
        (("--model", "hf"), "tiny_gen", "needs the package 'torch'"),
        (("--model", "no-such-model"), "tiny_gen", "cannot begin .*no-such-model"),
        (("--gen_kwargs", "{"), "tiny_gen", "cannot begin .*Invalid JSON"),
        (("--config", "no-such.yaml"), "tiny_gen", "cannot begin .*no-such.yaml"),
        (("--config", __file__), "tiny_gen", "cannot begin .*test_launcher.py"),
        (("--use_cache", "/dev/null/answers"), "tiny_gen", "cannot begin .*/dev/null"),
        ((), "", "cannot begin .*No tasks specified"),
    ],
)
def test_what_lm_eval_cannot_run_is_one_line(
    launch: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], tasks: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(*arguments, tasks=tasks)
    assert not (tmp_path / "results").exists()


def test_what_could_not_be_written_at_the_end_is_refused_before_the_model_is_loaded(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write into .*out: .*out is a file"):
        launch("--log_samples", method="no such method")
    (tmp_path / "out").unlink()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "runs.jsonl").write_text("half a row\n")
    with pytest.raises(StoreError, match=r"runs\.jsonl:1: not a JSON object"):
        launch(method="no such method")


def test_what_was_answered_before_a_failure_is_not_asked_again(
    velox_lm: Callable[..., Any], instance: Callable[..., Any], tmp_path: Path
) -> None:
    from lm_eval.api.model import CachingLM

    path = str(tmp_path / "cache.db")
    how = {"until": [], "max_gen_toks": 4}
    requests = [instance(f"prompt {i}", how, doc=i, task="t") for i in range(4)]
    bad = instance("bad", {**how, "max_gen_toks": 5000}, doc=9, task="t")
    first = velox_lm()
    with pytest.raises(ModelError, match="request 2 "):
        CachingLM(first, path).generate_until([*requests[:2], bad, *requests[2:]])
    second = velox_lm()
    answers = CachingLM(second, path).generate_until(requests)
    assert second.answers.reports == {}  # nothing ran
    for request, answer in zip(requests, answers, strict=True):
        found = second.answers.find("generate_until", [request.args])
        assert found == first.answers.find("generate_until", [request.args])
        assert found.text == answer
    pairs = [instance("abc", " d", doc=0, task="m"), instance("abc", " ef", doc=0, task="m", idx=1)]
    scores = CachingLM(second, path).loglikelihood(pairs)
    third = velox_lm()
    assert [tuple(score) for score in CachingLM(third, path).loglikelihood(pairs)] == scores
    assert third.answers.find("loglikelihood", [pair.args for pair in pairs]).logprobs == tuple(s for s, _ in scores)


def test_lm_evals_own_function_takes_the_model(velox_lm: Callable[..., Any]) -> None:
    import datasets
    from lm_eval import simple_evaluate

    rows = [{"q": f"Say {i}.", "a": "yes"} for i in range(3)]
    config = {
        "task": "inline",
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
        "dataset_path": "",
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{a}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "description": "You are terse.",
    }
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        model=velox_lm(),
        tasks=[config],
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=True,
        system_instruction="Answer.",
        bootstrap_iters=0,
    )
    assert found is not None
    assert found["results"]["inline"]["exact_match,none"] == 0
    assert found["config"]["method"] == "morphkv"
    prompt = found["samples"]["inline"][0]["arguments"][0][0]
    assert prompt == "system: Answer.\n\nYou are terse.\nuser: Say 0.\nassistant:"


def test_runs_of_lm_eval_can_be_scored_again(launch: Callable[..., Any], tmp_path: Path, yaml_tasks: Path) -> None:
    for found in launch(tasks="tiny_gen,tiny_mc"):
        anew = rescore(found.path, results=tmp_path / "anew", data=str(yaml_tasks))
        assert anew.header.summary is not None
        assert anew.header.summary.scores == found.header.summary.scores


def test_without_lm_eval_one_line_says_how_to_install_it(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['lm_eval'] = None; from velox_eval.cli import main; main()"
    for arguments in (["lm-eval", "--tasks", "x"], ["run", "--task", "lm_eval/x"]):
        done = subprocess.run(
            [sys.executable, "-c", blocked, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stderr.strip().count("\n") == 0
        assert "pip install 'velox-eval[lm-eval]'" in done.stderr
    listed = subprocess.run([sys.executable, "-c", blocked, "tasks"], capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr


def test_the_command_is_lm_evals_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "velox_eval.cli", "lm-eval", "run", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--gen_kwargs" in done.stdout
