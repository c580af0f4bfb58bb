"""Engine: prefill each prompt alone in chunks, then decode sequences together, one cache a layer for all.

Finished sequences leave the batch and waiting ones join it between steps. What a sample's answer is does not
depend on who shares its batch: caches, budgets, random streams and stop rules are per sequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.counted import CountedCache
from velox_eval.caches.session import MethodSession, Prompt, cache_use
from velox_eval.caches.together import stacked
from velox_eval.engine.admission import Admission, Footprint, footprint, layer_shapes, settled
from velox_eval.engine.calibration import find_directions
from velox_eval.engine.memory import half_the_memory
from velox_eval.engine.models import LoadedModel
from velox_eval.engine.requests import EngineReport, Failure, FinishReason, Generate, Generation, Progress, Sampling
from velox_eval.engine.sampling import choose, sample_seed, without
from velox_eval.engine.text import cut_prompt, read_prompt, stop_position
from velox_eval.engine.truncation import cut_middle
from velox_eval.errors import ConfigError, VeloxEvalError
from velox_eval.methods import MethodConfig
from velox_eval.mlx import mx
from velox_eval.mlx_lm import wired_limit
from velox_eval.records.config import DEFAULT_PREFILL_STEP

DEFAULT_BATCH = 8
PROGRESS_SECONDS = 0.1


@dataclass(frozen=True)
class Ready:
    """A request that may start: its tokens, its room, its caches, and what they will need."""

    request: Generate
    prompt: Prompt
    max_tokens: int
    session: MethodSession
    footprint: Footprint | None  # where there is a memory limit
    cut_tokens: int = 0  # tokens of the prompt that are left out

    @property
    def beyond_context(self) -> bool:
        return self.max_tokens < self.request.max_tokens


@dataclass
class _Sequence:
    """One answer being written."""

    ready: Ready
    prefill_seconds: float
    compress_seconds: float
    started: float  # when the first token was there
    tokens: list[int] = field(default_factory=list)
    ended: float = 0.0

    @property
    def request(self) -> Generate:
        return self.ready.request


class Engine:
    """Generates under one method. Raises ConfigError / MethodError when the settings cannot work on this model.

    `prefill_step`: tokens a prompt chunk. `evict_block`: see EvictionCache. `batch_size`: sequences that
    decode together at most; None: as many as DEFAULT_BATCH, one where some layers cannot be batched; "auto": as
    many as `memory_limit` (bytes of caches; default half the machine's memory) allows. A limit holds in any case.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        method: MethodConfig,
        *,
        prefill_step: int = DEFAULT_PREFILL_STEP,
        evict_block: int | None = None,
        batch_size: int | Literal["auto"] | None = 1,
        memory_limit: int | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        sizes = {"prefill_step": prefill_step, "evict_block": evict_block, "memory_limit": memory_limit}
        for name, value in {**sizes, "batch_size": None if batch_size == "auto" else batch_size}.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1")
        self.loaded = loaded
        self.model = loaded.model
        self.method = method
        self.prefill_step = prefill_step
        self.evict_block = evict_block
        self.sampling = sampling or Sampling()
        self._directions = find_directions(loaded, method)
        self._tapped = False  # until the probe has shown it
        probe = self._session(None)
        self.eviction_layers, self.other_layers = tuple(probe.layers), probe.other_layers
        if batch_size is None:
            batch_size = 1 if probe.unbatched else DEFAULT_BATCH
        self.batch_size = batch_size
        if batch_size == "auto" and memory_limit is None:
            memory_limit = half_the_memory()
        self.memory_limit = memory_limit
        if (memory_limit is not None or batch_size != 1) and probe.unbatched:
            raise ConfigError(
                f"batch_size={batch_size}: {probe.unbatched} decode one at a time; use 1, with no memory limit"
            )
        self._tapped = probe.check_tap()
        self.begin()

    def _session(self, budget: int | None, seed: int = 0) -> MethodSession:
        return MethodSession(
            self.model,
            self.method,
            budget=budget,
            evict_block=self.evict_block,
            seed=seed,
            encode=self.encode,
            directions=self._directions,
            tapped=self._tapped,
        )

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of `text` as it stands, nothing added."""
        return list(self.loaded.tokenizer.encode(text, add_special_tokens=False))

    def begin(self) -> None:
        """Starts the report anew."""
        self._batch_sizes: set[int] = set()
        self._decode_tokens = self._prefill_tokens = 0
        self._decode_seconds = self._prefill_seconds = 0.0
        self._peak_bytes = 0

    def report(self) -> EngineReport:
        """Returns what the last `generate` did as a whole, so far."""
        return EngineReport(
            batch_sizes=tuple(sorted(self._batch_sizes)),
            decode_tokens=self._decode_tokens,
            decode_seconds=self._decode_seconds,
            prefill_tokens=self._prefill_tokens,
            prefill_seconds=self._prefill_seconds,
            mlx_peak_bytes=max(self._peak_bytes, int(mx.get_peak_memory())),
            eviction_layers=self.eviction_layers,
            other_layers=self.other_layers,
        )

    def generate(
        self, requests: Iterable[Generate], *, on_step: Callable[[Progress], None] | None = None
    ) -> Iterator[Generation | Failure]:
        """Yields an answer or a Failure per request, each as soon as it is there (not in request order)."""
        self.begin()
        batch = _Batch(self)
        reported = 0.0
        with attention_tap(self.model), wired_limit(self.model):
            self.warm_up()
            waiting = _Waiting(self, requests)
            mx.reset_peak_memory()
            while True:
                yield from self._handed_over(waiting.join(batch), batch)
                if not len(batch):
                    return
                yield from self._handed_over(batch.step(), batch)
                if on_step is not None and time.perf_counter() - reported > PROGRESS_SECONDS:
                    on_step(self._progress(batch))
                    reported = time.perf_counter()

    def _handed_over(self, outcomes: Iterable[Generation | Failure], batch: _Batch) -> Iterator[Generation | Failure]:
        """Passes outcomes on; what their receiver does meanwhile (scoring, a judge's own model) is not counted."""
        for outcome in outcomes:
            left = time.perf_counter()
            self._peak_bytes = max(self._peak_bytes, int(mx.get_peak_memory()))
            yield outcome
            mx.reset_peak_memory()
            batch.wait(time.perf_counter() - left)

    def _progress(self, batch: _Batch) -> Progress:
        speed = self._decode_tokens / self._decode_seconds if self._decode_seconds else None
        held = sum(cache.kept_bytes for cache in batch.caches if isinstance(cache, CountedCache))
        return Progress(len(batch), self._decode_tokens, speed, held)

    def warm_up(self) -> None:
        """Loads weights and compiles kernels, so that no sample pays for it, and settles what decides who may start."""
        session = self._session(None)
        for length in (8, 1, 1):
            mx.eval(self.model(mx.zeros((1, length), mx.int32), cache=session.caches))
        shapes = [] if self.memory_limit is None else layer_shapes(session)
        most = None if self.batch_size == "auto" else self.batch_size
        self.admission = Admission(most, self.memory_limit, shapes)

    def prepare(self, request: Generate) -> Ready:
        """Returns the request with its tokens, room and caches. Raises ConfigError when there is no room for it."""
        context = self.loaded.context_length
        request, cut = cut_middle(self.loaded.tokenizer, request, context)
        prompt = read_prompt(self.loaded.tokenizer, request, parts=not self.method.variant.query_aware)
        count = len(prompt.tokens)
        if not count:
            raise ConfigError("the prompt is empty")
        if request.cut_left and context is not None and count + request.max_tokens > context:
            if request.max_tokens >= context:
                raise ConfigError(f"max_tokens={request.max_tokens} leaves no room in the model's context of {context}")
            cut = count + request.max_tokens - context
            prompt, count = cut_prompt(prompt, cut), count - cut
        room = request.max_tokens if context is None else min(request.max_tokens, context - count)
        if room < 1:
            raise ConfigError(f"the prompt's {count} tokens leave no room in the model's context of {context}")
        return replace(self.place(request, prompt, room), cut_tokens=cut)

    def place(self, request: Generate, prompt: Prompt, room: int) -> Ready:
        """Returns the request with fresh caches for these tokens and `room` more."""
        count = len(prompt.tokens)
        budget = self.method.budget_for(count + room)
        needs = None
        if self.memory_limit is not None:
            needs = footprint(self._session(budget), self.admission.shapes, prompt, room, self.prefill_step)
        return Ready(request, prompt, room, self._session(budget, sample_seed(request.sample_id)), needs)

    def read(self, ready: Ready) -> tuple[mx.array, float]:
        """Feeds the prompt; returns its last token's logits [1, vocabulary] and the seconds the method took then."""
        session, tokens = ready.session, list(ready.prompt.tokens)
        caches = session.caches
        with session.reading():
            # The last token goes alone: its logits are the only ones needed, and no chunk's are computed.
            for start in range(0, len(tokens) - 1, self.prefill_step):
                chunk = tokens[start : min(start + self.prefill_step, len(tokens) - 1)]
                self.model(mx.array([chunk]), cache=caches)
                mx.eval([cache.state for cache in caches])
                mx.clear_cache()
            logits = self.model(mx.array([tokens[-1:]]), cache=caches)[:, -1]
            mx.eval(logits, [cache.state for cache in caches])
        read = time.perf_counter()
        session.after_prefill(ready.prompt)
        mx.eval([cache.state for cache in caches])
        return logits, time.perf_counter() - read

    def _prefill(self, ready: Ready) -> _Sequence:
        began = time.perf_counter()
        logits, compressed = self.read(ready)
        if ready.request.never_empty:
            logits = without(logits, self._ends_at_once(ready.request))
        first = choose(logits, [(ready.request.sample_id, 0)], self.sampling)
        now = time.perf_counter()
        self.count_prefill(len(ready.prompt.tokens), now - began)
        return _Sequence(ready, now - began, compressed, now, first, now)

    def count_prefill(self, tokens: int, seconds: float) -> None:
        """Adds a prompt that was read to the report."""
        self._prefill_tokens += tokens
        self._prefill_seconds += seconds

    def count_decode(self, sequences: int, seconds: float) -> None:
        """Adds a step of so many sequences to the report."""
        self._batch_sizes.add(sequences)
        self._decode_tokens += sequences
        self._decode_seconds += seconds

    def _stop_position(self, sequence: _Sequence, tokens: Sequence[int]) -> int | None:
        request = sequence.request
        return stop_position(self.loaded.tokenizer, tokens, request.stop, after=request.stop_after)

    def _ends_at_once(self, request: Generate) -> list[int]:
        """The tokens that as the first one would end the answer: end of text, and each stop string's last token."""
        stops = [self.encode(text)[-1] for text in request.stop if text]
        return [*self.loaded.tokenizer.eos_token_ids, *stops]

    def _finish_reason(self, sequence: _Sequence) -> FinishReason | None:
        if sequence.tokens[-1] in self.loaded.tokenizer.eos_token_ids:
            return "eos"
        if self._stop_position(sequence, sequence.tokens) is not None:
            return "stop"
        return "length" if len(sequence.tokens) >= sequence.ready.max_tokens else None

    def _finish(self, sequence: _Sequence, caches: Sequence[Any], index: int, reason: FinishReason) -> Generation:
        tokens = sequence.tokens[:-1] if reason == "eos" else sequence.tokens
        text = self.loaded.tokenizer.decode(tokens)
        if reason == "stop":
            text = text[: self._stop_position(sequence, tokens)]
        return Generation(
            sample_id=sequence.request.sample_id,
            prompt_tokens=len(sequence.ready.prompt.tokens),
            text=text,
            tokens=tuple(sequence.tokens),
            finish_reason=reason,
            beyond_context=sequence.ready.beyond_context and reason == "length",
            prefill_seconds=sequence.prefill_seconds,
            compress_seconds=sequence.compress_seconds,
            decode_seconds=sequence.ended - sequence.started,
            cache=cache_use(caches, index),
            cut_tokens=sequence.ready.cut_tokens,
        )


class _Waiting:
    """Requests that have not started; the next one starts when the admission says it fits."""

    def __init__(self, engine: Engine, requests: Iterable[Generate]) -> None:
        self.engine = engine
        self.requests = iter(requests)
        self.next: Ready | None = None
        self.parked: _Sequence | None = None  # prefilled, waits for room

    def join(self, batch: _Batch) -> Iterator[Generation | Failure]:
        """Prefills what fits beside the batch and joins it; yields what fails or is over at once."""
        engine = self.engine
        if self.parked is not None:
            if not self._fits(batch, self.parked.ready):
                return
            batch.join(self.parked)
            self.parked = None
        while len(batch) < engine.admission.most:
            request = self.next.request if self.next is not None else next(self.requests, None)
            if request is None:
                return
            try:
                self.next = self.next or engine.prepare(request)
                if self.next.footprint is not None and not engine.admission.fits(batch.footprints, self.next.footprint):
                    return
                ready, self.next = self.next, None
                sequence = engine._prefill(ready)
                if ready.footprint is not None:
                    needs = settled(ready.session, ready.footprint, ready.max_tokens)
                    sequence.ready = ready = replace(ready, footprint=needs)
            except (VeloxEvalError, ValueError, RuntimeError) as error:  # mlx raises the last two
                self.next = None
                yield Failure.of(request.sample_id, error)
                continue
            reason = engine._finish_reason(sequence)
            if reason is not None:
                yield engine._finish(sequence, ready.session.caches, 0, reason)
            elif self._fits(batch, ready):
                batch.join(sequence)
            else:  # its layers took other shares of the budget than could be known before
                self.parked = sequence
                return

    def _fits(self, batch: _Batch, ready: Ready) -> bool:
        return ready.footprint is None or self.engine.admission.fits(batch.footprints, ready.footprint, prefilled=True)


class _Batch:
    """Sequences that decode together, with one list of caches for all of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sequences: list[_Sequence] = []
        self.caches: list[Any] = []
        self._joining: list[list[Any]] = []  # caches of the sequences that joined since the last step

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def footprints(self) -> list[Footprint]:
        """What the sequences in flight need, where there is a memory limit."""
        return [s.ready.footprint for s in self.sequences if s.ready.footprint is not None]

    def wait(self, seconds: float) -> None:
        """Takes a pause out of the time in flight of every sequence."""
        for sequence in self.sequences:
            sequence.started += seconds
            sequence.ended += seconds

    def join(self, sequence: _Sequence) -> None:
        """Adds a prefilled sequence."""
        self.sequences.append(sequence)
        self._joining.append(sequence.ready.session.caches)

    def _stack(self) -> None:
        """Takes in the caches of all that joined at once: each time, the whole batch is copied."""
        parts = [self.caches, *self._joining] if self.caches else self._joining
        if self._joining:
            self.caches = stacked(parts) if len(parts) > 1 else parts[0]
            self._joining = []

    def step(self) -> list[Generation]:
        """Decodes one token of every sequence; returns the answers that are over."""
        engine = self.engine
        began = time.perf_counter()
        self._stack()
        logits = engine.model(mx.array([[s.tokens[-1]] for s in self.sequences]), cache=self.caches)[:, -1]
        draws = [(s.request.sample_id, len(s.tokens)) for s in self.sequences]
        mx.async_eval([cache.state for cache in self.caches])
        chosen = choose(logits, draws, engine.sampling)
        now = time.perf_counter()
        engine.count_decode(len(self.sequences), now - began)
        finished, staying = [], []
        for index, (sequence, token) in enumerate(zip(self.sequences, chosen, strict=True)):
            sequence.tokens.append(token)
            sequence.ended = now
            reason = engine._finish_reason(sequence)
            if reason is None:
                staying.append(index)
            else:
                finished.append(engine._finish(sequence, self.caches, index, reason))
        if finished:
            self._keep(staying)
        return finished

    def _keep(self, staying: list[int]) -> None:
        self.sequences = [self.sequences[index] for index in staying]
        if not staying:
            self.caches = []
            return
        for cache in self.caches:
            cache.select(staying)
