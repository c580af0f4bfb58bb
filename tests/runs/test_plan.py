"""Everything that can be refused is refused before a model is loaded, naming the value and what is allowed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from velox_eval.errors import ConfigError, VeloxEvalError
from velox_eval.runs.plan import make_plan


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"method": "morpkv"}, "unknown method 'morpkv'; did you mean 'morphkv'?"),
        ({"method": "morphkv:papr"}, "unknown variant of morphkv 'papr'"),
        ({"task": "longenbench"}, "unknown task 'longenbench'; did you mean 'longgenbench'?"),
        ({"settings": {"windw": "9"}}, "unknown parameter of morphkv 'windw'; did you mean 'window'?"),
        ({"settings": {"window": "0"}}, "window=0 must be at least 1"),
        ({"settings": {"window": "many"}}, "window='many' is not a valid int"),
        ({"settings": {"window": "28"}}, "n_sink=4 plus window=28 must be below budget=32"),
        ({"budget": 0}, "budget=0: must be at least 1"),
        ({"keep": 0.5}, "budget=32 and keep=0.5 are both given"),
        ({"budget": None, "keep": 1.5}, "keep=1.5: must be at most 1"),
        ({"budget": None, "keep": 0.0}, "keep=0.0: must be above 0"),
        ({"limit": 0}, "limit=0: must be at least 1"),
        ({"max_tokens": 0}, "max_tokens=0: must be at least 1"),
        ({"temperature": -1.0}, "temperature=-1.0: must be at least 0"),
        ({"top_p": 0.0}, "top_p=0.0: must be above 0"),
        ({"top_p": 1.1}, "top_p=1.1: must be at most 1"),
        ({"batch_size": 0}, "batch_size=0: must be at least 1"),
        ({"prefill_step": 0}, "prefill_step=0: must be at least 1"),
        ({"max_error_share": 1.5}, "max_error_share=1.5: must be from 0 to 1"),
        ({"judge": "ruls"}, "ruls"),
        ({"data": "/no/such/file.json"}, "/no/such/file.json"),
        ({"source": "bundled"}, "source=bundled and data="),
    ],
)
def test_refused_with_one_line(options, bad, says):
    good = options()
    make_plan(good)
    with pytest.raises(VeloxEvalError) as caught:
        make_plan(options(**bad))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not good.results.exists()


def test_planning_loads_no_model_library(options):
    code = (
        "import sys; from velox_eval.runs.plan import *; from pathlib import Path;"
        f"make_plan(RunOptions(data={options().data!r}));"
        "print([m for m in ('mlx', 'mlx_lm', 'datasets', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_budget_is_the_users_then_the_tasks_then_the_methods(options):
    assert make_plan(options(budget=40)).config.budget == 40
    assert make_plan(options(budget=None)).config.budget == 512  # --data: the task names no budget
    keep = make_plan(options(budget=None, keep=0.5)).config
    assert (keep.budget, keep.keep) == (None, 0.5)
    full = make_plan(options(method="full", budget=40)).config
    assert (full.budget, full.keep) == (None, None)


def test_bundled_prompts_run_with_a_budget_that_evicts(options):
    plan = make_plan(options(data=None, source="bundled", budget=None, max_tokens=None))
    budget = plan.task.info.settings["bundled"]["budget"]
    assert plan.config.budget == budget
    shortest = min(len(request.prompt.split()) for request in plan.requests)
    assert budget < shortest + plan.requests[0].max_tokens  # a word is at least a token
    with pytest.raises(ConfigError, match=f"budget={budget} is what longgenbench sets; --budget sets another"):
        make_plan(options(data=None, source="bundled", budget=None, settings={"window": str(budget)}))


def test_what_is_asked_decides_the_requests_hash(options, data_file):
    first = make_plan(options())
    assert make_plan(options()).requests_sha256 == first.requests_sha256
    assert make_plan(options(data=str(data_file(name="moved.json")))).requests_sha256 == first.requests_sha256
    for change in ({"limit": 2}, {"max_tokens": 13}, {"data": str(data_file(4, name="more.json"))}):
        assert make_plan(options(**change)).requests_sha256 != first.requests_sha256
