"""Help and listings start at once, and load no model library."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("mlx", "mlx_lm", "datasets", "transformers", "numpy", "torch")
COMMANDS = [["--help"], ["methods"], ["methods", "--json"], ["tasks"], ["run", "--help"], ["schema"]]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_model_library_is_loaded(arguments):
    code = (
        "import sys, atexit\n"
        f"sys.argv = ['velox-eval', *{arguments!r}]\n"
        f"atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr))\n"
        "from velox_eval.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["methods"], ["tasks"]], ids=" ".join)
def test_starts_in_under_half_a_second(arguments):
    best = min(_seconds([sys.executable, "-m", "velox_eval.cli", *arguments]) for _ in range(3))
    assert best < 0.5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["methods"], ["schema"]], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_one_line(arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "velox_eval.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "velox-eval: error: cannot use standard output: No space left on device\n"


def _seconds(command):
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start
