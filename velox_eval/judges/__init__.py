"""Judges: who answers whether a text contains what was asked for, and how well it is written."""

from __future__ import annotations

from collections.abc import Callable

from velox_eval.errors import ConfigError, unknown_name
from velox_eval.judges.address import parse_address
from velox_eval.judges.base import DIMENSIONS, Judge, Ratings, Verdict
from velox_eval.judges.cache import ReplyCache
from velox_eval.judges.endpoint import EndpointJudge, Limits
from velox_eval.judges.model import LocalJudge, LocalModel, Reply
from velox_eval.judges.repeats import Panel
from velox_eval.judges.reply import parse_ratings, parse_yes_no
from velox_eval.judges.rules import RuleJudge

__all__ = [
    "DIMENSIONS",
    "JUDGES",
    "Judge",
    "Limits",
    "LocalModel",
    "Panel",
    "Ratings",
    "Reply",
    "ReplyCache",
    "RuleJudge",
    "Verdict",
    "get_judge",
    "parse_ratings",
    "parse_yes_no",
]

JUDGES = ("rules", "mlx:MODEL", "openai:MODEL@URL")


def get_judge(
    name: str,
    *,
    repeats: int = 1,
    replies: ReplyCache | None = None,
    limits: Limits | None = None,
    load_model: Callable[[str], LocalModel] | None = None,
) -> Judge:
    """Returns the judge of that name: one of JUDGES, with a model's name (and address) in place of the capitals.

    It is asked `repeats` times, and the majority or mean decides. `replies` keeps what models reply, `limits` are for
    an endpoint, `load_model` brings a model of `mlx:` into this process. Nothing is loaded or reached yet. Raises
    ConfigError for an unknown name, with the nearest known, and for repeats under 1.
    """
    if repeats < 1:
        raise ConfigError(f"judge_repeats={repeats} must be at least 1")
    kind, colon, rest = name.partition(":")
    judge: Judge
    if name == "rules":
        judge = RuleJudge()
    elif kind == "mlx" and rest:
        if load_model is None:
            raise ConfigError(f"judge {name}: nothing here can load a model; hand in load_model")
        judge = LocalJudge(rest, load_model, replies)
    elif kind == "openai" and colon:
        judge = EndpointJudge(parse_address(rest), replies, limits)
    else:
        raise ConfigError(unknown_name("judge", kind, JUDGES))  # what follows the colon may hold a password
    return judge if repeats == 1 else Panel(judge, repeats)
