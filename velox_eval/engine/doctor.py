"""What this machine offers velox-eval, and what would make it faster."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from velox_eval.blas import blas_status, mlx_gpu_build, usable_cores
from velox_eval.engine.memory import free_memory, machine_memory
from velox_eval.engine.model_store import KNOWN_MODELS, cache_directory, is_present, model_directory
from velox_eval.mlx import mx

_PACKAGES = (
    "velox-eval",
    "mlx",
    "mlx-cpu",
    "mlx-metal",
    "mlx-cuda-12",
    "mlx-cuda-13",
    "mlx-lm",
    "datasets",
    "transformers",
    "huggingface_hub",
    "lm_eval",
    "VeloxQuant-MLX",
)
_SIDE = 512  # of the measured product
_MEASURE_SECONDS = 0.3
_SLOW_GFLOPS_PER_CORE = 15.0  # the reference BLAS reaches about 5 a core, OpenBLAS and MKL 60 and more


def report() -> dict[str, Any]:
    """Versions, device, BLAS, measured speed, cache, offline state and `advice` (sentences); JSON-ready.

    Takes under half a second beyond importing mlx. Bytes are ints, versions of absent packages null.
    """
    blas = blas_status()
    device = _device()
    gflops = _matmul_gflops()
    cache = cache_directory()
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": usable_cores(),
        "memory_bytes": machine_memory(),
        "free_memory_bytes": free_memory(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "device": device,
        "blas": {"kind": blas.kind, "path": blas.path, "threads": blas.threads, "fast": blas.fast, "why": blas.reason},
        "matmul_gflops_float32": round(gflops, 1),
        "cache": {"path": str(cache), "bytes": _tree_bytes(cache), "writable": _writable(cache)},
        "models": {
            name: {"present": is_present(name), "path": str(model_directory(name)), "licence": model.licence}
            for name, model in KNOWN_MODELS.items()
        },
        "hub_cache": _hub_cache(),
        "offline": _offline_variables(),
    }
    found["advice"] = _advice(found)
    return found


def _device() -> dict[str, Any]:
    kind = "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"
    info = mx.device_info() if kind == "gpu" else {}
    return {"kind": kind, "name": str(info.get("device_name") or _processor_name()), "mlx_gpu_build": mlx_gpu_build()}


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _matmul_gflops() -> float:
    """Floating-point operations per nanosecond of one float32 product on the default device, the best of several."""
    left, right = mx.random.normal((_SIDE, _SIDE)), mx.random.normal((_SIDE, _SIDE))
    mx.eval(left, right)
    mx.eval(left @ right)  # loads kernels and wakes threads
    best = float("inf")
    deadline = time.perf_counter() + _MEASURE_SECONDS
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        mx.eval(left @ right)
        best = min(best, time.perf_counter() - started)
    return 2 * _SIDE**3 / best / 1e9


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tree_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _writable(folder: Path) -> bool:
    """Whether `folder`, or the nearest parent that exists, can be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _hub_cache() -> str:
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE)


def _offline_variables() -> dict[str, bool]:
    """Which offline switches are on, as the hub client and datasets read them."""
    on = {"1", "ON", "YES", "TRUE"}
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return {name: os.environ.get(name, "").upper() in on for name in names}


def _advice(found: dict[str, Any]) -> list[str]:
    """Sentences on what is missing or slow, the most useful first."""
    advice = _speed_advice(found)
    for name, model in found["models"].items():
        if not model["present"]:
            advice.append(f"Model {name} is not converted yet: `velox-eval models fetch {name}` (one download, once).")
    if not found["cache"]["writable"]:
        advice.append(
            f"The cache {found['cache']['path']} cannot be written: set VELOX_EVAL_CACHE to another directory."
        )
    if on := [name for name, value in found["offline"].items() if value]:
        advice.append(f"{' and '.join(on)} set: models and data sets come from the local caches only.")
    return advice


def _speed_advice(found: dict[str, Any]) -> list[str]:
    blas, device = found["blas"], found["device"]
    if device["kind"] == "gpu":
        return []
    advice = []
    if device["mlx_gpu_build"]:
        advice.append(f"{device['mlx_gpu_build']} is installed but no GPU is visible: mlx runs on the CPU.")
    if blas["kind"] == "off":
        advice.append("VELOX_EVAL_BLAS=off keeps the slow reference BLAS: unset it to use a fast one.")
    elif not blas["fast"] and "mlx was imported" in blas["why"]:
        advice.append(f"No fast BLAS: {blas['why']}.")
    elif not blas["fast"]:
        advice.append(
            "No fast BLAS: install OpenBLAS (Debian and Ubuntu: `apt-get install libopenblas0-pthread`; Fedora: "
            "`dnf install openblas-threads`; Arch: `pacman -S openblas`; without root on x86-64: "
            "`pip install ngsolve-openblas` or `pip install mkl`): prompts are read about fifteen times faster, "
            "answers written about 1.7 times."
        )
    elif found["matmul_gflops_float32"] < _SLOW_GFLOPS_PER_CORE * found["cores"]:
        advice.append(
            f"The BLAS {blas['path']} reaches only {found['matmul_gflops_float32']} GFLOP/s on {found['cores']} "
            "cores: other programs hold them (end those, or set OPENBLAS_NUM_THREADS=1), or a thread variable is wrong."
        )
    if sys.platform.startswith("linux") and not device["mlx_gpu_build"] and Path("/dev/nvidiactl").exists():
        advice.append("An NVIDIA GPU is here: install velox-eval[cuda12] or velox-eval[cuda13] to use it.")
    return advice
