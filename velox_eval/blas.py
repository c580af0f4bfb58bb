"""A fast BLAS for mlx on Linux CPUs. Nothing here imports mlx.

mlx's Linux CPU wheel brings the reference BLAS, some fifty times slower than OpenBLAS or MKL. Symbols
of a library loaded with RTLD_GLOBAL before mlx come first when mlx's own are resolved, so loading a fast
one in time is all it takes. macOS has Accelerate and a GPU build of mlx its own kernels: nothing to do.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from velox_eval.errors import ConfigError

BlasKind = Literal["openblas", "mkl", "custom", "preloaded", "not_needed", "off", "none"]

BLAS_VARIABLE = "VELOX_EVAL_BLAS"

# Threaded builds first; the bare soname is the threaded build on Debian, Ubuntu, Arch and conda, and the serial one
# on Fedora. The loader knows the system folders and LD_LIBRARY_PATH.
_OPENBLAS_NAMES = ("libopenblasp.so.0", "libopenblaso.so.0", "libopenblas.so.0")
# Folders outside the loader's search path; openblas64-* (64-bit integers) must not match.
_OPENBLAS_FOLDERS = (
    "/usr/lib/*/openblas-pthread",
    "/usr/lib/*/openblas-openmp",
    "/usr/lib/*/openblas-serial",
    "/usr/lib64",
    "/usr/local/lib",
    "/opt/OpenBLAS/lib",
    os.path.join(sys.prefix, "lib"),
)
# A wheel with OpenBLAS under its plain names (most wheels rename its symbols). It expects libgfortran beside it.
_OPENBLAS_WHEEL = "ngsolve-openblas"
_THREAD_VARIABLES = {
    "openblas": ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    "mkl": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
}


@dataclass(frozen=True)
class BlasStatus:
    """What serves mlx's CPU matrix products: `kind`, the library's `path`, the `threads` we set (None: its own
    choice or the environment's) and one sentence of `reason`."""

    kind: BlasKind
    path: str | None
    threads: int | None
    reason: str

    @property
    def fast(self) -> bool:
        """Whether products on the CPU run at the machine's speed."""
        return self.kind in ("openblas", "mkl", "custom", "preloaded", "not_needed")


_status: BlasStatus | None = None


def load_fast_blas() -> BlasStatus:
    """The BLAS now in this process; the first call finds and loads one, later calls change nothing.

    VELOX_EVAL_BLAS=off skips it, VELOX_EVAL_BLAS=/path/to/lib.so names one; a path that cannot be loaded is a
    ConfigError.
    """
    global _status  # noqa: PLW0603 - one BLAS a process, as the dynamic loader has it
    if _status is None:
        _status = _choose()
    return _status


def blas_status() -> BlasStatus:
    """The BLAS in use or why there is none; loads one if nothing has asked for mlx yet."""
    return load_fast_blas()


def usable_cores() -> int:
    """Cores this process may use: CPU affinity and the container's CPU quota counted."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota_file = Path("/sys/fs/cgroup/cpu.max")
    if quota_file.exists():
        quota, period = quota_file.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def mlx_gpu_build() -> str | None:
    """Name of the installed GPU build of mlx (mlx-metal, mlx-cuda-12, mlx-cuda-13), or None."""
    for name in ("mlx-metal", "mlx-cuda-12", "mlx-cuda-13", "mlx-cuda"):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    return None


def _choose() -> BlasStatus:
    wanted = os.environ.get(BLAS_VARIABLE, "").strip()
    path = None
    if wanted and wanted.lower() != "off":
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise ConfigError(f"{BLAS_VARIABLE}={wanted}: no such library; give the path of a BLAS, or 'off'")
    if sys.platform == "darwin":
        return BlasStatus("not_needed", None, None, "macOS: mlx uses Accelerate and the GPU")
    if not sys.platform.startswith("linux"):
        return BlasStatus("none", None, None, f"no fast BLAS is looked for on {sys.platform}")
    gpu = mlx_gpu_build()
    if gpu and any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")):
        return BlasStatus("not_needed", None, None, f"{gpu} runs on the GPU")
    if wanted.lower() == "off":
        return BlasStatus("off", None, None, f"switched off by {BLAS_VARIABLE}=off")
    here = _library_of("cblas_sgemm", ctypes.CDLL(None))
    if here is not None:
        return BlasStatus("preloaded", here, None, "was in the process already (LD_PRELOAD or the program)")
    if "mlx.core" in sys.modules:
        reason = "mlx was imported before velox_eval could load one: import velox_eval first, or set LD_PRELOAD"
        return BlasStatus("none", None, None, reason)
    if path is not None:
        return _load_named(path)
    return _load_found()


def _load_named(path: Path) -> BlasStatus:
    """The library the user named, loaded."""
    try:
        library = _open(str(path.resolve()))
    except OSError as error:
        raise ConfigError(f"{BLAS_VARIABLE}={path}: cannot be loaded ({error})") from error
    if library is None:
        raise ConfigError(f"{BLAS_VARIABLE}={path}: has no cblas_sgemm, so it is not a BLAS that mlx can use")
    return BlasStatus("custom", str(path.resolve()), _set_threads(library), f"named by {BLAS_VARIABLE}")


def _load_found() -> BlasStatus:
    """The first library found that loads, or status "none" with what went wrong."""
    failures: list[str] = []
    for kind, candidate, reason in _candidates():
        try:
            library = _open_wheel(candidate) if kind == "openblas" and _OPENBLAS_WHEEL in reason else _open(candidate)
        except OSError as error:
            if os.path.isabs(candidate):  # it is there but does not load: worth telling
                failures.append(f"{candidate}: {error}")
            continue
        if library is None:
            failures.append(f"{candidate}: no cblas_sgemm in it")
            continue
        found = candidate if os.path.isabs(candidate) else (_library_of("cblas_sgemm", library) or candidate)
        return BlasStatus(kind, os.path.realpath(found), _set_threads(library), reason)
    reason = "no OpenBLAS or MKL found, on the system or in a wheel"
    return BlasStatus("none", None, None, f"{reason} ({'; '.join(failures)})" if failures else reason)


def _candidates() -> Iterator[tuple[BlasKind, str, str]]:
    """Kind, name or path, and origin of every library to try, in order."""
    for path in _openblas_candidates():
        yield "openblas", path, "found on this system"
    for path in _wheel_files(_OPENBLAS_WHEEL, "libopenblas"):
        yield "openblas", path, f"found in the {_OPENBLAS_WHEEL} wheel"
    for path in _wheel_files("mkl", "libmkl_rt.so"):
        yield "mkl", path, "found in the mkl wheel"


def _openblas_candidates() -> Iterator[str]:
    yield from _OPENBLAS_NAMES
    for folder in _OPENBLAS_FOLDERS:
        for name in (*_OPENBLAS_NAMES, "libopenblas.so"):
            yield from sorted(glob.glob(os.path.join(folder, name)))


def _wheel_files(distribution: str, start: str) -> list[str]:
    """Real paths of the files an installed wheel lists whose names begin with `start`."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    paths = [Path(str(file.locate())) for file in files if file.name.startswith(start)]
    return [str(path.resolve()) for path in paths if path.is_file()]


def _open_wheel(path: str) -> ctypes.CDLL | None:
    """`_open`, with the Fortran runtime that mlx's own wheel brings where the system has none.

    The library looks beside itself (its RPATH is $ORIGIN), so it is opened through a folder of links that has both;
    once it is loaded the links are not needed.
    """
    with tempfile.TemporaryDirectory(prefix="velox-eval-blas-") as folder:
        links = Path(folder)
        for runtime in _wheel_files("mlx-cpu", "libgfortran") + _wheel_files("mlx-cpu", "libquadmath"):
            (links / Path(runtime).name).symlink_to(runtime)
            if Path(runtime).name.startswith("libgfortran"):
                (links / "libgfortran.so.5").symlink_to(runtime)
        library = links / Path(path).name
        library.symlink_to(path)
        return _open(str(library))


def _open(name: str) -> ctypes.CDLL | None:
    """The library with its symbols made global, or None if it offers no CBLAS; OSError if it does not load."""
    if not hasattr(ctypes.CDLL(name, mode=os.RTLD_LOCAL), "cblas_sgemm"):
        return None
    return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


def _set_threads(library: ctypes.CDLL) -> int | None:
    """Threads set: the usable cores, unless an environment variable says how many (None then)."""
    for kind, symbol in (("openblas", "openblas_set_num_threads"), ("mkl", "MKL_Set_Num_Threads")):
        if hasattr(library, symbol):
            if any(os.environ.get(variable) for variable in _THREAD_VARIABLES[kind]):
                return None
            threads = usable_cores()
            setter = getattr(library, symbol)
            setter.argtypes, setter.restype = [ctypes.c_int], None
            setter(threads)
            return threads
    return None


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


def _library_of(symbol: str, library: ctypes.CDLL) -> str | None:
    """Path of the file that provides `symbol` when looked up through `library`, or None."""
    if not hasattr(library, symbol):
        return None
    info = _DlInfo()
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p)
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes, dladdr.restype = [ctypes.c_void_p, ctypes.POINTER(_DlInfo)], ctypes.c_int
    if dladdr(address, ctypes.byref(info)) and info.dli_fname:
        return os.path.realpath(os.fsdecode(info.dli_fname))
    return None
