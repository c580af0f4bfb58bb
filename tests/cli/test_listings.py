"""methods, tasks, schema: tables for people, one JSON document for programs, one line for a mistake."""

from __future__ import annotations

import dataclasses
import inspect
import json

import pytest

from velox_eval.cli.run import run as run_command
from velox_eval.methods import METHODS
from velox_eval.records.schema import RunHeader, RunRow, SampleRecord
from velox_eval.runs.plan import RunOptions


def test_methods_shows_every_method_with_paper_and_difference(velox_eval):
    done = velox_eval("methods")
    text = " ".join(done.stdout.split())
    for spec in METHODS.values():
        assert spec.name in text
        assert spec.paper[:40] in text
        for variant in spec.variants.values():
            assert variant.differs
            assert " ".join(variant.differs.split())[:50] in text
            for parameter in variant.parameters:
                assert f"--set {parameter.name}={parameter.default} ({parameter.bounds})" in text


def test_methods_json(velox_eval):
    documents = {document["name"]: document for document in json.loads(velox_eval("methods", "--json").stdout)}
    assert documents.keys() == METHODS.keys()
    adapted = documents["morphkv"]["variants"]["adapted"]
    [window] = [p for p in adapted["parameters"] if p["name"] == "window"]
    assert (window["type"], window["default"], window["minimum"], window["maximum"]) == ("int", 8, 1, None)
    assert adapted["min_budget"] == 13
    assert json.loads(velox_eval("methods", "tova", "--json").stdout)["name"] == "tova"


def test_tasks(velox_eval):
    shown = velox_eval("tasks").stdout
    assert "longgenbench" in shown
    assert "lm_eval/NAME" in shown
    [document] = [d for d in json.loads(velox_eval("tasks", "--json").stdout) if d["name"] == "longgenbench"]
    assert document["primary"] == "stic_2"
    assert "changes of scoring" in velox_eval("tasks", "longgenbench").stdout


@pytest.mark.parametrize(("name", "model"), [("sample", SampleRecord), ("run", RunHeader), ("row", RunRow)])
def test_schema_is_that_of_the_records(velox_eval, name, model):
    schema = json.loads(velox_eval("schema", "--for", name).stdout)
    assert set(schema["properties"]) == set(model.model_fields)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["methods", "morpkv"], "unknown method 'morpkv'; did you mean 'morphkv'?"),
        (["tasks", "longenbench"], "unknown task 'longenbench'; did you mean 'longgenbench'?"),
        (["tasks", "lm_eval/hellaswag"], "velox-eval lm-eval ls tasks"),
        (["score", "no-such-run"], "no run 'no-such-run' under results; known: none"),
        (["run", "--set", "window"], "--set 'window' is not NAME=VALUE"),
        (["run", "--set", "window=9", "--set", "window=8"], "--set window is given twice"),
        (["run", "--method", "tovva"], "unknown method 'tovva'; did you mean 'tova'?"),
        (["run", "--limit", "0"], "limit=0: must be at least 1"),
        (["run", "--budget", "9", "--keep", "0.5"], "budget=9 and keep=0.5 are both given"),
        (["run", "--data", "no-such.json"], "no-such.json"),
        (["run", "--model", "no/such/model/here"], "no/such/model/here"),
        (["run", "--model", "model.gguf"], "GGUF"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(velox_eval, tmp_path, arguments, says):
    done = velox_eval(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("velox-eval: error: ")
    assert says in line
    assert list((tmp_path / "work").iterdir()) == []


def test_the_commands_defaults_are_the_librarys():
    given = inspect.signature(run_command).parameters
    library = {field.name: field.default for field in dataclasses.fields(RunOptions)}
    shared = given.keys() & library.keys() - {"settings"}
    assert {"method", "model", "budget", "prefill_step", "temperature", "top_p", "judge", "results"} <= shared
    assert {name: given[name].default for name in shared} == {name: library[name] for name in shared}


def test_an_unknown_option_is_refused(velox_eval):
    done = velox_eval("run", "--bugdet", "3")
    assert done.returncode == 2
    assert "--bugdet" in done.stderr
    assert "Traceback" not in done.stderr
