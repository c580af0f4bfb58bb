"""The map holds: imports go one way, and what must not load mlx does not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "velox_eval"

# Each layer may import itself and those before it. Files that are listed alone stand outside their folder's layer.
LAYERS = (
    ("errors", "extras", "blas"),
    ("mlx", "mlx_lm"),
    ("caches/use", "engine/requests", "records", "metrics", "judges", "methods/spec"),
    ("methods",),
    ("caches",),
    ("engine",),
    ("tasks",),
    ("runs",),
    ("compare",),
    ("mechanism",),
    ("pipelines",),
    ("lm_eval_backend",),
    ("cli", "__main__"),
)
MLX_FREE = ("records", "metrics", "judges", "methods", "tasks", "runs", "compare", "cli", "engine.requests")


def layer_of(module: str) -> int:
    """Index of the first layer that names the module or its folder; the most exact name wins."""
    path = module.removeprefix("velox_eval").lstrip(".").replace(".", "/")
    matches = [
        (len(name), index)
        for index, names in enumerate(LAYERS)
        for name in names
        if path == name or path.startswith(name + "/")
    ]
    assert matches, f"{module} belongs to no layer: add it to the map"
    return max(matches)[1]


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("velox_eval."):
            found.add(node.module)
        elif isinstance(node, ast.ImportFrom) and node.module == "velox_eval":
            found |= {f"velox_eval.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("velox_eval.")}
    return {name for name in found if name != "velox_eval.__version__"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    if relative.name == "__init__.py" and relative.parent == Path("."):
        return
    module = "velox_eval." + str(relative.with_suffix("")).replace("/", ".").removesuffix(".__init__")
    if module == "velox_eval.mlx":  # the door itself
        return
    for imported in imports(path):
        assert layer_of(imported) <= layer_of(module), f"{module} imports {imported}, which comes later"


@pytest.mark.parametrize("name", MLX_FREE)
def test_scoring_and_listing_never_load_mlx(name: str) -> None:
    code = (
        f"import sys, velox_eval.{name}; "
        "heavy = [m for m in ('mlx', 'mlx_lm', 'transformers', 'datasets', 'torch', 'lm_eval') if m in sys.modules]; "
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_stay_small_enough_to_hold_in_the_head() -> None:
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 450} == {}
