"""random: keeps rows by lot. The control that any rule must beat.

A row's worth is drawn once from (`seed`, sample, layer, head, position) by an integer hash, so the same sample keeps
the same rows at any batch size, and no draw is stored. `n_sink` protects first positions (default 0: pure chance).
"""

from __future__ import annotations

import hashlib

from velox_eval.methods.draws import GOLDEN, mixed
from velox_eval.methods.policy import Policy, Rows, State
from velox_eval.methods.spec import MethodSpec, Parameter, Variant
from velox_eval.methods.tova import check_sinks, min_budget_sinks
from velox_eval.mlx import mx


class Random(Policy):
    """Ranks by a hash of where the row is."""

    chooses_together = True

    def initial_state(self) -> State:
        """Returns `salt` uint32 [1, 1, 1], drawn from the seed, the sample and the layer."""
        text = f"{self.params['seed']} {self.layer.seed} {self.layer.index}"
        digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
        return {"salt": mx.array([[[int.from_bytes(digest, "little")]]], mx.uint32)}

    def observe(self, rows: Rows, state: State) -> State:
        """Returns `salts` uint32 [B, H, 1], one a head, in place of `salt`: the number of heads is known now."""
        if "salts" in state:
            return state
        number = mx.arange(1, rows.positions.shape[1] + 1, dtype=mx.uint32)[:, None]
        return {"salts": mixed(state["salt"] + number * GOLDEN)}

    def importance(self, rows: Rows, state: State) -> mx.array:
        """Returns a number in [0, 1) that depends on the row's place alone."""
        drawn = mixed(rows.positions.astype(mx.uint32) * GOLDEN + state["salts"])
        return (drawn >> 8).astype(mx.float32) * 2.0**-24


SPEC = MethodSpec(
    name="random",
    family="control",
    ranks_by="seeded random number of the sample, layer, head and position",
    paper="-",
    code="-",
    variants={
        "adapted": Variant(
            policy=Random,
            parameters=(
                Parameter("seed", 0, "another lot", minimum=0),
                Parameter("n_sink", 0, "first positions never evicted", minimum=0),
            ),
            capacity="budget",
            differs="a control of this project, in no paper",
            min_budget=min_budget_sinks,
            check=check_sinks,
        )
    },
)
