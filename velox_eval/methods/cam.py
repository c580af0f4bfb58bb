"""CaM: folds the value of what is evicted into values that stay, instead of dropping it.

Paper: CaM: Cache Merging for Memory-efficient LLMs Inference (Zhang et al., ICML 2024).
Official code: https://github.com/zyxxmu/cam

adapted (VeloxQuant-MLX 0.94.15): rows gather key-as-query attention as in h2o, without fading; the lowest goes, the
first `n_sink` never. Its value is blended into the row, no sink, whose key points most nearly the same way: by their
cosine (`merge=sim_weighted`), half and half (`mean`) or not at all (`drop`). With `merge_gate` it is only blended
with probability (what it gathered) / (what the other gathered); the other then inherits what it gathered. The lots
are VeloxQuant-MLX's own where the sample's seed is 0, in the first layer; there they depend on the place in the
batch and are the same in every layer. Keys are never merged (an option there, off by default). A block of a
prompt is merged at once: what goes is blended, lowest first, into what stays, by what rows gathered before it. A row
that comes in alone has gathered nothing and so is the one to go, unmerged by the gate: once the budget is full, the
adapted rule neither takes in nor merges a decoded row (h2o has `grace` against that), and no lot is drawn for it.

paper: the rule of the authors' code for prompts and summaries (folder cam_hf). The first floor(`start_ratio` x budget)
positions stay, and of the others the newest. When a decoded token pushes a row out, a share 1 / `merge_rows` of its
value is added to each of the `merge_rows` rows after it, with probability (the attention the newest query pays it) /
(the mean it pays to the rows after it), drawn by KV head; the attention of query heads that share one is averaged.
As in that code, rows that a prompt pushes out are dropped. There the row merged is the one after the row that goes
next, kept one token longer; here it is the row that goes. The paper writes accumulated attention where that code has
the newest query's; their code for streaming has it too, with 16 rows and positions inside the cache.
"""

from __future__ import annotations

from velox_eval.methods.accumulate import accumulated_key_attention
from velox_eval.methods.draws import by_head, hashed_uniform, keyed_uniform, stream
from velox_eval.methods.h2o import budget_share
from velox_eval.methods.policy import Policy, Rows, State, latest_attention, placed
from velox_eval.methods.spec import MethodSpec, Parameter, Variant
from velox_eval.methods.tova import N_SINK, check_sinks, min_budget_sinks
from velox_eval.mlx import mx

NOWHERE = 2**31 - 1  # sorts after every position
TINY = 1e-8


class CaM(Policy):
    """Ranks by cumulative key-as-query attention; blends what goes into the most similar row that stays."""

    merges = True
    chooses_together = True
    key_as_query = True
    slot_state = ("mass", "length")

    def initial_state(self) -> State:
        """Returns `streams` int64 [1, 1, 1], where the sequence's draws begin."""
        return {"streams": stream(self.layer, int(self.params["seed"]))}

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `mass` and `length` [B, H, C], what each row gathered and its key's norm."""
        length = mx.linalg.norm(rows.new_keys.astype(mx.float32), axis=-1)
        return {
            "streams": state["streams"],
            "mass": accumulated_key_attention(rows, state.get("mass")),
            "length": placed(rows, state.get("length"), length),
        }

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns the attention each row gathered."""
        return state["mass"]

    def merge(
        self, rows: Rows, state: State, evicted: mx.array, over: mx.array | None
    ) -> tuple[mx.array, mx.array, State]:
        """Returns the rows that took others in, their values, and the state in which they inherit their mass."""
        # A row that came in alone gathered nothing, so what goes with it did neither, and no lot is below 0.
        alone = rows.new_slots is not None
        if self.params["merge"] == "drop" or (self.params["merge_gate"] and alone):
            none = evicted[..., :0]
            return none, rows.values_at(none), state
        mass = state["mass"]
        target, cosine = self._most_similar(rows, state["length"], evicted)
        gone, taker = (mx.take_along_axis(mass, index, axis=-1) for index in (evicted, target))
        merged = self._gate(rows, state, gone, taker)
        if over is not None:
            merged = merged & over
        weight = mx.where(merged, self._weight(cosine), 0.0)
        inherited = mx.where(merged, gone, 0.0)
        values = rows.values_at(evicted).astype(mx.float32)
        if evicted.shape[-1] == 1:
            old = rows.values_at(target)
            new = (1 - weight[..., None]) * old + weight[..., None] * values
            mass = mx.put_along_axis(mass, target, taker + inherited, axis=-1)
            return target, new.astype(old.dtype), {**state, "mass": mass}
        slots = mx.broadcast_to(mx.arange(mass.shape[-1], dtype=mx.int32), mass.shape)
        takes = (target[..., None] == slots[:, :, None]).astype(mx.float32)  # [B, H, k, C]
        left = 1 - takes * weight[..., None]  # of what a row held before, after each that goes
        share = takes * weight[..., None] * mx.cumprod(left, axis=2, reverse=True, inclusive=False)
        new = left.prod(axis=2)[..., None] * rows.values + share.swapaxes(2, 3) @ values
        mass = mass + (takes * inherited[..., None]).sum(axis=2)
        return slots, new.astype(rows.values.dtype), {**state, "mass": mass}

    def _most_similar(self, rows: Rows, length: mx.array, evicted: mx.array) -> tuple[mx.array, mx.array]:
        """Returns (slots int32 [B, H, k], cosines [B, H, k]): of equal ones the oldest; no sink, none that goes."""
        product = rows.products(rows.keys_at(evicted))
        gone = mx.take_along_axis(length, evicted, axis=-1)
        cosine = product / (gone[..., None] * length[:, :, None] + TINY)
        stays = mx.put_along_axis(rows.positions >= self.n_sink, evicted, mx.array(False), axis=-1)
        cosine = mx.where(stays[:, :, None], cosine, -mx.inf)
        best = cosine.max(axis=-1, keepdims=True)
        oldest = mx.where(cosine == best, rows.positions[:, :, None], NOWHERE)
        return mx.argmin(oldest, axis=-1).astype(mx.int32), best[..., 0]

    def _weight(self, cosine: mx.array) -> mx.array | float:
        return 0.5 if self.params["merge"] == "mean" else mx.clip(cosine, 0.0, 1.0)

    def _gate(self, rows: Rows, state: State, gone: mx.array, taker: mx.array) -> mx.array:
        """Returns boolean [B, H, k]: whether each row that goes is merged; the n-th ever to go has the n-th draw."""
        if not self.params["merge_gate"]:
            return mx.full(gone.shape, True)
        chance = mx.where(taker > 0, gone / mx.maximum(taker, 1e-30), (gone > 0).astype(mx.float32))
        numbers = mx.array(_going(rows), mx.int32)[:, None, None] + mx.arange(1 - gone.shape[-1], 1, dtype=mx.int32)
        return keyed_uniform(by_head(state["streams"], gone.shape[1]), numbers) < chance


def _going(rows: Rows) -> list[int]:
    """Returns for each sequence the number of rows that went before the last one that goes now, were it to evict."""
    return [seen - 1 - (budget or 0) for seen, budget in zip(rows.seen, rows.budgets, strict=True)]


class CaMPaper(Policy):
    """Ranks by recency after the first positions; spreads the value of the row that goes over those after it."""

    chooses_together = True
    needs_queries = True
    merges = True

    def initial_state(self) -> State:
        """Returns `streams` int64 [1, 1, 1], where the sequence's draws begin."""
        return {"streams": stream(self.layer, int(self.params["seed"]))}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns each row's position, +inf for the first ones."""
        start = budget_share(rows, float(self.params["start_ratio"]))
        return mx.where(rows.positions < start, mx.inf, rows.positions.astype(mx.float32))

    def merge(
        self, rows: Rows, state: State, evicted: mx.array, over: mx.array | None
    ) -> tuple[mx.array, mx.array, State]:
        """Returns the rows after the one that goes with their share of its value; a prompt's rows are just dropped."""
        if rows.new_slots is None:
            none = evicted[..., :0]
            return none, rows.values_at(none), state
        place = mx.take_along_axis(rows.positions, evicted, axis=-1)
        attention = latest_attention(rows).mean(axis=2)
        after = rows.positions > place
        mean = mx.where(after, attention, 0.0).sum(axis=-1, keepdims=True) / after.sum(axis=-1, keepdims=True)
        chance = mx.take_along_axis(attention, evicted, axis=-1) / mx.maximum(mean, 1e-30)
        merged = hashed_uniform(by_head(state["streams"], place.shape[1]), [place]) < chance
        if over is not None:
            merged = merged & over
        count = min(int(self.params["merge_rows"]), rows.positions.shape[-1])
        slots = mx.argsort(mx.where(after, rows.positions, NOWHERE), axis=-1)[..., :count].astype(mx.int32)
        weight = mx.where(mx.take_along_axis(after, slots, axis=-1) & merged, 1.0 / int(self.params["merge_rows"]), 0.0)
        old = rows.values_at(slots)
        value = rows.values_at(evicted).astype(mx.float32)
        return slots, (old + weight[..., None] * value).astype(old.dtype), state


SEED = Parameter("seed", 0, "other lots for what is merged", minimum=0, maximum=1000)

SPEC = MethodSpec(
    name="cam",
    family="attention",
    ranks_by="cumulative attention; evicted values are merged into kept ones",
    paper="CaM: Cache Merging for Memory-efficient LLMs Inference (Zhang et al., ICML 2024)",
    code="https://github.com/zyxxmu/cam",
    variants={
        "adapted": Variant(
            policy=CaM,
            parameters=(
                N_SINK,
                Parameter(
                    "merge",
                    "sim_weighted",
                    "how a value is blended into another: by cosine of their keys, half and half, or not",
                    choices=("sim_weighted", "mean", "drop"),
                ),
                Parameter("merge_gate", True, "merge by lot, as much as a row gathered; else always"),
                SEED,
            ),
            capacity="budget",
            differs="keys instead of queries; merged into the one most similar row instead of the rows that follow; "
            "evicts what gathered least instead of the oldest; sinks protected",
            min_budget=min_budget_sinks,
            check=check_sinks,
        ),
        "paper": Variant(
            policy=CaMPaper,
            parameters=(
                Parameter("start_ratio", 0.5, "share of the budget that the first positions get", 0.0, 0.99),
                Parameter("merge_rows", 32, "rows after an evicted one that share its value", minimum=1),
                SEED,
            ),
            capacity="budget",
            differs="the row merged is the one that goes, not the next; drawn by KV head; attention of query heads "
            "that share a KV head is averaged",
            needs_queries=True,
        ),
    },
)
