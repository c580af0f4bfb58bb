"""What every request cost, kept beside lm-eval's own response cache so that a resumed evaluation still knows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from velox_eval.caches.use import CacheUse
from velox_eval.engine.requests import EngineReport, Generation, ScoredPairs
from velox_eval.errors import ConfigError

_CONFIGURATION = "velox-eval configuration"
_COST = "velox-eval cost "


def request_key(kind: str, asked: Sequence[Sequence[Any]]) -> str:
    """Returns the hex SHA-256 of a document's requests: kind and arguments."""
    return hashlib.sha256(json.dumps([kind, [list(args) for args in asked]], default=str).encode()).hexdigest()


class AnswerLog:
    """Outcomes by what was asked, and what the engine did for each task.

    With a response cache in use, outcomes are in its file too. `info` says in words what `fingerprint` stands for.
    """

    def __init__(self, fingerprint: str, info: Mapping[str, Any]) -> None:
        self.fingerprint = fingerprint
        self.info = info
        self.reports: dict[str | None, EngineReport] = {}
        self._outcomes: dict[str, Generation | ScoredPairs] = {}
        self._stored: Any = None  # the cache's table, a dictionary on disk

    def use(self, cache_hook: Any) -> None:
        """Takes the response cache behind lm-eval's hook.

        lm-eval's keys hold the request alone: a cache that another configuration filled would answer for this one.
        Raises ConfigError for such a cache.
        """
        table = getattr(cache_hook, "dbdict", None)
        if table is None:
            self._stored = None
            return
        mine = {"configuration_sha256": self.fingerprint, **{name: self.info[name] for name in _SHOWN}}
        theirs = table.get(_CONFIGURATION)
        if theirs is None and len(table):
            raise ConfigError(
                f"the response cache {table.filename} holds answers of another model or backend, and lm-eval cannot "
                "tell them apart; give another --use_cache path"
            )
        if theirs is not None and theirs.get("configuration_sha256") != self.fingerprint:
            raise ConfigError(
                f"the response cache {table.filename} holds answers of another configuration ({_in_words(theirs)}; now "
                f"{_in_words(mine)}); give another --use_cache path"
            )
        if theirs is None:
            table[_CONFIGURATION] = mine
        self._stored = table

    def keep(self, kind: str, asked: Sequence[Sequence[Any]], outcome: Generation | ScoredPairs) -> None:
        """Notes what came of a document's requests."""
        key = request_key(kind, asked)
        self._outcomes[key] = outcome
        if self._stored is not None:
            self._stored[_COST + key] = json.dumps(asdict(outcome))

    def find(self, kind: str, asked: Sequence[Sequence[Any]]) -> Generation | ScoredPairs | None:
        """Returns what came of a document's requests, now or in an earlier session; None if it is not known."""
        key = request_key(kind, asked)
        if key not in self._outcomes and self._stored is not None and _COST + key in self._stored:
            self._outcomes[key] = _restored(kind, json.loads(self._stored[_COST + key]))
        return self._outcomes.get(key)

    def add_report(self, task: str | None, report: EngineReport) -> None:
        """Adds what an engine run did for a task."""
        before = self.reports.get(task)
        self.reports[task] = report if before is None else _added(before, report)


_SHOWN = ("pretrained", "method", "variant", "budget", "keep")


def _in_words(configuration: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={configuration.get(name)}" for name in _SHOWN if configuration.get(name) is not None)


def _restored(kind: str, fields: dict[str, Any]) -> Generation | ScoredPairs:
    use = fields.pop("cache")
    cache = CacheUse(**{**use, "kept_tokens": tuple(use["kept_tokens"])})
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Generation(**plain, cache=cache) if kind == "generate_until" else ScoredPairs(**plain, cache=cache)


def _added(one: EngineReport, other: EngineReport) -> EngineReport:
    """Two runs of an engine as one."""
    return EngineReport(
        batch_sizes=tuple(sorted({*one.batch_sizes, *other.batch_sizes})),
        decode_tokens=one.decode_tokens + other.decode_tokens,
        decode_seconds=one.decode_seconds + other.decode_seconds,
        prefill_tokens=one.prefill_tokens + other.prefill_tokens,
        prefill_seconds=one.prefill_seconds + other.prefill_seconds,
        mlx_peak_bytes=max(one.mlx_peak_bytes, other.mlx_peak_bytes),
        eviction_layers=other.eviction_layers,
        other_layers=other.other_layers,
    )
