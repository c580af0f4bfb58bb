"""KVzip: keeps the rows that rebuilding the context relies on, whatever will be asked later.

Paper: KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction (Kim et al., NeurIPS 2025,
arXiv:2505.23416). Official code: https://github.com/snu-mllab/KVzip

adapted (VeloxQuant-MLX 0.94.15): no reconstruction pass is run. The kept keys stand in for the queries of the
reconstruction (`probe=context`), or the newest key alone (`probe=latest`, which is TOVA's ranking); a row's
worth is the largest attention any probe pays it. Recomputed every step, also while decoding; the first
`n_sink` positions are protected, no recent window is. The paper runs the model on "repeat the context" once
after prefill, takes the maximum over grouped query heads and keeps everything generated.

paper (the authors' pair-uniform mode): once the prompt is in, the model is asked to repeat its context, chunk by
chunk, each time with the whole context in the cache; what is fed for that leaves the cache again. Per layer, the
queries of a pass attend to the first rows (system prompt), the chunk's rows and the pass's own; a row's worth is the
largest weight over query heads of the group and over queries. Every head keeps its best rows. Rows before the context
(the first `n_sink` where nothing stands before it, as NVIDIA's kvpress does), rows after it (the question) and decoded
rows all stay. A question after the context is left out of the passes, so what is kept does not depend on it; it was
read with the whole context, where the authors read it with the compressed one. They also set one threshold over all
layers and heads; budgets here are equal. In float32; theirs in the model's dtype. The wording of the instructions is
the authors' (model/wrapper.py); a raw prompt ends the instruction as their template for unknown models does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from velox_eval.errors import MethodError
from velox_eval.methods import pairs
from velox_eval.methods.policy import Policy, Rows, State, grouped_logits, newest_key_attention
from velox_eval.methods.spec import MethodSpec, Parameter, Variant
from velox_eval.methods.tova import N_SINK, check_sinks, min_budget_sinks
from velox_eval.mlx import mx

FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with "
LEAD = 8  # tokens of the chunk before, quoted after LATER
RAW_TURN_END = "\n\nAnswer: "


class KVzip(Policy):
    """Ranks by the largest attention received from the probe."""

    chooses_together = True
    key_as_query = True
    slot_state = pairs.SLOT_STATE
    pair_state = pairs.PAIR_STATE

    def observe(self, rows: Rows, state: State) -> State:
        """Returns what every held key pays to every other (velox_eval.methods.pairs); nothing for probe=latest."""
        return state if self.params["probe"] == "latest" else pairs.paired(rows, state)

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the maximum over probe rows of the attention paid to each row."""
        if self.params["probe"] == "latest":
            return newest_key_attention(rows)
        return pairs.largest_share(state)


@dataclass(frozen=True)
class Pass:
    """One reconstruction pass: the tokens before the context, the chunk to repeat, and where the pass's own begin."""

    sinks: int
    start: int
    end: int
    own: int


class KVzipPaper(Policy):
    """Ranks by the largest attention received from the passes; `Layer.shared` says which pass is running."""

    needs_queries = True
    holds_prompt = True
    grows = True
    slot_state = ("reliance",)

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `reliance` [B, H, C]: the largest weight any query of a pass paid to the row, 0 outside the context.

        The prompt itself leaves no trace. Slots are in temporal order: nothing was evicted yet.
        """
        now: Pass | None = self.layer.shared.get("pass")
        if now is None:
            return state
        assert rows.queries is not None
        paid = self._paid(rows, rows.queries, now)
        batch, heads, slots = rows.positions.shape
        old = state.get("reliance")
        reliance = mx.zeros((batch, heads, slots)) if old is None else old
        reliance[..., now.start : now.end] = mx.maximum(reliance[..., now.start : now.end], paid)
        return {"reliance": reliance}

    @staticmethod
    def _paid(rows: Rows, queries: mx.array, now: Pass) -> mx.array:
        """The largest weight of the new queries on each row of the chunk: [B, H, end - start]."""
        parts = [rows.keys[:, :, a:b] for a, b in ((0, now.sinks), (now.start, now.end), (now.own, None))]
        batch, heads, own, _ = parts[2].shape
        new = queries.shape[2]
        logits = grouped_logits(queries, mx.concatenate(parts, axis=2), rows.scale)
        before = now.sinks + now.end - now.start
        seen = mx.arange(before + own)[None] <= mx.arange(before + own - new, before + own)[:, None]
        weights = mx.softmax(mx.where(seen, logits, -mx.inf), axis=-1)
        return weights[..., now.sinks : before].reshape(batch, heads, -1, now.end - now.start).max(axis=2)

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns what the passes paid. Raises MethodError when none was run."""
        if "reliance" not in state:
            raise MethodError("kvzip:paper ranks by passes over the context: run it in a MethodSession")
        return state["reliance"]

    def keep_scores(self, rows: Rows, state: State) -> mx.array:
        """Returns `importance` with +inf outside the context; [B, H, C] float32."""
        reliance = self.importance(rows, state)
        start, end = self.layer.shared["context"]
        return mx.where((rows.positions >= start) & (rows.positions < end), reliance, mx.inf)


def passes(start: int, end: int, chunk: int, own: int) -> Iterator[Pass]:
    """Yields the passes over the context from `start` to `end`; a pass's own tokens follow at `own`."""
    for at in range(start, end, chunk):
        yield Pass(start, at, min(at + chunk, end), own)


def repeat_input(prompt: Sequence[int], now: Pass, encode: Any, turn_end: Sequence[int]) -> list[int]:
    """Returns the tokens of a pass: the instruction, the turn's end, the chunk itself."""
    chunk = list(prompt[now.start : now.end])
    if now.start == now.sinks:
        instruction = encode(FIRST)
    else:
        instruction = encode(LATER) + list(prompt[max(now.start - LEAD, now.sinks) : now.start])
    return [*instruction, *(turn_end or encode(RAW_TURN_END)), *chunk]


def _reconstruction(session: Any) -> Iterator[tuple[Pass, list[int]]]:
    """Yields every pass over the session's prompt with its tokens; none where the budget holds the prompt.

    Raises MethodError when the budget cannot hold what must stay, or the session cannot turn text into tokens.
    """
    prompt, budget = session.prompt, session.budget
    tokens = prompt.tokens
    if budget is None or len(tokens) <= budget:
        return
    start, end = prompt.context or (0, len(tokens))
    start = start or int(session.method.params["n_sink"])
    outside = len(tokens) - (end - start)
    if outside > budget:
        raise MethodError(f"the prompt has {outside} tokens outside the context, which must stay; budget={budget}")
    if session.encode is None:
        raise MethodError("kvzip:paper needs the model's tokenizer: give the MethodSession `encode`")
    session.shared["context"] = (start, end)
    for now in passes(start, end, int(session.method.params["chunk"]), end):
        yield now, repeat_input(tokens, now, session.encode, prompt.turn_end)


def reconstruct(session: Any) -> None:
    """Runs the passes in a MethodSession. Raises MethodError when the budget cannot hold what must stay."""
    for now, tokens in _reconstruction(session):
        session.shared["pass"] = now
        try:
            session.run_pass(tokens, now.own)
        finally:
            del session.shared["pass"]


def pass_sizes(session: Any) -> Iterator[tuple[int, int]]:
    """Yields (rows kept, tokens) of every pass that `reconstruct` would run."""
    for now, tokens in _reconstruction(session):
        yield now.own, len(tokens)


SPEC = MethodSpec(
    name="kvzip",
    family="attention",
    ranks_by="how much rebuilding the context relies on the row (max over the probe)",
    paper="KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction "
    "(Kim et al., NeurIPS 2025, arXiv:2505.23416)",
    code="https://github.com/snu-mllab/KVzip",
    variants={
        "adapted": Variant(
            policy=KVzip,
            parameters=(
                N_SINK,
                Parameter(
                    "probe",
                    "context",
                    "rows that stand in for the reconstruction's queries: all kept keys, or the newest",
                    choices=("context", "latest"),
                ),
            ),
            capacity="budget",
            differs="kept keys instead of reconstruction passes; recomputed every step, generated rows evicted too",
            min_budget=min_budget_sinks,
            check=check_sinks,
        ),
        "paper": Variant(
            policy=KVzipPaper,
            parameters=(
                Parameter("n_sink", 4, "first positions never evicted where no system prompt stands first", minimum=0),
                Parameter("chunk", 2000, "tokens of the context that one pass repeats", minimum=1),
            ),
            capacity="budget + generated; until the passes are done the prompt is held whole, with one pass on top",
            differs="equal budgets for all heads (the authors' pair-uniform); float32 instead of the model's dtype; a "
            "question after the context is read before the context is compressed",
            min_budget=min_budget_sinks,
            check=check_sinks,
            needs_queries=True,
            needs_session=True,
            query_aware=False,
            after_prefill=reconstruct,
            passes=pass_sizes,
        ),
    },
)
