"""Exceptions of the library. Only the CLI prints them (one line) and exits.

VeloxEvalError
├── ConfigError   a setting that cannot work: names the value, what was allowed and the next step
├── DataError     a data file or data set that cannot be used: names file, line and field
├── ModelError    a model that cannot be found, loaded or evicted from
├── MethodError   a method that cannot run as asked on this model
├── JudgeError    a judge that cannot be reached or set up
├── ClusterError  a scheduler or workers that cannot be used
└── StoreError    a run folder that cannot be written, resumed or read
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VeloxEvalError(Exception):
    """Base of all errors a user can act on; the message is shown as it is, in one line."""


class ConfigError(VeloxEvalError):
    """A setting that cannot work."""


class DataError(VeloxEvalError):
    """Data that cannot be used."""


class ModelError(VeloxEvalError):
    """A model that cannot be found, loaded or used."""


class MethodError(VeloxEvalError):
    """A method that cannot run as asked on this model."""


class JudgeError(VeloxEvalError):
    """A judge that cannot be reached or set up."""


class ClusterError(VeloxEvalError):
    """A scheduler or workers that cannot be used."""


class StoreError(VeloxEvalError):
    """A run folder that cannot be written, resumed or read."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Message for an unknown name: says the nearest known one and lists all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})"
