"""Where a run happens: package versions, platform, state of the source checkout."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import velox_eval
from velox_eval.errors import ConfigError
from velox_eval.records.schema import Revision

_ALWAYS = ("mlx", "mlx-lm", "velox-eval")
ANSWERING = ("methods", "caches", "engine")  # folders whose code makes answers: a rule that was edited is another rule


def package_versions(method: str) -> dict[str, str]:
    """Returns the versions of the packages that answers of `method` depend on.

    Raises ConfigError for a package that is not installed.
    """
    names = (*_ALWAYS, "VeloxQuant-MLX") if method.startswith("veloxquant/") else _ALWAYS
    try:
        return {name.lower(): version(name) for name in names}
    except PackageNotFoundError as error:
        raise ConfigError(f"{method} needs the package {error.name!r}: install it with pip") from error


def code_sha256(folders: Sequence[str] = (".",)) -> str:
    """Returns a hash over the Python files in `folders` of this package: two checkouts of one version may differ."""
    root = Path(velox_eval.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def platform_name() -> str:
    """Returns operating system and machine type."""
    return f"{platform.system()} {platform.machine()}"


def source_revision() -> Revision | None:
    """Returns commit and state of the checkout this package runs from; None for an installed package.

    New files count as changes where they are code; what lies elsewhere may be results.
    """
    root = Path(velox_eval.__file__).resolve().parents[1]
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    if top is None or commit is None or Path(top).resolve() != root:
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    added = _git(root, "ls-files", "--others", "--exclude-standard", "--", "velox_eval", "tasks")
    return Revision(commit=commit, dirty=bool(changed or added))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None  # no git, or no checkout
    return done.stdout.strip()
