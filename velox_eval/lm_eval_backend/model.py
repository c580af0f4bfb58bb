"""VeloxLM: lm-eval's requests to our engine, under one eviction method."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from jinja2 import TemplateError
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from velox_eval.engine.engine import Engine
from velox_eval.engine.likelihood import Likelihood
from velox_eval.engine.models import load_model
from velox_eval.engine.requests import Failure, Generate, Generation, LogLikelihood, Sampling, ScoredPairs
from velox_eval.engine.text import encode_text, prefix_token
from velox_eval.errors import ConfigError, ModelError
from velox_eval.lm_eval_backend.answers import AnswerLog
from velox_eval.lm_eval_backend.settings import (
    GenerationSettings,
    batch_setting,
    check_whole,
    fingerprint,
    generation_settings,
    with_max_length,
)
from velox_eval.methods import Value, resolve
from velox_eval.records.config import DEFAULT_PREFILL_STEP
from velox_eval.runs.environment import package_versions

_LOG = logging.getLogger(__name__)
DEFAULT_MAX_LENGTH = 2048  # lm-eval's, for a model that does not say


@register_model("velox")
class VeloxLM(TemplateLM):  # type: ignore[misc]
    """lm-eval's model interface on the engine.

    `pretrained`: a model as velox-eval names it. `method`, `budget`, `keep` and any parameter of the method as in
    `velox-eval run`. `max_length`: the model's context unless given; what is longer loses its first tokens.
    `max_gen_toks`: for tasks that name none. `think_end_token`: what ends a model's thinking (text or token id); the
    answer is what follows, nothing if a limit came first. `seed`: of sampling. `device` is accepted and ignored: the
    model runs where the array library runs. Raises VeloxEvalError for settings that cannot work.
    """

    backend: ClassVar[str] = "causal"

    def __init__(
        self,
        pretrained: str = "smollm2-135m",
        *,
        method: str = "morphkv",
        budget: int | None = None,
        keep: float | None = None,
        prefill_step: int = DEFAULT_PREFILL_STEP,
        evict_block: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        memory_limit: int | str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        think_end_token: str | int | None = None,
        enable_thinking: bool | None = None,
        seed: int = 0,
        device: str | None = None,
        **params: Value,
    ) -> None:
        super().__init__()
        check_whole(budget=budget, prefill_step=prefill_step, evict_block=evict_block, max_length=max_length)
        check_whole(max_gen_toks=max_gen_toks, seed=seed)
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int | float)):
            raise ConfigError(f"keep={keep!r} is no number: a share above 0, up to 1")
        self.pretrained = str(pretrained)
        self.method = resolve(method, params, budget=budget, keep=keep)
        self.loaded = with_max_length(load_model(self.pretrained), max_length)
        if self.loaded.context_length is None:
            self.loaded = with_max_length(self.loaded, DEFAULT_MAX_LENGTH)
        self.tokenizer = self.loaded.tokenizer
        size, limit = batch_setting(batch_size, max_batch_size, memory_limit)
        self.engine_settings: dict[str, Any] = {
            "prefill_step": prefill_step,
            "evict_block": evict_block,
            "batch_size": size,
            "memory_limit": limit,
        }
        self.engine = Engine(self.loaded, self.method, **self.engine_settings)
        self.seed = int(seed)
        self.max_gen_toks = int(max_gen_toks)
        self.think_end = (
            self.tokenizer.decode([think_end_token]) if isinstance(think_end_token, int) else think_end_token
        )
        self.template_settings = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        how = {"prefill_step": prefill_step, "evict_block": evict_block, "max_gen_toks": self.max_gen_toks}
        self.fingerprint = fingerprint(self.loaded, self.method, {**how, "think_end": self.think_end})
        self.answers = AnswerLog(self.fingerprint, self.get_model_info())

    # What lm-eval asks about the model.

    @property
    def eot_token_id(self) -> int:
        """Returns the token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Returns the token that stands for an empty context."""
        return prefix_token(self.tokenizer)

    @property
    def max_length(self) -> int:
        """Returns the tokens the model can see."""
        return int(self.loaded.context_length or DEFAULT_MAX_LENGTH)

    @property
    def tokenizer_name(self) -> str:
        """Returns a name that tells tokenizers apart, for lm-eval's cache of requests."""
        return f"{self.pretrained.replace('/', '__')}-{self.loaded.content_sha256[:12]}"

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Returns the batch sizes that decoded."""
        sizes = {size for report in self.answers.reports.values() for size in report.batch_sizes}
        return dict(enumerate(sorted(sizes)))

    def get_model_info(self) -> dict[str, Any]:
        """Returns what the results file says about model and method."""
        method, loaded = self.method, self.loaded
        return {
            "pretrained": self.pretrained,
            "model_sha256": loaded.content_sha256,
            "model_dtype": loaded.dtype,
            "model_route": loaded.route,
            "model_device": loaded.device,
            "max_length": self.max_length,
            "method": method.spec.name,
            "variant": method.variant_name,
            "method_params": dict(method.params),
            "method_differs": method.variant.differs,
            "budget": method.budget,
            "keep": method.keep,
            "prefill_step": self.engine_settings["prefill_step"],
            "evict_block": self.engine_settings["evict_block"],
            "eviction_layers": list(self.engine.eviction_layers),
            "other_layers": dict(self.engine.other_layers),
            "versions": package_versions(method.spec.name),
            "configuration_sha256": self.fingerprint,
        }

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_how: Any) -> list[int]:
        """Returns the tokens of a text; what the tokenizer adds is not added to a text that begins with it."""
        if add_special_tokens is None:
            return encode_text(self.tokenizer, string)
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the turns as the model's template writes them; raises ConfigError for a model that has none.

        A template that refuses a system turn gets the turns without it, and a warning, as lm-eval's own backends do.
        """
        if not self.tokenizer.has_chat_template:
            raise ConfigError(f"{self.pretrained} has no chat template; leave --apply_chat_template out")
        how = {
            "tokenize": False,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
            **self.template_settings,
        }
        try:
            return str(self.tokenizer.apply_chat_template(chat_history, **how))
        except TemplateError:
            turns = [turn for turn in chat_history if turn["role"] != "system"]
            if len(turns) == len(chat_history):
                raise
            _LOG.warning("%s: the chat template takes no system turn; it is left out", self.pretrained)
            return str(self.tokenizer.apply_chat_template(turns, **how))

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Takes lm-eval's response cache; raises ConfigError for one that holds another configuration's answers."""
        self.answers.use(cache_hook)
        super().set_cache_hook(cache_hook)

    # The three kinds of request.

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns the answers, in the requests' order. Raises ModelError naming the first request that failed."""
        settings = [
            generation_settings(request.args[1], max_tokens=self.max_gen_toks, seed=self.seed) for request in requests
        ]
        groups: dict[tuple[str | None, Sampling], list[int]] = {}
        for index, (request, how) in enumerate(zip(requests, settings, strict=True)):
            groups.setdefault((request.task_name, how.sampling), []).append(index)
        answers: dict[int, str] = {}
        failures: dict[int, str] = {}
        names = _names(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests") as bar:
            for (task, sampling), members in groups.items():
                self.engine.sampling = sampling
                place = {names[index]: index for index in members}
                work = [self._generate(names[index], requests[index], settings[index]) for index in members]
                for outcome in self.engine.generate(work):
                    index = place[outcome.sample_id]
                    bar.update()
                    if isinstance(outcome, Failure):
                        failures[index] = outcome.error
                        continue
                    answer = self._answer(outcome)
                    answers[index] = answer.text
                    self.answers.keep("generate_until", [requests[index].args], answer)
                    self.cache_hook.add_partial("generate_until", requests[index].args, answer.text)
                self.answers.add_report(task, self.engine.report())
        _refuse_failures("generate_until", requests, failures)
        return [answers[index] for index in range(len(requests))]

    def _generate(self, name: str, request: Any, how: GenerationSettings) -> Generate:
        return Generate(
            name, request.args[0], how.max_tokens, stop=how.stop, stop_after=self.think_end or None, cut_left=True
        )

    def _answer(self, found: Generation) -> Generation:
        """The answer without its think trace; empty where a limit ended the thinking."""
        if not self.think_end:
            return found
        _, mark, answer = found.text.rpartition(self.think_end)
        if mark:
            return replace(found, text=answer.lstrip())
        return replace(found, text="") if found.truncated else found

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns (log-probability of the continuation, whether it is the greedy one), in the requests' order.

        Raises ModelError naming the first request that failed.
        """
        found = self._score("loglikelihood", requests, disable_tqdm=disable_tqdm, rolling=False)
        return [(logprob, greedy) for logprob, greedy in found]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-probabilities of whole texts, in the requests' order. Raises as `loglikelihood`."""
        found = self._score("loglikelihood_rolling", requests, disable_tqdm=disable_tqdm, rolling=True)
        return [logprob for logprob, _ in found]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_how: Any
    ) -> list[tuple[float, bool]]:
        pairs = [LogLikelihood(str(at), ((tuple(a), tuple(b)),)) for at, (_, a, b) in enumerate(requests)]
        found: dict[int, ScoredPairs] = {}
        for outcome in Likelihood(self.loaded, self.method, **self.engine_settings).measure(pairs):
            if isinstance(outcome, Failure):
                raise ModelError(f"request {outcome.sample_id}: {outcome.error}")
            found[int(outcome.sample_id)] = outcome
        return [(found[at].logprobs[0], found[at].greedy[0]) for at in range(len(requests))]

    def _score(self, kind: str, requests: list[Any], *, disable_tqdm: bool, rolling: bool) -> list[tuple[float, bool]]:
        """Scores the requests, a document's together, a task's in one engine run."""
        tasks: dict[str | None, dict[Any, list[int]]] = {}
        for index, request in enumerate(requests):
            known = request.task_name is not None and request.doc_id is not None
            documents = tasks.setdefault(request.task_name, {})
            documents.setdefault(request.doc_id if known else f"request {index}", []).append(index)
        found: dict[int, tuple[float, bool]] = {}
        failures: dict[int, str] = {}
        engine = Likelihood(self.loaded, self.method, **self.engine_settings)
        with tqdm(total=len(requests), disable=disable_tqdm, desc=f"Running {kind} requests") as bar:
            for task, documents in tasks.items():
                members = list(documents.values())
                work = [
                    LogLikelihood(str(at), tuple(_pair(requests[index], rolling) for index in indexes), rolling)
                    for at, indexes in enumerate(members)
                ]
                for outcome in engine.measure(work):
                    indexes = members[int(outcome.sample_id)]
                    bar.update(len(indexes))
                    if isinstance(outcome, Failure):
                        failures |= dict.fromkeys(indexes, outcome.error)
                        continue
                    self.answers.keep(kind, [requests[index].args for index in indexes], outcome)
                    for index, logprob, greedy in zip(indexes, outcome.logprobs, outcome.greedy, strict=True):
                        found[index] = (logprob, greedy)
                        result = logprob if rolling else (logprob, greedy)
                        self.cache_hook.add_partial(kind, requests[index].args, result)
                self.answers.add_report(task, engine.report())
        _refuse_failures(kind, requests, failures)
        return [found[index] for index in range(len(requests))]


def _pair(request: Any, rolling: bool) -> tuple[str, str]:
    return ("", request.args[0]) if rolling else (request.args[0], request.args[1])


def _names(requests: Sequence[Any]) -> list[str]:
    """A name a request, which its draws depend on: task, document and repeat, whatever else is asked beside it."""
    seen: dict[str, int] = {}
    names = []
    for index, request in enumerate(requests):
        known = request.task_name is not None and request.doc_id is not None
        name = f"{request.task_name}/{request.doc_id}/{request.idx}" if known else f"request {index}"
        seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}/{seen[name]}")
    return names


def _refuse_failures(kind: str, requests: Sequence[Any], failures: Mapping[int, str]) -> None:
    if not failures:
        return
    first = min(failures)
    request = requests[first]
    where = f" (document {request.doc_id} of {request.task_name})" if request.task_name is not None else ""
    raise ModelError(
        f"{kind}: request {first}{where} of {len(requests)} failed: {failures[first]}; {len(failures)} failed in all"
    )
