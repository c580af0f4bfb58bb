"""The real model's own attention: what later tokens of a text attend to, and how much of it each method kept.

The full cache reads a text whose topic shifts and comes back; its queries are recorded through the attention tap. A
method reads the text up to a moment, evicting in blocks, all of a session's hooks at work. Recall is the share of the
attention that the tokens after the moment pay to the rows before it, in the full cache, that falls on rows kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from velox_eval.caches.attention import Lent
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.session import Prompt, layer_kinds
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError, MethodError, VeloxEvalError
from velox_eval.mechanism.arms import fitted
from velox_eval.mechanism.regimes import Array
from velox_eval.mechanism.texts import ShiftingText
from velox_eval.methods import MethodConfig
from velox_eval.methods.full import Full
from velox_eval.mlx import mx

SINK_ROWS = 4  # first rows, which take much attention whatever they say: recall is also given without them
STAYS, RETURNS = "stays", "returns"  # the later tokens go on with the second topic; go back to the first
BLOCK = 8  # rows of the prompt evicted together
ORACLE = "oracle"  # the rows that get most of the later attention: what no rule can know


@dataclass(frozen=True)
class Moment:
    """Where a text is cut: `prompt` tokens are cached, of which the first `topic` are the first topic's."""

    text: str
    kind: str
    tokens: tuple[int, ...]
    prompt: int
    later: int
    topic: int


@dataclass(frozen=True)
class Recall:
    """What one method kept of one moment, means over layers and KV heads."""

    method: str
    text: str
    kind: str
    block: int | None
    mass: float  # share of the later tokens' attention to cached rows that falls on kept ones
    beyond_sinks: float  # the same with the first SINK_ROWS rows left out of both
    first_topic: float  # kept rows from the first topic, over kept rows
    rows: float  # rows held


@dataclass(frozen=True)
class Refused:
    """A method that could not run, and why."""

    method: str
    reason: str


class _Recorder(EvictionCache):
    """A cache that keeps everything, and the queries that the tap shows it."""

    def __init__(self) -> None:
        super().__init__(Full({}), None)
        self.queries: mx.array | None = None
        self.scale = 0.0

    def attended(self, queries: mx.array, scale: float, lent: Lent | None = None) -> None:
        """Keeps the queries [1, H_q, S, D] of the one chunk."""
        self.queries, self.scale = queries, scale


def moments(loaded: LoadedModel, texts: Iterable[ShiftingText]) -> list[Moment]:
    """Returns two moments a text: in the middle of the second topic, and at its end, before the first comes back.

    Raises ConfigError for a text that is too long for the model's context.
    """
    made = []
    for text in texts:
        parts = [loaded.tokenizer.encode(text.first)]
        parts += [loaded.tokenizer.encode("\n\n" + part, add_special_tokens=False) for part in (text.second, text.back)]
        first, second, back = (len(part) for part in parts)
        tokens = tuple(int(token) for part in parts for token in part)
        if loaded.context_length is not None and len(tokens) > loaded.context_length:
            raise ConfigError(f"text {text.name!r} has {len(tokens)} tokens, above the model's {loaded.context_length}")
        half = first + second // 2
        made.append(Moment(text.name, STAYS, tokens, half, first + second - half, first))
        made.append(Moment(text.name, RETURNS, tokens, first + second, back, first))
    return made


def attention_mass(loaded: LoadedModel, moment: Moment) -> list[Array]:
    """Returns for each evicting layer [H_kv, prompt]: the attention that the later tokens pay to each cached row.

    Summed over the later tokens and the query heads of a KV head, in float32, as plain softmax attention. Raises
    MethodError for a model whose attention cannot be tapped.
    """
    caches, layers = layer_kinds(loaded.model)
    recorders = [_Recorder() for _ in layers]
    for at, recorder in zip(layers, recorders, strict=True):
        caches[at] = recorder
    fed = moment.tokens[: moment.prompt + moment.later]
    with attention_tap(loaded.model):
        loaded.model(mx.array([list(fed)]), cache=caches)
        mx.eval([recorder.state for recorder in recorders], [recorder.queries for recorder in recorders])
    return [_mass(recorder, moment) for recorder in recorders]


def _mass(recorder: _Recorder, moment: Moment) -> Array:
    if recorder.queries is None or recorder.slots is None:
        raise MethodError("this model's attention cannot be tapped, so its attention cannot be recorded")
    keys = np.array(recorder.slots.first(recorder.rows[0]).keys.astype(mx.float32))[0]
    queries = np.array(recorder.queries.astype(mx.float32))[0, :, moment.prompt :]
    if queries.shape[-1] != keys.shape[-1]:
        raise MethodError("this model's cache holds latents: its attention to rows cannot be told from them")
    grouped = queries.reshape(keys.shape[0], -1, *queries.shape[1:])
    logits = np.einsum("hgqd,hkd->hgqk", grouped, keys, optimize=True) * recorder.scale
    seen = np.arange(keys.shape[1]) <= np.arange(moment.prompt, keys.shape[1])[:, None]
    logits = np.where(seen, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mass: Array = weights.sum(axis=(1, 2))[:, : moment.prompt]
    return mass


def recalls(
    loaded: LoadedModel,
    plan: Sequence[tuple[str, int | None]],
    chosen: Sequence[Moment],
    budget: int,
    *,
    told: Callable[[str], None] = lambda _label: None,
) -> Iterator[Recall | Refused]:
    """Yields what the oracle and every method of `plan` kept at every moment; a method that cannot run says why.

    `plan`: names and how many rows of the prompt go together (None: all of it is one chunk).
    """
    masses = {(moment.text, moment.kind): attention_mass(loaded, moment) for moment in chosen}
    for moment in chosen:
        yield _oracle(masses[moment.text, moment.kind], moment, budget)
    for label, block in plan:
        told(label)
        try:
            yield from _of_method(loaded, fitted(label, budget), chosen, masses, block)
        except VeloxEvalError as error:
            yield Refused(label, str(error))


def _of_method(
    loaded: LoadedModel,
    method: MethodConfig,
    chosen: Sequence[Moment],
    masses: dict[tuple[str, str], list[Array]],
    block: int | None,
) -> Iterator[Recall]:
    longest = max(moment.prompt for moment in chosen)
    engine = Engine(loaded, method, prefill_step=longest, evict_block=block)
    with attention_tap(loaded.model):
        for moment in chosen:
            request = Generate(f"{moment.text} {moment.kind}", "", moment.later)
            ready = engine.place(request, Prompt(moment.tokens[: moment.prompt]), moment.later)
            engine.read(ready)
            kept = [_positions(cache) for cache in ready.session.evicting]
            done = _recall(method.label, kept, masses[moment.text, moment.kind], moment)
            yield replace(done, block=block)
            mx.clear_cache()


def _positions(cache: Any) -> list[Array]:
    """Positions held by each KV head."""
    held = np.array(cache.kept_positions())[0]
    return [head[head >= 0] for head in held]


def _oracle(masses: Sequence[Array], moment: Moment, budget: int) -> Recall:
    best = [[np.argsort(head)[-budget:] for head in mass] for mass in masses]
    return _recall(ORACLE, best, masses, moment)


def _recall(label: str, kept: Sequence[Sequence[Array]], masses: Sequence[Array], moment: Moment) -> Recall:
    mass, beyond, first, rows = [], [], [], []
    for heads, paid in zip(kept, masses, strict=True):
        for positions, row in zip(heads, paid, strict=True):
            late = positions[positions >= SINK_ROWS]
            mass.append(row[positions].sum() / row.sum())
            beyond.append(row[late].sum() / row[SINK_ROWS:].sum())
            first.append((positions < moment.topic).mean())
            rows.append(len(positions))
    means = (float(np.mean(numbers)) for numbers in (mass, beyond, first, rows))
    return Recall(label, moment.text, moment.kind, None, *means)
