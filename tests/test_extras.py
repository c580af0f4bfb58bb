"""Packages that not everybody needs: missing, incomplete or broken, they are one line that says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = {
    "raise ImportError('libfreetype.so.6: cannot open\\nshared object file')": (
        "cannot be imported (ImportError: libfreetype.so.6: cannot open shared object file): "
        "pip install --force-reinstall 'velox-eval[EXTRA]'"
    ),
    "import sys; sys.no_such_thing": "cannot be imported (AttributeError: module 'sys' has no attribute",
    "def broken(:": "cannot be imported (SyntaxError: ",
    "import no_such_package": "lacks no_such_package: pip install 'velox-eval[EXTRA]'",
}
COMMANDS = {
    "matplotlib": ("report", ("page", "results"), ("plan", "--memory", "1GB", "-o", "x.svg"), ("mechanism", "-o", "x")),
    "lm_eval": ("lm-eval", ("lm-eval", "--tasks", "x"), ("run", "--task", "lm_eval/x")),
    "distributed": ("distributed", ("sweep", "smoke", "--scheduler", "tcp://localhost:1")),
}


@pytest.mark.parametrize("package", COMMANDS)
@pytest.mark.parametrize("source", BROKEN)
def test_a_package_that_cannot_be_imported_is_one_line(package: str, source: str, tmp_path: Path) -> None:
    (tmp_path / "stubs" / package).mkdir(parents=True)
    (tmp_path / "stubs" / package / "__init__.py").write_text(source)
    (tmp_path / "work").mkdir()
    extra, *commands = COMMANDS[package]
    path = os.pathsep.join([str(tmp_path / "stubs"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "velox_eval.cli", *commands[list(BROKEN).index(source) % len(commands)]],
        cwd=tmp_path / "work",
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"needs {package}, which " in done.stderr
    assert BROKEN[source].replace("EXTRA", extra) in done.stderr
    assert not list((tmp_path / "work").iterdir())
