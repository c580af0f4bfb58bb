"""A fast BLAS is found and loaded before mlx, or the status says why not. Each case is a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from velox_eval.blas import mlx_gpu_build, usable_cores

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or mlx_gpu_build() is not None, reason="only mlx's Linux CPU build needs one"
)

STATUS = """
import dataclasses, json, sys
from velox_eval.blas import blas_status, load_fast_blas
from velox_eval.errors import ConfigError
try:
    first = load_fast_blas()
except ConfigError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()
assert "mlx" not in sys.modules or "IMPORTED" in globals()
assert load_fast_blas() is first and blas_status() is first
print(json.dumps(dataclasses.asdict(first) | {"fast": first.fast}))
"""
IMPORTED = "import mlx.core\nIMPORTED = True\n"


def status(code: str = STATUS, **environment: str) -> dict[str, object]:
    """The BLAS status in a fresh process with these variables."""
    base = {k: v for k, v in os.environ.items() if k not in ("VELOX_EVAL_BLAS", "LD_PRELOAD", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=base | environment, capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def skip_beside_system_openblas() -> None:
    if status()["reason"] == "found on this system":
        pytest.skip("a system OpenBLAS comes before those in wheels")


@pytest.fixture(scope="module")
def some_blas() -> Path:
    """A real library with the CBLAS interface: the reference BLAS that mlx brings."""
    for file in importlib.metadata.files("mlx-cpu") or ():
        if file.name.startswith("libblas"):
            return Path(str(file.locate())).resolve()
    raise AssertionError("mlx-cpu brings no BLAS")


def test_off_switches_it_off() -> None:
    found = status(VELOX_EVAL_BLAS="off")
    assert (found["kind"], found["path"], found["fast"]) == ("off", None, False)


def test_a_named_library_is_loaded(some_blas: Path) -> None:
    found = status(VELOX_EVAL_BLAS=str(some_blas))
    assert (found["kind"], found["path"], found["fast"]) == ("custom", str(some_blas), True)


@pytest.mark.parametrize("kind", ["absent", "text", "no BLAS"])
def test_a_named_library_that_cannot_serve_is_a_config_error(tmp_path: Path, kind: str) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    path = {"absent": tmp_path / "absent.so", "text": text, "no BLAS": Path(sys.executable).parent / "absent"}[kind]
    if kind == "no BLAS":
        ctypes_file = [f for f in importlib.metadata.files("numpy") or () if f.name.startswith("_multiarray_umath.")]
        path = Path(str(ctypes_file[0].locate()))
    found = status(VELOX_EVAL_BLAS=str(path))
    assert str(path) in str(found["error"])
    said = {"absent": "no such library", "text": "cannot be loaded", "no BLAS": "no cblas_sgemm"}
    assert said[kind] in str(found["error"])
    assert "\n" not in str(found["error"])


def test_openblas_is_found_where_the_loader_looks(some_blas: Path, tmp_path: Path) -> None:
    (tmp_path / "libopenblasp.so.0").symlink_to(some_blas)
    found = status(LD_LIBRARY_PATH=str(tmp_path))
    assert (found["kind"], found["path"], found["fast"]) == ("openblas", str(some_blas), True)


def test_mkl_is_found_in_its_wheel(some_blas: Path, tmp_path: Path) -> None:
    skip_beside_system_openblas()
    site, library = tmp_path / "site", tmp_path / "lib" / "libmkl_rt.so.2"
    info = site / "mkl-2026.2.0.dist-info"
    info.mkdir(parents=True)
    library.parent.mkdir()
    library.symlink_to(some_blas)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mkl\nVersion: 2026.2.0\n")
    hidden = site / "ngsolve_openblas-0.dist-info"  # an installed OpenBLAS wheel would come before MKL
    hidden.mkdir()
    (hidden / "METADATA").write_text("Metadata-Version: 2.1\nName: ngsolve-openblas\nVersion: 0\n")
    (hidden / "RECORD").write_text("")
    (info / "RECORD").write_text("../lib/libmkl_rt.so.2,,\n../lib/libmkl_core.so.2,,\n")
    found = status(PYTHONPATH=str(site))
    assert (found["kind"], found["path"]) == ("mkl", str(some_blas))


def test_openblas_is_found_in_a_wheel_with_the_fortran_runtime_of_mlx(some_blas: Path, tmp_path: Path) -> None:
    """Away from its folder the library lacks libgfortran and does not load; through the wheel route it does."""
    skip_beside_system_openblas()
    (lapack,) = some_blas.parent.glob(
        "liblapack*"
    )  # needs libgfortran, as OpenBLAS does, and offers its BLAS's symbols
    site, loader_folder = tmp_path / "site", tmp_path / "loader"
    library = site / "ngsolve_openblas" / "libopenblasp-r0.3.33.so"
    library.parent.mkdir(parents=True)
    shutil.copy(lapack, library)
    loader_folder.mkdir()
    (loader_folder / some_blas.name).symlink_to(some_blas)
    named = status(VELOX_EVAL_BLAS=str(library), LD_LIBRARY_PATH=str(loader_folder))
    assert "libgfortran" in str(named["error"])
    info = site / "ngsolve_openblas-0.3.33.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ngsolve-openblas\nVersion: 0.3.33\n")
    (info / "RECORD").write_text("ngsolve_openblas/libopenblasp-r0.3.33.so,,\n")
    found = status(PYTHONPATH=str(site), LD_LIBRARY_PATH=str(loader_folder))
    assert (found["kind"], found["path"], found["fast"]) == ("openblas", str(library), True)


def test_preloaded_is_seen_and_kept(some_blas: Path) -> None:
    found = status(LD_PRELOAD=str(some_blas))
    assert (found["kind"], found["path"], found["fast"]) == ("preloaded", str(some_blas), True)


def test_too_late_is_said(some_blas: Path, tmp_path: Path) -> None:
    (tmp_path / "libopenblasp.so.0").symlink_to(some_blas)
    found = status(IMPORTED + STATUS, LD_LIBRARY_PATH=str(tmp_path))
    assert (found["kind"], found["fast"]) == ("none", False)
    assert "imported before" in str(found["reason"])


def test_the_library_serves_mlx(some_blas: Path) -> None:
    """After loading, the library that answers mlx's look-ups is the one loaded, and products are right."""
    code = """
import json
from velox_eval.mlx import mx
from velox_eval.blas import blas_status, _library_of
import ctypes
a = mx.arange(12.0).reshape(3, 4)
assert (a @ a.T).tolist() == [[14.0, 38.0, 62.0], [38.0, 126.0, 214.0], [62.0, 214.0, 366.0]]
print(json.dumps({"path": blas_status().path, "global": _library_of("cblas_sgemm", ctypes.CDLL(None))}))
"""
    found = status(code, VELOX_EVAL_BLAS=str(some_blas))
    assert found["path"] == found["global"] == str(some_blas)


def test_usable_cores_is_at_most_the_machine() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
