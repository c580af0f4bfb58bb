"""What a model is, by content: the same weights, configuration and tokenizer have the same identity anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

from velox_eval.engine.model_store import cache_directory, file_sha256

# What decides a model's output. Indexes, read-me files and our own manifest do not.
_CONTENT_PATTERNS = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "model*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.*",
    "vocab.json",
    "merges.txt",
    "*.tiktoken",
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def content_sha256(folder: Path) -> str:
    """The SHA-256 over names and content of every file of `folder` that decides the model's output.

    Large files are hashed once: the hub's cache names them by their own hash, for others the hash is remembered by
    path, size and modification time.
    """
    known = _HashCache.read()
    paths = {path for pattern in _CONTENT_PATTERNS for path in folder.glob(pattern)}
    lines = [f"{path.name} {known.sha256(path)}\n" for path in sorted(paths)]
    known.write()
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class _HashCache:
    """Hashes remembered between runs. Losing it costs time only, so an unreadable or unwritable one is no error."""

    def __init__(self, path: Path, entries: dict[str, list[int | str]]) -> None:
        self._path = path
        self._entries = entries
        self._changed = False

    @classmethod
    def read(cls) -> _HashCache:
        path = cache_directory() / "hashes.json"
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            entries = {}
        return cls(path, entries if isinstance(entries, dict) else {})

    def sha256(self, path: Path) -> str:
        real = path.resolve()
        if real.parent.name == "blobs" and _SHA256.fullmatch(real.name):
            return real.name
        stat = real.stat()
        entry = self._entries.get(str(real))
        if isinstance(entry, list) and entry[:2] == [stat.st_size, stat.st_mtime_ns]:
            return str(entry[2])
        digest = file_sha256(real)
        self._entries[str(real)] = [stat.st_size, stat.st_mtime_ns, digest]
        self._changed = True
        return digest

    def write(self) -> None:
        if not self._changed:
            return
        entries = {path: entry for path, entry in self._entries.items() if os.path.exists(path)}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, prefix=".tmp-hashes-", delete=False) as file:
                json.dump(entries, file)
            os.replace(file.name, self._path)  # readers see the old or the new list, never a half
        except OSError:
            return
