"""Where a run happens: package versions, platform, state of the source checkout."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import velox_eval
from velox_eval.errors import ConfigError
from velox_eval.records.schema import Revision

_ALWAYS = ("mlx", "mlx-lm", "velox-eval")


def package_versions(method: str) -> dict[str, str]:
    """Returns the versions of the packages that answers of `method` depend on.

    Raises ConfigError for a package that is not installed.
    """
    names = (*_ALWAYS, "VeloxQuant-MLX") if method.startswith("veloxquant/") else _ALWAYS
    try:
        return {name.lower(): version(name) for name in names}
    except PackageNotFoundError as error:
        raise ConfigError(f"{method} needs the package {error.name!r}: install it with pip") from error


def platform_name() -> str:
    """Returns operating system and machine type."""
    return f"{platform.system()} {platform.machine()}"


def source_revision() -> Revision | None:
    """Returns commit and state of the checkout this package runs from; None for an installed package."""
    root = Path(velox_eval.__file__).resolve().parents[1]
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    if top is None or commit is None or Path(top).resolve() != root:
        return None
    return Revision(commit=commit, dirty=bool(_git(root, "status", "--porcelain", "--untracked-files=no")))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None  # no git, or no checkout
    return done.stdout.strip()
