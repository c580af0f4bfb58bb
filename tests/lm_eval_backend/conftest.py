"""Local tasks of lm-eval on the tiny model: YAML beside JSONL, no network, no built-in task."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

ROWS = [{"q": f"Count on: {i}, {i + 1}, {i + 2},", "a": f"{i + 3}"} for i in range(5)]
CHOICES = [
    {"q": "The capital of France is", "c": [" Paris", " Rome", " a city in the north"], "g": 0},
    {"q": "Water is made of hydrogen and", "c": [" oxygen", " gold and more", " iron"], "g": 1},
]

GENERATE = """
task: tiny_gen
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/rows.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: " {{{{a}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1.0}}
"""
CHOOSE = """
task: tiny_mc
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{c}}}}"
doc_to_target: "{{{{g}}}}"
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
  - {{metric: brier_score, aggregation: brier_score, higher_is_better: false}}
metadata: {{version: 2.1}}
"""
ROLL = """
task: tiny_roll
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/rows.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{q}}}}"
metadata: {{version: 1.0}}
"""
GROUP = """
group: tiny_group
task: [tiny_gen, tiny_mc]
"""
UNSAFE = GENERATE.replace("tiny_gen", "tiny_unsafe") + "unsafe_code: true\n"
SEVERAL = GENERATE.replace("tiny_gen", "tiny_several") + "repeats: 3\n"


@pytest.fixture
def yaml_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tasks: one of each kind, a group, and two that our runner does not run."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    folder = tmp_path / "yaml"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHOICES))
    texts = {"gen": GENERATE, "mc": CHOOSE, "roll": ROLL, "unsafe": UNSAFE, "several": SEVERAL}
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text.format(folder=folder))
    (folder / "group.yaml").write_text(GROUP)
    return folder


@pytest.fixture
def velox_lm(tiny_model_dir: Path) -> Callable[..., Any]:
    """Makes a VeloxLM of the tiny model, morphkv at 32 rows unless told otherwise."""
    from velox_eval.lm_eval_backend import VeloxLM

    def make(**arguments: Any) -> Any:
        return VeloxLM(str(tiny_model_dir), **({"method": "morphkv", "budget": 32} | arguments))

    return make


@pytest.fixture
def instance() -> Callable[..., Any]:
    """Makes a request of lm-eval's."""
    from lm_eval.api.instance import Instance

    def make(*arguments: Any, doc: int | None = None, task: str | None = None, idx: int = 0) -> Any:
        if len(arguments) == 1:
            kind = "loglikelihood_rolling"
        else:
            kind = "generate_until" if isinstance(arguments[1], dict) else "loglikelihood"
        return Instance(kind, {}, arguments, idx, (task, doc, 1))

    return make
