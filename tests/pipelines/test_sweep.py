"""A suite's matrix: read, checked before it runs, run with what fails left behind, resumed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from velox_eval.errors import ConfigError, DataError, ModelError
from velox_eval.methods import resolve
from velox_eval.pipelines.matrix import ASSUMED, plan_sweep
from velox_eval.pipelines.suite import Suite, SuiteMethod, SuiteTask, matrix, read_suite, run_command
from velox_eval.pipelines.sweep import KeptModel, sweep
from velox_eval.records.store import load_run
from velox_eval.runs.suite_files import suite_names

GOOD = """
kind = "sweep"
budgets = [40]

[[task]]
name = "fidelity"
limit = 2
max_tokens = 4

[[method]]
name = "morphkv"
set = { window = [4, 8], n_sink = 2 }
"""


def written(folder: Path, text: str) -> str:
    path = folder / "own.toml"
    path.write_text(text)
    return str(path)


def test_every_combination_is_a_run_and_the_full_cache_comes_first(tmp_path: Path) -> None:
    suite = read_suite(written(tmp_path, GOOD.replace("[40]", "[40, 64]\nkeeps = [0.5]\nmodels = ['a', 'b']")))
    asked = [(o.model, o.method, dict(o.settings), o.budget, o.keep) for o in matrix(suite)]
    sizes = [(40, None), (64, None), (None, 0.5)]
    for model in ("a", "b"):
        here = [rest for name, *rest in asked if name == model]
        assert here[0] == ["full", {}, None, None]
        assert here[1:] == [["morphkv", {"window": w, "n_sink": 2}, *size] for w in (4, 8) for size in sizes]
    assert suite.name == "own"


def test_tasks_and_methods_may_have_their_own_budgets(tmp_path: Path) -> None:
    text = GOOD.replace('name = "fidelity"', 'name = "fidelity"\nbudgets = [50]')
    text += '\n[[method]]\nname = "tova"\nbudgets = [60]\n\n[[method]]\nname = "h2o"\ntasks = ["fidelity"]\n'
    budgets = {(o.method, o.budget) for o in matrix(read_suite(written(tmp_path, text)))}
    assert budgets == {("full", None), ("morphkv", 50), ("tova", 60), ("h2o", 50)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('kind = "sweep"', 'kind = "speed"'), "kind='speed' must be 'sweep' for `velox-eval sweep`"),
        (('kind = "sweep"', ""), "kind=None must be 'sweep'"),
        (("limit = 2", "limit = 0"), "task.0.limit: Input should be greater than or equal to 1 (given: 0)"),
        (("[40]", "[40]\nbugdets = [1]"), "bugdets: Extra inputs are not permitted"),
        (("[40]", "[0]"), "budgets.0: Input should be greater than or equal to 1"),
        (('name = "morphkv"', ""), "method.0.name: Field required"),
        (("n_sink = 2 }", 'n_sink = 2 }\ntasks = ["fidelty"]'), "did you mean 'fidelity'?"),
        (("[[task]]", "[[task"), "not a readable TOML file"),
        (("limit = 2", 'data = "prompts\\u0000.jsonl"'), "a text holds the character \\u0000"),
    ],
)
def test_a_wrong_file_is_told_where(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = written(tmp_path, GOOD.replace(*change))
    with pytest.raises(DataError) as raised:
        read_suite(path)
    assert str(raised.value).startswith(path)
    assert says in str(raised.value)


def test_names_find_the_suites_that_come_along() -> None:
    assert {"smoke", "nightly", "paper"} <= suite_names("sweep").keys()
    assert "speed" not in suite_names("sweep")
    with pytest.raises(ConfigError, match="unknown suite 'smok'; did you mean 'smoke'"):
        read_suite("smok")


@pytest.mark.parametrize("name", ["smoke", "nightly"])
def test_suites_without_a_network_can_be_planned(name: str, tmp_path: Path) -> None:
    plan = plan_sweep(read_suite(name), results=tmp_path)
    assert len(plan.runs) >= 10
    assert len({run.label for run in plan.runs}) == len(plan.runs)
    assert plan.impossible == ()


def test_the_paper_suite_holds_its_ablations() -> None:
    """Its data comes over the network, so its methods alone are checked."""
    ours = [o for o in matrix(read_suite("paper")) if o.method == "morphkv:paper"]
    settings = [dict(o.settings) for o in ours if o.model == ours[0].model]
    assert {s["window"] for s in settings} == {32, 64, 100, 150, 200}
    assert {"max", "sum"} == {s["fusion"] for s in settings if "fusion" in s}
    assert {200, 1000} == {s["interval"] for s in settings if "interval" in s}
    assert {1, 2, 3} == {s["skip_layers"] for s in settings if "skip_layers" in s}
    assert {1000, 2000, 3000, 4000} == {o.budget for o in ours}
    for options in matrix(read_suite("paper")):
        resolve(options.method, options.settings, budget=options.budget)


def test_what_cannot_work_is_named_before_anything_runs(suite, tmp_path):
    bad = {"method": (SuiteMethod(name="tova"), SuiteMethod(name="morphkv", set={"window": (8, 64)}))}
    with pytest.raises(ConfigError) as raised:
        plan_sweep(suite(**bad), results=tmp_path / "results")
    assert str(raised.value) == (
        "suite tiny: 1 runs cannot work: longgenbench: morphkv window=64, budget 40: "
        "n_sink=4 plus window=64 must be below budget=40: no row could be evicted"
    )
    assert not (tmp_path / "results").exists()
    plan = plan_sweep(suite(**bad, leave_out_impossible=True), results=tmp_path / "results")
    assert [label for label, _ in plan.impossible] == ["longgenbench: morphkv window=64, budget 40"]
    assert len(plan.runs) == 3


def test_repetitions_run_once_and_greedy_runs_draw_nothing(planned):
    twice = (SuiteMethod(name="tova"), SuiteMethod(name="tova:adapted", set={"n_sink": 4}), SuiteMethod(name="full"))
    plan = planned(method=twice, budgets=(40, 48))
    assert [run.label for run in plan.runs] == [
        "longgenbench: full",
        "longgenbench: tova, budget 40",
        "longgenbench: tova, budget 48",
    ]
    assert plan.repeated == 4
    greedy = planned(seeds=(0, 1))
    assert len(greedy.runs) == 3
    assert "temperature 0 draws nothing" in greedy.notes[0]
    drawn = planned(seeds=(0, 1), temperature=0.7)
    assert len(drawn.runs) == 6
    assert drawn.runs[0].label == "longgenbench: full, seed 0"


def test_one_task_with_two_sets_of_options_is_told_apart(planned):
    tasks = tuple(SuiteTask(name="longgenbench", limit=limit, max_tokens=4) for limit in (1, 2))
    assert [run.label for run in planned(task=tasks, method=(SuiteMethod(name="tova"),)).runs] == [
        "longgenbench: full (1)",
        "longgenbench: tova, budget 40 (1)",
        "longgenbench: full (2)",
        "longgenbench: tova, budget 40 (2)",
    ]


def test_a_sweep_runs_resumes_and_is_shown(planned, watching):
    first = planned()
    assert {run.state for run in first.runs} == {"new"}
    assert first.runs[0].basis.startswith("assumed")
    tokens, prompt = first.runs[0].tokens, first.runs[0].prompt_tokens
    assert first.runs[0].seconds == pytest.approx(prompt / ASSUMED[0] + tokens / ASSUMED[1])
    stopping = watching(stop_after=6)
    stopped = sweep(first, stopping)
    assert stopped.interrupted
    assert [run.header.status for run in stopped.runs] == ["success", "cancelled"]
    second = planned()
    assert [run.state for run in second.runs] == ["finished", "begun", "new"]
    assert [run.basis for run in second.runs] == [
        "measured runs of this run",
        "measured runs of this run",
        "measured runs of this task",
    ]
    assert 0 < second.seconds < first.seconds
    watch = watching()
    done = sweep(second, watch)
    assert [run.state for run in done.runs] == ["finished", "resumed", "new"]
    assert (done.interrupted, done.failed) == (False, [])
    assert len(watch.records) == 3 * 4 - 6
    assert len(done.folders) == 3
    assert {run.state for run in planned().runs} == {"finished"}
    assert [session.command for session in done.runs[1].header.sessions] == [list(second.runs[1].options.command)] * 2


def test_the_command_in_the_record_gives_the_same_run(planned, tmp_path):
    from velox_eval.cli.run import parse_settings

    options = planned(method=(SuiteMethod(name="morphkv:paper", set={"window": 8, "fusion": "sum"}),)).runs[1].options
    words = list(run_command(options))
    assert shlex.join(words).startswith("velox-eval run --method morphkv:paper --task longgenbench --model ")
    assert words[words.index("--budget") + 1] == "40"
    assert words[words.index("--results") + 1] == str(tmp_path / "results")
    given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert parse_settings(given) == {"window": "8", "fusion": "sum"}


def test_a_run_that_fails_does_not_stop_the_rest(planned, watching, monkeypatch, tmp_path):
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(tmp_path / "cache"))  # where no directions are
    watch = watching()
    result = sweep(planned(method=(SuiteMethod(name="qfilters:paper", budgets=(80,)), SuiteMethod(name="tova"))), watch)
    full, qfilters, tova = result.runs
    assert (full.error, tova.error) == (None, None)
    assert "velox-eval calibrate" in qfilters.error
    assert result.failed == [qfilters]
    assert watch.runs == list(result.runs)


def test_a_model_is_loaded_once_and_one_that_fails_fails_at_once(planned, tiny_model_dir, tmp_path, monkeypatch):
    from velox_eval.engine import models

    loaded: list[str] = []
    load = models.load_model
    monkeypatch.setattr(models, "load_model", lambda name: loaded.append(name) or load(name))
    missing = str(tmp_path / "none")
    result = sweep(planned(models=(str(tiny_model_dir), missing)))
    assert loaded == [str(tiny_model_dir), missing]
    assert [run.error is None for run in result.runs] == [True] * 3 + [False] * 3
    kept = KeptModel()
    with pytest.raises(ModelError, match="no model directory"):
        kept.load(missing)


def test_sums_over_seeds_and_records_are_those_of_single_runs(planned, suite, tmp_path):
    """A run of a sweep is an ordinary run: its own command finds it finished."""
    from velox_eval.runs.runner import run

    plan = planned(temperature=0.8, seeds=(3,), method=(SuiteMethod(name="tova"),))
    result = sweep(plan)
    again = run(plan.runs[1].options)
    assert (again.state, again.path) == ("finished", result.runs[1].path)
    assert load_run(again.path).header.config.seed == 3


def test_a_suites_hash_is_of_what_it_asks(suite):
    assert suite(name="other", summary="x").sha256 == suite().sha256
    assert suite(budgets=(41,)).sha256 != suite().sha256
    assert Suite.model_validate(suite().model_dump()).sha256 == suite().sha256
