"""VeloxLM: requests in, answers out in their order; what a user of lm-eval may ask of a model."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox_eval.engine.engine import Engine
from velox_eval.engine.models import load_model
from velox_eval.engine.requests import Generate
from velox_eval.engine.text import encode_pair, encode_windows
from velox_eval.errors import ConfigError, ModelError
from velox_eval.methods import resolve

ROOT = Path(__file__).resolve().parents[2]
GREEDY = {"until": [], "max_gen_toks": 12, "do_sample": False}
PROMPTS = [
    "Write a diary of three weeks, one entry a week, and start each entry with its week.",
    "Short.",
    "A skyscraper of forty floors: name what is on each floor, from the lobby up to the observation deck.",
    "Menu for a week",
]


def test_importing_the_backend_registers_it_beside_lm_evals_own_models() -> None:
    """U19; and nothing of it needs torch, nor does velox_eval need lm-eval."""
    code = (
        "import sys, velox_eval; assert 'lm_eval' not in sys.modules\n"
        "from velox_eval.lm_eval_backend import VeloxLM\n"
        "from lm_eval.api.registry import get_model, model_registry\n"
        "assert get_model('velox') is VeloxLM\n"
        "assert get_model('dummy').__name__ == 'DummyLM'\n"
        "assert {'hf', 'vllm', 'local-completions'} <= set(model_registry.keys())\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_entry_point_names_the_model() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["lm_eval.models"]["velox"].partition(":")
    assert (module, name) == ("velox_eval.lm_eval_backend", "VeloxLM")


def _letters(text: str) -> list[str]:
    return [c for c in text if c.isascii() and c.isalnum()]


@pytest.mark.parametrize("batch", [1, 3, "auto"])
def test_answers_come_in_the_requests_order(
    velox_lm: Callable[..., Any], instance: Callable[..., Any], batch: Any
) -> None:
    """Requests of different lengths, limits and stops; each answer is what the engine gives to it alone."""
    asked = [
        (prompt, {**GREEDY, "max_gen_toks": 3 + 5 * (i % 3)}) for i, prompt in enumerate([*PROMPTS, *PROMPTS[::-1]])
    ]
    lm = velox_lm(batch_size=batch)
    answers = lm.generate_until([instance(*each) for each in asked], disable_tqdm=True)
    engine = Engine(lm.loaded, resolve("morphkv", budget=32))
    for (prompt, how), answer in zip(asked, answers, strict=True):
        [alone] = engine.generate([Generate("a", prompt, how["max_gen_toks"])])
        assert answer == alone.text  # type: ignore[union-attr]
    assert len(set(answers)) > 3


def test_log_likelihoods_come_in_the_requests_order(velox_lm: Callable[..., Any], instance: Callable[..., Any]) -> None:
    """Documents of a task together and apart, contexts shared and empty, in any order: each pair gets its own."""
    pairs = [(prompt, f" {word}") for word in ("one", "two and more", "x") for prompt in (*PROMPTS, "")]
    lm = velox_lm(batch_size=4)
    alone = {pair: lm.loglikelihood([instance(*pair)], disable_tqdm=True)[0] for pair in pairs}
    assert len({logprob for logprob, _ in alone.values()}) == len(pairs)
    for order in (pairs, pairs[::-1], sorted(pairs)):
        for task in (None, "t"):
            requests = [instance(*pair, doc=i // 3, task=task, idx=i % 3) for i, pair in enumerate(order)]
            for pair, (logprob, greedy) in zip(order, lm.loglikelihood(requests, disable_tqdm=True), strict=True):
                assert logprob == pytest.approx(alone[pair][0], abs=1e-3)
                assert greedy == alone[pair][1]
    texts = [instance(prompt) for prompt in PROMPTS]
    rolled = lm.loglikelihood_rolling(texts, disable_tqdm=True)
    assert rolled == pytest.approx(lm.loglikelihood_rolling(texts[::-1], disable_tqdm=True)[::-1], abs=1e-3)


def test_the_tasks_limit_is_honoured(velox_lm: Callable[..., Any], instance: Callable[..., Any]) -> None:
    """U16."""
    lm = velox_lm()
    request = instance("abc", {"max_gen_toks": 5, "until": [], "do_sample": False})
    [answer] = lm.generate_until([request], disable_tqdm=True)
    found = lm.answers.find("generate_until", [request.args])
    assert (len(found.tokens), found.finish_reason, found.text) == (5, "length", answer)
    default = velox_lm(max_gen_toks=7)
    silent = instance("abc", {"until": []})
    default.generate_until([silent], disable_tqdm=True)
    assert len(default.answers.find("generate_until", [silent.args]).tokens) == 7


def test_stop_strings_as_tasks_write_them(velox_lm: Callable[..., Any], instance: Callable[..., Any]) -> None:
    lm = velox_lm()
    [whole] = lm.generate_until([instance(PROMPTS[0], GREEDY)], disable_tqdm=True)
    stop = whole[4:6]
    for until, expected in (
        (stop, whole[: whole.index(stop)]),
        ([stop, "never there"], whole[: whole.index(stop)]),
        (["", "never there"], whole),
        ("", whole),
        (None, whole),
    ):
        assert lm.generate_until([instance(PROMPTS[0], {**GREEDY, "until": until})], disable_tqdm=True) == [expected]


def test_thinking_is_left_out(velox_lm: Callable[..., Any], instance: Callable[..., Any]) -> None:
    """U18; and a stop string counts once the thinking is over."""
    how = {**GREEDY, "max_gen_toks": 40}
    plain_lm = velox_lm(batch_size=8)
    prompts = [f"{prompt} {i}" for prompt in PROMPTS for i in range(8)]
    wholes = plain_lm.generate_until([instance(prompt, how) for prompt in prompts], disable_tqdm=True)
    # The tiny model writes bytes that are no text: take an answer with a letter that stands alone in its middle.
    prompt, whole, first = next(
        (prompt, whole, place)
        for prompt, whole in zip(prompts, wholes, strict=True)
        for place, c in enumerate(whole)
        if c.isascii()
        and c.isalnum()
        and whole.count(c) == 1
        and _letters(whole[:place])
        and _letters(whole[place:])[1:]
    )
    request, before, stop = instance(prompt, how), _letters(whole[:first])[0], _letters(whole[first:])[1]
    lm, after = velox_lm(think_end_token=whole[first]), whole[first + 1 :].lstrip()
    assert lm.generate_until([request], disable_tqdm=True) == [after]
    ends = min(place for place in (after.find(before), after.find(stop)) if place >= 0)
    stopped = instance(prompt, {**how, "until": [before, stop]})
    assert lm.generate_until([stopped], disable_tqdm=True) == [after[:ends]]
    [cut] = plain_lm.generate_until([stopped], disable_tqdm=True)  # without the mark it ends before
    assert len(cut) < first
    lost = velox_lm(think_end_token="</never>")
    assert lost.generate_until([request], disable_tqdm=True) == [""]
    found = lost.answers.find("generate_until", [request.args])
    assert found.truncated
    assert found.text == ""
    assert velox_lm(think_end_token=65).think_end == lost.tokenizer.decode([65])


def test_samples_depend_on_seed_document_and_repeat_alone(
    velox_lm: Callable[..., Any], instance: Callable[..., Any]
) -> None:
    how = {"until": [], "max_gen_toks": 16, "do_sample": True, "temperature": 2.0}
    requests = [instance(PROMPTS[i], how, doc=i, task="t") for i in (0, 0, 1)]
    repeated = [requests[0], requests[0], requests[2]]
    one = velox_lm(seed=1, batch_size=3).generate_until(repeated, disable_tqdm=True)
    assert one[0] != one[1]
    other = velox_lm(seed=1).generate_until([requests[2], requests[0], requests[0]], disable_tqdm=True)
    assert other == [one[2], one[0], one[1]]
    assert velox_lm(seed=2).generate_until(repeated, disable_tqdm=True)[0] != one[0]
    greedy = velox_lm().generate_until([instance(PROMPTS[0], {**how, "do_sample": False})], disable_tqdm=True)
    [plain] = velox_lm().generate_until([instance(PROMPTS[0], {**GREEDY, "max_gen_toks": 16})], disable_tqdm=True)
    assert greedy == [plain]


def test_a_failing_request_is_an_error_with_its_index(
    velox_lm: Callable[..., Any], instance: Callable[..., Any]
) -> None:
    lm = velox_lm(max_length=64)
    pairs = [instance("a", " b", doc=0, task="t"), instance("a", "x" * 100, doc=1, task="t"), instance("a", " c")]
    with pytest.raises(ModelError, match=r"request 1 \(document 1 of t\) of 3 failed: .*does not fit.*1 failed in all"):
        lm.loglikelihood(pairs, disable_tqdm=True)
    work = [instance("a", GREEDY), instance("b", {**GREEDY, "max_gen_toks": 64})]
    with pytest.raises(ModelError, match=r"generate_until: request 1 of 2 failed: .*max_tokens=64 leaves no room"):
        lm.generate_until(work, disable_tqdm=True)


def test_long_contexts_lose_their_first_tokens_and_say_so(
    velox_lm: Callable[..., Any], instance: Callable[..., Any]
) -> None:
    lm = velox_lm(max_length=64)
    text = PROMPTS[2]
    request = instance(text, GREEDY)
    [answer] = lm.generate_until([request], disable_tqdm=True)
    kept = 64 - GREEDY["max_gen_toks"]
    assert [answer] == lm.generate_until([instance(text[-kept:], GREEDY)], disable_tqdm=True)
    found = lm.answers.find("generate_until", [request.args])
    assert (found.cut_tokens, found.prompt_tokens) == (len(text) - kept, kept)
    [[cut, _], [short, _]] = lm.loglikelihood([instance(text, " yes"), instance(text[-61:], " yes")], disable_tqdm=True)
    assert cut == pytest.approx(short, abs=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    st.text(st.sampled_from(" \naé<s>世"), max_size=8), st.text(st.sampled_from(" \nbü</s>"), min_size=1, max_size=6)
)
def test_texts_are_split_as_lm_eval_splits_them(tiny_model_dir: Path, context: str, continuation: str) -> None:
    from lm_eval.api.model import TemplateLM

    from velox_eval.lm_eval_backend import VeloxLM

    tokenizer = load_model(str(tiny_model_dir)).tokenizer
    lm = object.__new__(VeloxLM)
    lm.tokenizer = tokenizer
    if context.strip():
        assert encode_pair(tokenizer, context, continuation) == TemplateLM._encode_pair(lm, context, continuation)


@pytest.mark.parametrize("length", [1, 5, 16, 40, 100])
def test_windows_are_lm_evals(velox_lm: Callable[..., Any], length: int) -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    lm = velox_lm()
    for text in (PROMPTS[0], PROMPTS[1], PROMPTS[2][:length], PROMPTS[2][: 2 * length]):
        tokens = lm.tok_encode(text)
        theirs = get_rolling_token_windows(tokens, lm.prefix_token_id, length, 1)
        assert encode_windows(lm.tokenizer, text, length) == [make_disjoint_window(pair) for pair in theirs]


def test_what_lm_eval_asks_about_a_model(velox_lm: Callable[..., Any]) -> None:
    lm = velox_lm(method="morphkv:paper", window=8, device="cuda:0", batch_size="auto:4", max_batch_size=3)
    info = lm.get_model_info()
    assert (info["method"], info["variant"], info["budget"]) == ("morphkv", "paper", 32)
    assert info["method_params"]["window"] == 8
    assert info["eviction_layers"] == [0, 1]
    assert info["versions"]["mlx"]
    assert lm.engine_settings["batch_size"] == 3
    assert lm.max_length == 4096
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert lm.apply_chat_template(turns) == "system: Be brief.\nuser: hi\nassistant:"
    assert "messages" in lm.chat_template(True)
    assert len({lm.fingerprint, velox_lm().fingerprint, velox_lm(budget=33).fingerprint}) == 3
    assert velox_lm(batch_size=7).fingerprint == velox_lm().fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"windw": 3}, "windw.*did you mean 'window'"),
        ({"method": "morphvk"}, "did you mean 'morphkv'"),
        ({"budget": 8, "keep": 0.5}, "both given"),
        ({"batch_size": "many"}, "batch_size='many'"),
        ({"max_length": 1}, "max_length=1"),
        ({"memory_limit": "8 bananas"}, "no size"),
        ({"budget": "many"}, "budget='many' is no whole number"),
        ({"seed": 0.5}, "seed=0.5 is no whole number"),
        ({"keep": "half"}, "keep='half' is no number"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    velox_lm: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        velox_lm(**arguments)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"top_k": 5}, "top_k=5 is not supported"),
        ({"max_gen_toks": 0}, "out of bounds"),
        ({"do_sample": True, "temperature": -1}, "out of bounds"),
        ({"until": [3]}, "stop strings"),
    ],
)
def test_generation_arguments_that_would_be_ignored_are_refused(
    velox_lm: Callable[..., Any], instance: Callable[..., Any], how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        velox_lm().generate_until([instance("a", {**GREEDY, **how})], disable_tqdm=True)


@pytest.mark.model
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlx_lm")
def test_full_is_what_mlx_lms_own_evaluator_gives(
    real_model: Any, instance: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same generations on 20 prompts, and log-likelihoods within 1e-3 (contexts without trailing white space)."""
    import mlx_lm.evaluate

    from velox_eval.lm_eval_backend import VeloxLM

    monkeypatch.setattr(mlx_lm.evaluate, "load", lambda *_a, **_k: (real_model.model, real_model.tokenizer))
    theirs = mlx_lm.evaluate.MLXLM("smollm2-135m", batch_size=1)
    ours = VeloxLM("smollm2-135m", method="full", batch_size=4)
    subjects = ("the sea", "a king", "bread", "Paris", "the number 12", "rain", "a horse", "the moon", "iron", "Monday")
    prompts = [f"{start} {what} {end}" for what in subjects for start, end in (("Once", "was"), ("Why is", "so"))]
    how = {"until": ["\n\n"], "max_gen_toks": 8, "do_sample": False}
    requests = [instance(prompt, how, doc=i, task="t") for i, prompt in enumerate(prompts)]
    answers = ours.generate_until(requests, disable_tqdm=True)
    assert answers == theirs.generate_until(requests)
    assert len(set(answers)) >= 15
    pairs = [
        instance(prompt, text, doc=i, task="t", idx=idx)
        for i, prompt in enumerate(prompts[:6])
        for idx, text in enumerate((" there.", " known for a long and colourful history of its own", " 7"))
    ]
    for mine, other in zip(ours.loglikelihood(pairs, disable_tqdm=True), theirs.loglikelihood(pairs), strict=True):
        assert mine[0] == pytest.approx(other[0], abs=1e-3)
        assert mine[1] == other[1]
