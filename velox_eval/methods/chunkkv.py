"""ChunkKV: keeps and drops whole chunks of neighbouring rows, so that what stays still reads as phrases.

Paper: ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference (Liu et al.,
NeurIPS 2025, arXiv:2502.00299). The authors' press: https://github.com/NVIDIA/kvpress (chunkkv_press.py)

adapted (VeloxQuant-MLX 0.94.15): rows gather attention as in h2o (without fading), or are worth their key's norm
(`score=key_norm`). Over the budget, the rows held after the sinks are split into chunks of `chunk_size`, the last
one shorter, and the chunk of lowest mean goes. There all of it goes at once, so that up to chunk_size - 1 rows of the
budget stay empty, and heads that lost more rows than others pull the others down to their number. Here every head
holds the budget: a chunk that must go is marked, is no longer ranked and gathers nothing, and its rows leave one by
one as new rows need the room. What is not marked are VeloxQuant-MLX's rows, head by head. Its index reuse is off by
default and not offered here; the paper variant has it.

paper: the softmax attention of the last `window` queries of the prompt, summed over the window and over all heads of
the layer, and averaged over each chunk of `chunk_size` rows; the window itself stays. The best chunks stay in every
head, the last of them in part, so that the budget is met exactly (the paper cuts the list of rows at the budget; the
press keeps a share of the chunks). `reuse_layers`: so many layers in a row keep the chunks that the first of them
chose. The prompt is cut once, at its end; decoded rows are all kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods.accumulate import accumulated, key_attention
from velox_eval.methods.policy import Policy, Rows, State, fresh, grouped, placed
from velox_eval.methods.snapkv import PromptWindow
from velox_eval.methods.spec import MethodSpec, Parameter, Value, Variant
from velox_eval.methods.tova import N_SINK, check_sinks
from velox_eval.mlx import mx

MARK = 1e6  # marks are below every worth: -2 MARK for chunks that are leaving, -MARK + rank for those just chosen
NOWHERE = 2**31 - 1  # sorts after every position


class ChunkKV(Policy):
    """Marks whole chunks; marked rows leave first."""

    key_as_query = True
    chooses_together = True
    slot_state = ("mass", "mark", "rank")

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `mass`, `mark`, `rank` [B, H, C]: what each row is worth, below 0 for rows that must go, its place.

        `rank` int32 [B, H, C] is a row's place in time among those that chunks are made of, neither sinks nor marked;
        C for others. It is kept up to date: to sort positions at every step would cost more than all the rest.
        """
        mark = state.get("mark")
        mark = mx.zeros(rows.positions.shape) if mark is None else mx.where(fresh(rows), 0.0, mark)
        leaving, stays = mark < 0, mark >= 0
        if self.params["score"] == "key_norm":
            mass = placed(rows, state.get("mass"), mx.linalg.norm(rows.new_keys.astype(mx.float32), axis=-1))
        else:
            paid = key_attention(rows, stays, some=self.n_sink > 0)  # a sink is never marked
            mass = accumulated(rows, state.get("mass"), paid, first=1.0)
        body = (rows.positions >= self.n_sink) & stays
        held = (rows.positions >= 0).sum(axis=-1, keepdims=True) if rows.any_free else rows.positions.shape[-1]
        missing = held - _budgets(rows) - leaving.sum(axis=-1, keepdims=True)
        if rows.new_slots is None or "rank" not in state:
            return {"mass": mass, **self._marked(mass, leaving, body, missing, rows)}
        return {"mass": mass, **self._marked_one(mass, leaving, body, missing, rows, state["rank"])}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns what each row is worth, or its mark."""
        return mx.where(state["mark"] < 0, state["mark"], state["mass"])

    def _marked(self, mass: mx.array, leaving: mx.array, body: mx.array, missing: mx.array, rows: Rows) -> State:
        """Marks whole chunks, lowest mean first, until `missing` [B, H, 1] rows are marked; from scratch."""
        size, slots = int(self.params["chunk_size"]), mass.shape[-1]
        order = mx.argsort(mx.where(body, rows.positions, NOWHERE), axis=-1)
        rank = mx.argsort(order, axis=-1).astype(mx.int32)
        mean, count = self._chunks(mass, order, body.sum(axis=-1, keepdims=True))
        ranked = mx.argsort(mean, axis=-1)
        place = mx.argsort(ranked, axis=-1)
        upto = mx.take_along_axis(mx.cumsum(mx.take_along_axis(count, ranked, axis=-1), axis=-1), place, axis=-1)
        chosen = mx.where(upto - count < missing, place.astype(mx.float32) - MARK, 0.0)
        marks = mx.where(body, mx.take_along_axis(chosen, rank // size, axis=-1), 0.0)
        left = body & (marks == 0)
        ahead = mx.cumsum(mx.take_along_axis(left, order, axis=-1).astype(mx.int32), axis=-1) - 1
        rank = mx.where(left, mx.take_along_axis(ahead, rank, axis=-1), slots)
        return {"mark": mx.where(leaving, -2 * MARK, marks), "rank": rank.astype(mx.int32)}

    def _marked_one(
        self, mass: mx.array, leaving: mx.array, body: mx.array, missing: mx.array, rows: Rows, rank: mx.array
    ) -> State:
        """Marks one chunk at most, where a row is `missing`: one came in, the newest of all."""
        size, slots = int(self.params["chunk_size"]), mass.shape[-1]
        total = body.sum(axis=-1, keepdims=True).astype(mx.int32)
        rank = mx.where(body, mx.where(fresh(rows), total - 1, rank), slots)
        nothing = mx.zeros((*rank.shape[:2], slots + 1), mx.int32)  # rows outside fall together into the last
        order = mx.put_along_axis(nothing, rank, mx.arange(slots, dtype=mx.int32)[None, None], axis=-1)[..., :slots]
        mean, count = self._chunks(mass, order, total)
        lowest = mx.argmin(mean, axis=-1, keepdims=True).astype(mx.int32)
        first = mx.where(missing > 0, lowest * size, slots + 1)  # nothing ranks there
        goes = mx.take_along_axis(count, lowest, axis=-1)
        chosen = (rank >= first) & (rank < first + goes)
        after = mx.where((rank >= first + goes) & (rank < slots), rank - goes, rank)
        return {
            "mark": mx.where(leaving, -2 * MARK, mx.where(chosen, -MARK, 0.0)),
            "rank": mx.where(chosen, slots, after).astype(mx.int32),
        }

    def _chunks(self, mass: mx.array, order: mx.array, total: mx.array) -> tuple[mx.array, mx.array]:
        """Returns (mean worth [B, H, n], rows int32 [B, H, n]) of the chunks; inf where one has no rows.

        `order` [B, H, C]: the slot of each rank, anything from `total` [B, H, 1] on.
        """
        size, slots = int(self.params["chunk_size"]), mass.shape[-1]
        worth = mx.where(mx.arange(slots) < total, mx.take_along_axis(mass, order, axis=-1), 0.0)
        sums = _chunked(worth, size).sum(axis=-1)
        count = mx.clip(total - mx.arange(sums.shape[-1]) * size, 0, size).astype(mx.int32)
        return mx.where(count > 0, sums / mx.maximum(count, 1), mx.inf), count


class ChunkKVPaper(PromptWindow):
    """Ranks chunks of the prompt by the attention of its last queries; several layers share one choice."""

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns for each row its chunk's worth, as the first layer of those that share the choice has it."""
        own, reuse = self.layer.index, int(self.params["reuse_layers"])
        leader = own - own % reuse
        choice = f"chunk worth of layer {leader}"
        if own == leader:
            self.layer.shared[choice] = self._chunk_worth(rows, state)
        if choice not in self.layer.shared:
            raise MethodError(f"layer {own} waits for the chunks that layer {leader} chooses: cut layers in order")
        worth: mx.array = self.layer.shared[choice]
        return mx.broadcast_to(worth, rows.positions.shape)

    def _chunk_worth(self, rows: Rows, state: State) -> mx.array:
        """Returns [B, 1, C]; the prompt is held whole, so row p lies in slot p."""
        queries = grouped(state["recent_queries"], rows)
        logits = (queries @ rows.keys.astype(mx.float32)[:, :, None].swapaxes(-1, -2)) * rows.scale
        slots = logits.shape[-1]
        seen = mx.arange(slots) <= mx.arange(slots - self.window, slots)[:, None]
        paid = mx.softmax(mx.where(seen, logits, -mx.inf), axis=-1).sum(axis=(1, 2, 3))[:, None]
        size = int(self.params["chunk_size"])
        outside = mx.arange(slots) < slots - self.window
        worth, count = (_chunked(array, size).sum(axis=-1) for array in (paid * outside, outside[None, None]))
        return mx.repeat(worth / mx.maximum(count, 1), size, axis=-1)[..., :slots]


def _chunked(array: mx.array, size: int) -> mx.array:
    """Returns `array` [.., C] as float32 chunks [.., ceil(C / size), size], filled up with zeros."""
    length = array.shape[-1]
    padded = mx.pad(array.astype(mx.float32), [(0, 0)] * (array.ndim - 1) + [(0, -length % size)])
    return padded.reshape(*array.shape[:-1], -1, size)


def _budgets(rows: Rows) -> mx.array | int:
    """Returns the rows each sequence may keep: an int, or int32 [B, 1, 1] where budgets differ."""
    counts = [NOWHERE if budget is None else budget for budget in rows.budgets]
    return counts[0] if len(set(counts)) == 1 else mx.array(counts, mx.int32)[:, None, None]


def _min_budget(params: Mapping[str, Value]) -> int:
    n_sink = int(params["n_sink"])
    return n_sink + 1 if n_sink else int(params["chunk_size"])


def _check(budget: int, params: Mapping[str, Value]) -> None:
    check_sinks(budget, params)
    if budget < _min_budget(params):
        raise ConfigError(
            f"chunk_size={params['chunk_size']} must be at most budget={budget} where n_sink=0: "
            "one chunk would empty the cache"
        )


def _check_paper(budget: int, params: Mapping[str, Value]) -> None:
    if int(params["window"]) >= budget:
        raise ConfigError(f"window={params['window']} must be below budget={budget}: no chunk fits in beside it")


SPEC = MethodSpec(
    name="chunkkv",
    family="attention",
    ranks_by="whole chunks of rows",
    paper="ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference "
    "(Liu et al., NeurIPS 2025, arXiv:2502.00299)",
    code="https://github.com/NVIDIA/kvpress",
    variants={
        "adapted": Variant(
            policy=ChunkKV,
            parameters=(
                N_SINK,
                Parameter("chunk_size", 8, "neighbouring rows that stay or go together", minimum=1),
                Parameter(
                    "score",
                    "attn_mass",
                    "what a row is worth: the attention it gathered, or its key's norm",
                    choices=("attn_mass", "key_norm"),
                ),
            ),
            capacity="budget",
            differs="keys instead of queries; rows go while decoding too; no index reuse; sinks protected; a chunk's "
            "rows leave one by one, as new rows need the room",
            min_budget=_min_budget,
            check=_check,
        ),
        "paper": Variant(
            policy=ChunkKVPaper,
            parameters=(
                Parameter("window", 32, "last queries of the prompt, which rank; their rows stay", minimum=1),
                Parameter("chunk_size", 10, "neighbouring rows that stay or go together", minimum=1),
                Parameter("reuse_layers", 2, "layers in a row that keep the same chunks; 1: each its own", minimum=1),
            ),
            capacity="budget after the prompt, which is held whole until its end; every decoded row is kept",
            differs="the last chunk that stays may stay in part, so that the budget is met exactly",
            min_budget=lambda params: int(params["window"]) + 1,
            check=_check_paper,
            needs_queries=True,
            needs_session=True,
        ),
    },
)
