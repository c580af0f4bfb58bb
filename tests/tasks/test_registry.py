"""Names, definitions and options of tasks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import velox_eval
from velox_eval.errors import ConfigError, DataError
from velox_eval.tasks import TASKS, TaskOptions, describe_tasks, get_task, task_info, task_names
from velox_eval.tasks.definition import read_definition, task_files

ROOT = Path(__file__).resolve().parents[2]


def test_every_task_has_a_definition_and_an_adapter() -> None:
    assert task_names() == tuple(sorted(TASKS))
    for info in describe_tasks():
        task = get_task(info.name)
        assert task.info == info
        assert info.version >= 1
        assert len(info.changelog) == info.version
        assert info.primary
        assert info.accuracy


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown task 'longgenbensh'; did you mean 'longgenbench'"):
        get_task("longgenbensh")
    with pytest.raises(ConfigError, match="unknown task"):
        task_info("")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TaskOptions(source="oficial"), "did you mean 'official'"),
        (TaskOptions(source="data"), "--data PATH"),
        (TaskOptions(source="official", data="x.json"), "both given"),
        (TaskOptions(limit=0), "limit=0"),
        (TaskOptions(max_tokens=-1), "max_tokens=-1"),
        (TaskOptions(entries=7), "entries=7 must be from 8"),
        (TaskOptions(entries=401), "entries=401"),
        (TaskOptions(variant="short"), "variant=short is for source=official"),
        (TaskOptions(source="official", variant="shrot"), "did you mean 'short'"),
        (TaskOptions(source="official", entries=12), "entries=12 is for source=bundled"),
        (TaskOptions(source="official", data_seed=1), "data_seed=1 is for source=bundled"),
        (TaskOptions(data="x.json", data_seed=1), "data_seed=1 is for source=bundled"),
    ],
)
def test_options_that_cannot_work_are_refused_when_the_task_is_made(options: TaskOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_task("longgenbench", options)


def test_options_that_a_task_does_not_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (task_files() / "longgenbench.toml").read_text(encoding="utf-8")
    (tmp_path / "longgenbench.toml").write_text(text.replace('options = ["entries", "variant", "data_seed"]', ""))
    monkeypatch.setattr("velox_eval.tasks.definition.task_files", lambda: tmp_path)
    for options in (TaskOptions(entries=12), TaskOptions(variant="short"), TaskOptions(data_seed=3)):
        with pytest.raises(ConfigError, match=r"has no (option|generated material)"):
            get_task("longgenbench", options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("version = 1", 'version = "1"'), "field 'version' must be a non-empty int, got '1'"),
        (("version = 1", "version = true"), "field 'version' must be a non-empty int"),
        (('primary = "stic_2"', ""), "field 'primary'"),
        (('name = "longgenbench"', 'name = "other"'), "field 'name' is 'other'"),
        (("[bundled]", "[bundled"), "not a readable TOML"),
    ],
)
def test_a_bad_definition_names_file_and_field(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = (task_files() / "longgenbench.toml").read_text(encoding="utf-8")
    assert change[0] in text
    (tmp_path / "longgenbench.toml").write_text(text.replace(*change), encoding="utf-8")
    with pytest.raises(DataError, match=message) as raised:
        read_definition("longgenbench", tmp_path)
    assert str(tmp_path / "longgenbench.toml") in str(raised.value)


def test_definitions_are_found_editable_and_inside_an_installed_package(tmp_path: Path) -> None:
    assert task_files() in (ROOT / "tasks", Path(velox_eval.__file__).parent / "_task_files")
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    (inside,) = [place for folder, place in wheel["wheel"]["force-include"].items() if folder == "tasks"]
    shutil.copytree(ROOT / "velox_eval", tmp_path / "velox_eval", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tasks", tmp_path / inside)
    script = "from velox_eval.tasks import task_info; from velox_eval.tasks.definition import task_files as f; "
    script += "print(f()); print(task_info('longgenbench').primary)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str(tmp_path / inside), "stic_2"]


def test_listing_loads_nothing_heavy() -> None:
    script = (
        "import sys; from velox_eval.tasks import describe_tasks; describe_tasks(); "
        "print([m for m in ('mlx', 'mlx_lm', 'datasets', 'transformers', 'velox_eval.tasks.longgenbench') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
