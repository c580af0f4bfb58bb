"""Judges' replies by the content judged: the same question to the same judge has one reply, whatever the method."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from velox_eval.errors import StoreError

FILE = "replies.sqlite3"
_WAIT_SECONDS = 60.0
_TABLE = "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, judge TEXT, kind TEXT, reply TEXT NOT NULL)"


class ReplyCache:
    """Replies in a file of `folder`, which is made when needed. Threads and processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def prepare(self) -> None:
        """Makes the folder and the file where they are missing. Raises StoreError when they are of no use."""
        with self._open():
            pass

    def get(self, key: str) -> str | None:
        """Returns the reply of that key; None when there is none yet. Raises StoreError when the file is of no use."""
        with self._open() as file:
            row = file.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def settle(self, key: str, judge: str, kind: str, reply: str) -> str:
        """Stores `reply` unless the key has one, and returns the one that stands: the first of two processes' wins."""
        with self._open() as file:
            file.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?)", (key, judge, kind, reply))
            row = file.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return str(row[0])

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
            with contextlib.closing(file):
                file.execute(_TABLE)
                yield file
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot use the judge's replies in {self.path} ({error}); name another folder") from error
