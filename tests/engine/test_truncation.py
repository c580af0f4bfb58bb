"""Prompts that lose their middle, on a tokenizer of one token a byte: every count is a length of the text."""

from __future__ import annotations

from typing import Any

import pytest

from velox_eval.caches.attention_tap import attention_tap
from velox_eval.caches.session import MethodSession
from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Failure, Generate, Generation
from velox_eval.engine.truncation import cut_middle
from velox_eval.errors import ConfigError
from velox_eval.methods import resolve
from velox_eval.mlx import mx

TEXT = "".join(chr(ord("a") + i % 26) for i in range(100))
TEMPLATE = len("user: \nassistant:")


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Any) -> LoadedModel:
    return load_model(str(tiny_model_dir))


def cut(loaded: LoadedModel, most: int | None, context: int | None = None, **fields: Any) -> tuple[Generate, int]:
    request = Generate("s", fields.pop("prompt", TEXT), fields.pop("max_tokens", 8), cut_middle=most, **fields)
    return cut_middle(loaded.tokenizer, request, context)


def test_beginning_and_end_stay(loaded: LoadedModel) -> None:
    for most, half in ((20, 10), (21, 10), (99, 49), (2, 1), (3, 1)):
        shorter, left_out = cut(loaded, most)
        assert shorter.prompt == TEXT[:half] + TEXT[-half:]
        assert left_out == 100 - 2 * half


def test_what_fits_stays_as_it_is(loaded: LoadedModel) -> None:
    for most, context in ((None, None), (None, 50), (100, None), (1000, 108)):
        shorter, left_out = cut(loaded, most, context)
        assert shorter.prompt == TEXT
        assert left_out == 0


@pytest.mark.parametrize("chat", [False, True])
def test_a_prompt_leaves_room_for_the_whole_answer(loaded: LoadedModel, chat: bool) -> None:
    """Context 64, answer 30: 34 tokens for the prompt, the chat template's among them."""
    shorter, left_out = cut(loaded, 1000, 64, max_tokens=30, chat=chat)
    room = 34 - (TEMPLATE if chat else 0)
    assert len(shorter.prompt) == room // 2 * 2
    assert left_out == 100 - room // 2 * 2
    assert cut(loaded, 6, 64, max_tokens=30, chat=chat)[1] == 94  # what is asked may be less, never more


def test_no_room_at_all_is_said(loaded: LoadedModel) -> None:
    for max_tokens, chat in ((64, False), (63, False), (64 - TEMPLATE, True)):
        with pytest.raises(ConfigError, match=f"max_tokens={max_tokens} and cut_middle=90 leave no room"):
            cut(loaded, 90, 64, max_tokens=max_tokens, chat=chat)


@pytest.mark.parametrize(
    ("span", "moved"),
    [
        ((5, 95), (5, 15)),  # of 10 + 10 characters
        ((0, 100), (0, 20)),
        ((0, 8), (0, 8)),
        ((92, 97), (12, 17)),
        ((5, 50), (5, 10)),
        ((50, 95), (10, 15)),
        ((10, 90), None),  # all of it was the middle
        (None, None),
    ],
)
def test_the_context_moves_with_the_text(loaded: LoadedModel, span: Any, moved: Any) -> None:
    shorter, _ = (
        cut(loaded, 20, context=None)
        if span is None
        else cut_middle(loaded.tokenizer, Generate("s", TEXT, 8, cut_middle=20, context=span), None)
    )
    assert shorter.context == moved
    if span is not None and moved is not None:
        inside = TEXT[slice(*span)]
        kept = shorter.prompt[slice(*moved)]
        assert inside.startswith(kept[:3]) or inside.endswith(kept[-3:])


def test_a_character_cut_in_two_is_no_trouble(loaded: LoadedModel) -> None:
    """Three bytes a character: ten tokens end inside the fourth one, which decodes to a replacement character."""
    shorter, left_out = cut(loaded, 20, prompt="图" * 40)
    assert shorter.prompt == "图图图\ufffd" + "\ufffd图图图"
    assert left_out == 100
    fits, _ = cut(loaded, 1000, 40, prompt="图" * 40, max_tokens=16)
    assert len(loaded.tokenizer.encode(fits.prompt, add_special_tokens=False)) <= 24


def generate(loaded: LoadedModel, method: Any, request: Generate) -> Generation:
    (answer,) = Engine(loaded, method).generate([request])
    assert isinstance(answer, Generation), answer
    return answer


def test_the_engine_counts_what_it_left_out(loaded: LoadedModel) -> None:
    long = Generate("s", TEXT * 60, 40, cut_middle=10_000)  # the tiny model's context is 4096
    got = generate(loaded, resolve("morphkv", budget=32), long)
    assert got.prompt_tokens == 4096 - 40
    assert got.cut_tokens == 6000 - 4056
    assert not got.beyond_context
    assert len(got.tokens) == 40 or got.finish_reason == "eos"
    short = generate(loaded, resolve("full"), Generate("s", TEXT, 4, cut_middle=50))
    assert (short.prompt_tokens, short.cut_tokens) == (50, 50)
    same = generate(loaded, resolve("full"), Generate("s", TEXT[:25] + TEXT[-25:], 4))
    assert same.tokens == short.tokens
    whole = generate(loaded, resolve("full"), Generate("s", TEXT, 4, cut_middle=200))
    assert (whole.prompt_tokens, whole.cut_tokens) == (100, 0)


def test_a_prompt_that_cannot_fit_fails_alone(loaded: LoadedModel) -> None:
    requests = [Generate("bad", TEXT, 4096, cut_middle=50), Generate("good", TEXT, 4, cut_middle=50)]
    got = {outcome.sample_id: outcome for outcome in Engine(loaded, resolve("full")).generate(requests)}
    assert isinstance(got["bad"], Failure)
    assert "leave no room" in got["bad"].error
    assert isinstance(got["good"], Generation)


def test_an_answer_that_must_not_be_empty_begins_with_something_else(loaded: LoadedModel) -> None:
    """The first token may neither be the stop string's nor an end of text; later ones may."""
    asked = Generate("s", TEXT, 6)
    usual = generate(loaded, resolve("full"), asked)
    first = loaded.tokenizer.decode([usual.tokens[0]])
    stopped = generate(loaded, resolve("full"), Generate("s", TEXT, 6, stop=(first,)))
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    going = generate(loaded, resolve("full"), Generate("s", TEXT, 6, stop=(first,), never_empty=True))
    assert going.text
    assert going.tokens[0] not in (usual.tokens[0], *loaded.tokenizer.eos_token_ids)
    free = generate(loaded, resolve("full"), Generate("s", TEXT, 6, never_empty=True))
    assert free.tokens == usual.tokens


def test_kvzip_scores_the_context_that_is_left_and_keeps_the_question(loaded: LoadedModel) -> None:
    """U14 with truncation: the range it scores is what the cut left of the context; other rows all stay."""
    prompt = "Read: " + TEXT * 3 + " Q?"
    span = (6, 306)
    request = Generate("s", prompt, 4, context=span, cut_middle=60)
    engine = Engine(loaded, resolve("kvzip:paper", budget=40))
    assert not engine.method.variant.query_aware
    ready = engine.prepare(request)
    inside = slice(*ready.prompt.context) if ready.prompt.context else slice(0)
    assert loaded.tokenizer.decode(list(ready.prompt.tokens)[inside]) == (TEXT * 3)[:24] + (TEXT * 3)[-27:]
    with attention_tap(loaded.model):
        engine.read(ready)
    session: MethodSession = ready.session
    for cache in session.evicting:
        positions = mx.sort(cache.kept_positions()[0], axis=-1).tolist()
        for head in positions:
            kept = {place for place in head if place >= 0}
            assert kept >= {*range(6), *range(57, 60)}
            assert len(kept) == 40
