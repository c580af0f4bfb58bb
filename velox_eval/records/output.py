"""Files that a user asks for by name: refused before the work that they are for, written after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from velox_eval.errors import ConfigError


def why_not_into(folder: Path) -> str | None:
    """Returns why no file can be put into `folder`, which may still have to be made; None where one can.

    Tried out and not asked of the permissions, which say nothing of a disk that is mounted for reading.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not there.is_dir():
            return f"{there} is a file"
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return error.strerror or str(error)


def check_folder(folder: Path) -> None:
    """Raises ConfigError where no file can be written into `folder`, made where there is none. Leaves nothing."""
    if why := why_not_into(folder):
        raise ConfigError(f"cannot write into {folder}: {why}")


def make_folder(folder: Path) -> None:
    """Makes `folder` where it is not there. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror or error}") from error


def check_file(path: Path) -> None:
    """Raises ConfigError where `path` cannot be written. Its folder has to be there: a mistyped one is not made."""
    try:
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder")
        if path.exists():
            path.open("ab").close()
            return
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    if why := why_not_into(path.parent):
        raise ConfigError(f"cannot write {path}: {why}")


def write_text(path: Path, text: str) -> None:
    """Writes `text` as the file's content. Raises ConfigError as `check_file` does, and for a disk that is full."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
