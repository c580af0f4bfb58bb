"""What caches will take: a model x methods x budgets x lengths against a memory, before anything runs.

The arithmetic is the engine's own (velox_eval/engine/admission.py): the same caches, fed arrays that are never
evaluated. The model is its skeleton; no weights are made or read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.session import MethodSession, Prompt, array_bytes
from velox_eval.engine.admission import Admission, LayerShape, footprint, layer_shapes
from velox_eval.engine.memory import machine_memory
from velox_eval.engine.skeleton import Skeleton
from velox_eval.errors import ConfigError, MethodError
from velox_eval.methods import MethodConfig, resolve
from velox_eval.methods.policy import Directions
from velox_eval.mlx import mx
from velox_eval.records.config import DEFAULT_PREFILL_STEP, Frozen

BASELINE = "full"
SETTLED = 3  # chunks without growth after which caches that are left alone grow no more
MOST_CHUNKS = 256
CHARACTERS_A_TOKEN = 4  # where no tokenizer is at hand, for the few words a method says to the model by itself


class Need(Frozen):
    """What one method needs at one length. Bytes of caches; `most` counts sequences in the memory left for them."""

    method: str
    budget: int | None
    keep: float | None
    prompt: int
    answer: int
    batch: int
    allocated_bytes: int  # key and value buffers of one sequence at their largest
    beside_bytes: int  # what the method keeps beside them while decoding
    prefill_bytes: int  # of one sequence while its prompt comes in, both together
    batch_bytes: int  # `batch` sequences at their largest, the last one's prompt coming in beside the others
    fits: bool
    most: int


class Refused(Frozen):
    """A combination that cannot run, and why."""

    method: str
    budget: int | None
    keep: float | None
    reason: str


class Capacity(Frozen):
    """A plan: what it is for, and a row a combination, full first at every length."""

    model: str
    device: str
    dtype: str
    layers: int
    row_bytes: int  # one token in all evicting layers
    memory_bytes: int
    weights_bytes: int
    weights_source: str
    cache_room: int  # memory less weights; negative where the weights alone do not fit
    prefill_step: int
    rows: list[Need]
    refused: list[Refused]
    notes: list[str]


@dataclass(frozen=True)
class Wanted:
    """One method at a budget or a share (neither: its default budget)."""

    method: str
    budget: int | None = None
    keep: float | None = None


class Planner:
    """Works out needs on one model. Raises ConfigError or MethodError where a method cannot run on it."""

    def __init__(self, skeleton: Skeleton, prefill_step: int = DEFAULT_PREFILL_STEP) -> None:
        if prefill_step < 1:
            raise ConfigError(f"prefill_step={prefill_step} must be at least 1")
        self.skeleton = skeleton
        self.prefill_step = prefill_step
        session = MethodSession(skeleton.model, resolve(BASELINE), budget=None)
        with attention_tap(skeleton.model):
            skeleton.model(mx.zeros((1, 2), mx.int32), cache=session.caches)
        self.shapes: list[LayerShape] = layer_shapes(session)
        self.others = session.other_layers
        self.one_at_a_time = session.unbatched
        self.sharing = len(getattr(skeleton.model, "layers", ())) - len(session.caches)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's rows in all evicting layers."""
        return sum(shape.row_bytes for shape in self.shapes)

    def _directions(self, method: MethodConfig) -> Sequence[Directions] | None:
        """Stand-ins of the right shape, for methods whose directions are measured."""
        if not method.variant.needs_directions:
            return None
        return [lambda heads, features: mx.zeros((heads, features)) for _ in self.shapes]

    def _encode(self, text: str) -> list[int]:
        if self.skeleton.encode is not None:
            return self.skeleton.encode(text)
        return [0] * -(-len(text) // CHARACTERS_A_TOKEN)

    def need(self, method: MethodConfig, prompt: int, answer: int, *, batch: int, room: int) -> Need:
        """Returns the needs of `batch` sequences of `prompt` + `answer` tokens, and how many fit into `room` bytes."""
        if method.variant.installed:
            raise ConfigError(
                f"{method.label} keeps its caches itself: what they will hold is only known when they run"
            )
        session = MethodSession(
            self.skeleton.model,
            method,
            budget=method.budget_for(prompt + answer),
            encode=self._encode,
            directions=self._directions(method),
        )
        needs = footprint(session, self.shapes, Prompt(range(prompt)), answer, self.prefill_step)
        held = Admission(None, None, self.shapes).held_bytes([needs])
        largest = max(held, needs.prefill_bytes)  # the last to come in is read while the others are held
        others = self.other_bytes(prompt, answer) if self.others else 0
        most = max(0, (room - largest - others) // (held + others) + 1) if room >= largest + others else 0
        if self.one_at_a_time:
            most = min(most, 1)
        return Need(
            method=method.label,
            budget=method.budget,
            keep=method.keep,
            prompt=prompt,
            answer=answer,
            batch=batch,
            allocated_bytes=needs.allocated_bytes(self.shapes) + others,
            beside_bytes=needs.aux_bytes,
            prefill_bytes=needs.prefill_bytes + others,
            batch_bytes=(batch - 1) * (held + others) + largest + others,
            fits=batch <= most,
            most=most,
        )

    def other_bytes(self, prompt: int, answer: int) -> int:
        """Returns what caches that are left alone will hold, by feeding the skeleton until they do not grow any more.

        Raises ConfigError where they never stop: nothing is extrapolated.
        """
        session = MethodSession(self.skeleton.model, resolve(BASELINE), budget=None)
        alone = [session.caches[int(layer)] for layer in self.others]
        fed, sizes = 0, [0]
        total = prompt + answer - 1
        with attention_tap(self.skeleton.model):
            while fed < total and not (len(sizes) > SETTLED and sizes[-1] == sizes[-SETTLED]):
                if len(sizes) > MOST_CHUNKS:
                    kinds = ", ".join(sorted(set(self.others.values())))
                    raise ConfigError(f"layers with {kinds} still grow after {fed:,} tokens; plan for fewer")
                chunk = min(self.prefill_step, total - fed)
                self.skeleton.model(mx.zeros((1, chunk), mx.int32), cache=session.caches)
                fed += chunk
                sizes.append(sum(array_bytes(cache) for cache in alone))
        return max(sizes)


def plan_capacity(
    skeleton: Skeleton,
    wanted: Sequence[Wanted],
    *,
    prompts: Sequence[int],
    answers: Sequence[int],
    batch: int = 1,
    memory: int | None = None,
    prefill_step: int = DEFAULT_PREFILL_STEP,
) -> Capacity:
    """Returns the plan: every method at every length against `memory` bytes (default: this machine's).

    A method that cannot run so is listed as refused. Raises ConfigError for bad sizes, or when nothing is left.
    """
    for name, sizes in {"prompt": prompts, "answer": answers, "batch": [batch]}.items():
        if min(sizes, default=0) < 1:
            raise ConfigError(f"{name}={min(sizes, default=0)} must be at least 1")
    for each in wanted:  # no method's affair: the same sizes are wrong for all of them
        if each.budget is not None and each.budget < 1:
            raise ConfigError(f"budget={each.budget} must be at least 1")
        if each.keep is not None and not 0 < each.keep <= 1:
            raise ConfigError(f"keep={each.keep:g} must be above 0 and at most 1")
    memory = machine_memory() if memory is None else memory
    planner = Planner(skeleton, prefill_step)
    room = memory - skeleton.weights_bytes
    rows: list[Need] = []
    refused: list[Refused] = []
    ordered = [Wanted(BASELINE), *(each for each in wanted if each.method != BASELINE)]
    configs = []
    for each in ordered:
        try:
            configs.append(resolve(each.method, budget=each.budget, keep=each.keep))
        except ConfigError as error:
            if each.method == BASELINE or len(wanted) == 1:
                raise
            refused.append(Refused(method=each.method, budget=each.budget, keep=each.keep, reason=str(error)))
    for prompt in prompts:
        for answer in answers:
            for method in configs:
                try:
                    rows.append(planner.need(method, prompt, answer, batch=batch, room=room))
                except (ConfigError, MethodError) as error:  # this model or this length is not for it
                    if method.label == BASELINE or len(wanted) == 1:
                        raise
                    reason = f"at {prompt:,} + {answer:,} tokens: {error}"
                    refused.append(Refused(method=method.label, budget=method.budget, keep=method.keep, reason=reason))
    return Capacity(
        model=skeleton.name,
        device=skeleton.device,
        dtype=skeleton.dtype,
        layers=len(planner.shapes),
        row_bytes=planner.row_bytes,
        memory_bytes=memory,
        weights_bytes=skeleton.weights_bytes,
        weights_source=skeleton.weights_source,
        cache_room=room,
        prefill_step=prefill_step,
        rows=rows,
        refused=refused,
        notes=_notes(planner, configs, max(prompts) + max(answers)),
    )


def _notes(planner: Planner, methods: Sequence[MethodConfig], longest: int) -> list[str]:
    """What the figures leave out or take for granted."""
    skeleton = planner.skeleton
    notes = [
        "Not counted: activations, logits, what the array library keeps for reuse. Leave room for them.",
        *skeleton.assumed,
    ]
    if planner.others:
        kinds = ", ".join(
            f"{list(planner.others.values()).count(kind)} {kind}" for kind in sorted(set(planner.others.values()))
        )
        notes.append(
            f"Layers whose own caches stay ({kinds}) are counted as they are, and sequences decode one by one."
        )
    if planner.sharing > 0:
        notes.append(
            f"{planner.sharing} layers read the rows of others and hold none; while a step runs they may keep evicted "
            "rows alive, which is not counted."
        )
    if skeleton.context_length is not None and longest > skeleton.context_length:
        notes.append(f"{longest:,} tokens are more than the model's context of {skeleton.context_length:,}.")
    unknown = [
        m.label for m in methods if m.variant.after_prefill and not m.variant.fits_by_length and not m.variant.passes
    ]
    if unknown:
        notes.append(f"{', '.join(unknown)}: layers share the budget by what the prompt says; counted at equal shares.")
    passing = [m.label for m in methods if m.variant.passes]
    if passing and skeleton.encode is None:
        notes.append(f"{', '.join(passing)}: no tokenizer here; its instructions are taken at 4 characters a token.")
    return notes
