"""MethodSession: one sequence (or a batch of them) of a model under a method.

It decides which layers get an eviction cache, builds their policies, taps the attention while it is open,
and counts what was held. `make_caches` is the plain door for mlx-lm users.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from mlx.utils import tree_flatten

from velox_eval.caches.attention import lends
from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.counted import CountedCache
from velox_eval.caches.layer_tap import layer_tap
from velox_eval.caches.renumbering import check_rotations
from velox_eval.caches.rewind import rewound
from velox_eval.caches.together import choose_together
from velox_eval.caches.use import CacheUse
from velox_eval.errors import ConfigError, MethodError, ModelError
from velox_eval.methods import MethodConfig, Value, resolve
from velox_eval.methods.policy import Directions, Layer
from velox_eval.methods.rotation import Rotation
from velox_eval.mlx import mx
from velox_eval.mlx_lm import KVCache, make_prompt_cache

PASS_STEP = 256  # tokens of a pass that go through the model together


def make_caches(
    model: Any,
    name: str,
    *,
    budget: int | None = None,
    evict_block: int | None = None,
    **params: Value,
) -> list[Any]:
    """Returns caches for `generate_step(prompt_cache=...)` or `model.make_cache = lambda *_a, **_k: caches`.

    One sequence, one use. Raises ConfigError for bad settings, ModelError when no layer can be replaced,
    MethodError for a method that only a MethodSession can run (it needs queries, or the end of the prompt).
    """
    method = resolve(name, params, budget=budget)
    session = MethodSession(model, method, budget=method.budget, evict_block=evict_block)
    session.refuse_outside()
    return session.caches


def layer_kinds(model: Any) -> tuple[list[Any], list[int]]:
    """Returns the model's own fresh caches and the indices of those an eviction cache can replace.

    Only entries of exactly mlx-lm's KVCache are: windowed, state-space and list caches are bounded or not
    made of rows. Raises ModelError when there is none.
    """
    caches = make_prompt_cache(model)
    layers = [index for index, cache in enumerate(caches) if type(cache) is KVCache]
    if not layers:
        kinds = ", ".join(sorted({type(cache).__name__ for cache in caches}))
        raise ModelError(f"no layer of this model has a plain key-value cache to evict from (found: {kinds})")
    return caches, layers


@dataclass(frozen=True)
class Prompt:
    """A prompt that is in: its tokens, and what methods may know of its parts."""

    tokens: Sequence[int] = ()
    context: tuple[int, int] | None = None  # the tokens before the question that are no instruction; None: all
    turn_end: Sequence[int] = ()  # tokens that end the user's turn and begin the answer's; none in a raw prompt


class MethodSession:
    """Caches of one sequence under a method; a context manager that holds the attention tap.

    `budget` is the sequence's own (see MethodConfig.budget_for); None keeps everything (an installed package's
    cache then has the package's default budget). `encode` turns text into
    tokens, for methods that run text of their own through the model. `directions`: one a layer, for methods that
    need the model calibrated. `tapped`: every layer's attention is known to be shown (see `check_tap`), so that
    methods with keys in place of queries need not compute its logits again.
    """

    def __init__(
        self,
        model: Any,
        method: MethodConfig,
        *,
        budget: int | None,
        evict_block: int | None = None,
        seed: int = 0,
        encode: Callable[[str], list[int]] | None = None,
        directions: Sequence[Directions] | None = None,
        tapped: bool = False,
    ) -> None:
        self.model = model
        self.method = method
        self.budget = budget
        self.encode = encode
        self.directions = directions
        self.prompt = Prompt()  # once it is in
        self.shared: dict[str, Any] = {}  # what the layers' policies see as Layer.shared
        self.caches, self.layers = layer_kinds(model)
        caches = self._installed(evict_block) if method.variant.installed else self._adapted(evict_block, seed)
        for at, cache in zip(self.layers, caches, strict=True):
            self.caches[at] = cache
            cache.tapped = tapped
        self._open = ExitStack()

    def _adapted(self, evict_block: int | None, seed: int) -> Sequence[CountedCache]:
        """An EvictionCache a layer, each with its own policy and its share of the budget."""
        method, budget, count = self.method, self.budget, len(self.layers)
        shares: Sequence[int | None] = [None] * count
        if budget is not None:
            shares = method.variant.layer_budgets(budget, method.params, count)
        modules = list(getattr(self.model, "layers", ()))
        caches = []
        for index, (at, share) in enumerate(zip(self.layers, shares, strict=True)):
            module = modules[at] if len(modules) == len(self.caches) else None
            directions = self.directions[index] if self.directions else None
            layer = Layer(index, count, seed, module, self.shared, directions)
            policy = method.variant.policy(method.params, layer)
            cache = EvictionCache(policy, share, start=budget, evict_block=evict_block)
            cache.read_by_others = len(modules) > len(self.caches)  # the model's later layers have none of their own
            caches.append(cache)
        return caches

    def _installed(self, evict_block: int | None) -> Sequence[CountedCache]:
        """The installed package's own caches; it decides for itself how a chunk is worked through."""
        from velox_eval.caches.veloxquant import bridged_caches

        if evict_block is not None:
            raise ConfigError(f"evict_block={evict_block}: {self.method.label} has its own order of work; leave it out")
        return bridged_caches(self.model, self.layers, self.method.variant.installed, self.method.params, self.budget)

    @property
    def evicting(self) -> list[Any]:
        """The eviction caches, in layer order: EvictionCache, or BridgedCache for the installed package's methods."""
        return [self.caches[layer] for layer in self.layers]

    @property
    def unbatched(self) -> str | None:
        """Returns what keeps several sequences from decoding together; None when nothing does."""
        if self.method.variant.installed:
            return "the installed package's caches"
        kinds = sorted(set(self.other_layers.values()))
        return f"layers with {', '.join(kinds)}" if kinds else None

    def reading(self) -> AbstractContextManager[None]:
        """Returns the context to read the prompt in, for methods that watch the model read."""
        watching = self.method.variant.while_reading
        return watching(self) if watching is not None else nullcontext()

    def watch_layers(self, told: Callable[[int, mx.array, mx.array], None]) -> AbstractContextManager[None]:
        """Returns a context in which `told` sees each evicting layer's hidden states before and after attention."""
        modules = list(getattr(self.model, "layers", ()))
        if len(modules) != len(self.caches):
            raise MethodError(f"{self.method.label}: this model's decoder layers cannot be told from its caches")
        return layer_tap([(modules[layer], self.caches[layer]) for layer in self.layers], told)

    def after_prefill(self, prompt: Prompt | Sequence[int] = ()) -> None:
        """Does what the method does once the prompt is in: passes, layer budgets, the cut."""
        self.prompt = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        if self.method.variant.after_prefill is not None and self.budget is not None:
            self.method.variant.after_prefill(self)
        for cache in self.evicting:
            cache.finish_prompt()
        choose_together(self.caches)

    def run_pass(self, tokens: Sequence[int], after: int) -> None:
        """Runs tokens through the model as if the prompt had ended after `after` tokens; policies observe them.

        The caches are as before afterwards; their peaks count the rows in transit. Raises MethodError where layers
        with caches of their own cannot be taken back to that point.
        """
        if self.other_layers and after < len(self.prompt.tokens):
            kinds = ", ".join(sorted(set(self.other_layers.values())))
            raise MethodError(f"{self.method.label} cannot leave out the question on a model with {kinds} layers")
        caches = [cache if isinstance(cache, EvictionCache) else copy.deepcopy(cache) for cache in self.caches]
        with ExitStack() as stack:
            for cache in self.evicting:
                stack.enter_context(rewound(cache, after))
            for start in range(0, len(tokens), PASS_STEP):
                self.model(mx.array([list(tokens[start : start + PASS_STEP])]), cache=caches)
                mx.eval([cache.state for cache in caches])
                mx.clear_cache()

    def __enter__(self) -> MethodSession:
        self._open.enter_context(attention_tap(self.model))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open.close()

    def refuse_outside(self) -> None:
        """Raises MethodError if the method cannot run outside an open session."""
        if self.method.variant.needs_queries or self.method.variant.needs_session:
            raise MethodError(
                f"{self.method.label} needs the model's queries or the prompt's end: run it in a MethodSession"
            )

    def check_tap(self) -> bool:
        """Returns whether every layer's attention is shown to its cache, where the method has a use for it.

        The session is used up. Raises MethodError when the method needs queries or rotations that this model does
        not show.
        """
        policies = [cache.policy for cache in self.evicting if isinstance(cache, EvictionCache)]
        if any(policy.renumbers for policy in policies):
            check_rotations(self.model, self.layers, [Rotation(policy.layer) for policy in policies])
        if not any(policy.needs_queries or (policy.key_as_query and lends()) for policy in policies):
            return False
        for cache in self.evicting:
            cache.tapped = True
        with self, self.reading():
            for count in (2, 1):  # some models attend in another way when tokens come one by one
                mx.eval(self.model(mx.zeros((1, count), mx.int32), cache=self.caches))
                if any(cache.awaits_queries for cache in self.evicting):
                    self._refuse_unseen()
                    return False
        return True

    def _refuse_unseen(self) -> None:
        unseen = [layer for layer in self.layers if self.caches[layer].awaits_queries]
        if self.method.variant.needs_queries:
            raise MethodError(
                f"{self.method.label} ranks by the model's queries, but the attention of layers {unseen} of this "
                f"model ({type(self.model).__module__}) cannot be tapped; use the adapted variant"
            )

    @property
    def other_layers(self) -> dict[str, str]:
        """Layers whose own cache was left alone, with its class."""
        return {
            str(index): type(cache).__name__
            for index, cache in enumerate(self.caches)
            if not isinstance(cache, CountedCache)
        }


def cache_use(caches: Sequence[Any], sequence: int) -> CacheUse:
    """Returns what one sequence of a batch held, counted from the arrays at this moment.

    Rows are counted from the positions held, not from the settings; other layers' caches count as they are.
    """
    evicting = [cache for cache in caches if isinstance(cache, CountedCache)]
    other = sum(array_bytes(cache) for cache in caches if not isinstance(cache, CountedCache))
    seen = evicting[0].tokens_seen[sequence]
    known = all(cache.positions_known for cache in evicting)
    positions = [np.array(cache.kept_positions()[sequence]) for cache in evicting]
    held = [
        int((array >= 0).sum(axis=-1).max()) if cache.positions_known else cache.rows[sequence]
        for array, cache in zip(positions, evicting, strict=True)
    ]
    rows = sum(int((array >= 0).sum()) for array in positions)
    early = sum(int(((array >= 0) & (array < seen / 10)).sum()) for array in positions)
    peak = sum(cache.peak_rows[sequence] * cache.row_bytes for cache in evicting) + other
    return CacheUse(
        peak_cache_bytes=peak,
        peak_total_bytes=peak + sum(cache.peak_aux_bytes for cache in evicting),
        end_cache_bytes=sum(n * cache.row_bytes for n, cache in zip(held, evicting, strict=True)) + other,
        allocated_cache_bytes=sum(cache.peak_slots * cache.row_bytes for cache in evicting) + other,
        full_cache_bytes=sum(seen * cache.full_row_bytes for cache in evicting) + other,
        kept_tokens=tuple(held),
        tokens_seen=seen,
        evicted_tokens=sum(seen - n for n in held),
        early_share=early / rows if rows and known else None,
        budget=_mean_budget([cache.budgets[sequence] for cache in evicting]),
        reported=_together([cache.reported for cache in evicting]),
    )


def _together(layers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """A method's own counters over its layers: bytes added up, ratios averaged."""
    names = sorted({name for figures in layers for name in figures})
    totals = {name: sum(figures.get(name, 0.0) for figures in layers) for name in names}
    return {name: total / len(layers) if name.endswith("ratio") else total for name, total in totals.items()}


def _mean_budget(shares: Sequence[int | None]) -> int | None:
    """The sequence's budget from its layers' shares; layers that keep everything are not part of it."""
    bounded = [share for share in shares if share is not None]
    return round(sum(bounded) / len(bounded)) if bounded else None


def array_bytes(cache: Any) -> int:
    """Returns the bytes of the arrays a cache of mlx-lm holds, nested ones included."""
    leaves: list[Any] = tree_flatten(cache.state)  # type: ignore[assignment]
    return sum(int(leaf.nbytes) for _, leaf in leaves if isinstance(leaf, mx.array))
