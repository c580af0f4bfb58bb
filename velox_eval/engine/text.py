"""Between text and tokens: prompts in, stop strings out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from velox_eval.caches.session import Prompt
from velox_eval.engine.requests import Generate, Text
from velox_eval.errors import ConfigError


def read_prompt(tokenizer: Any, request: Generate, *, parts: bool = False) -> Prompt:
    """Returns the prompt: the raw text, or the chat template's turns when the request asks for them, in tokens.

    A beginning-of-sequence token that the template or the text already has is not doubled. With `parts` it also says
    which tokens are context and, in a chat, which end the user's turn. Raises ConfigError for a chat without a
    template, and where the parts cannot be told.
    """
    if not request.chat:
        special = not _starts_with_bos(tokenizer, request.prompt)
        text, start = request.prompt, 0
        tokens = list(tokenizer.encode(text, add_special_tokens=special))
    else:
        if not tokenizer.has_chat_template:
            raise ConfigError("this model has no chat template, and the task asks for one")
        turns = [{"role": "system", "content": request.system}] if request.system is not None else []
        turns.append({"role": "user", "content": request.prompt})
        tokens, special = list(tokenizer.apply_chat_template(turns, add_generation_prompt=True)), False
        if parts:
            text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
            start = text.rfind(request.prompt)
    if not parts or not tokens or (request.context is None and not request.chat):
        return Prompt(tokens)
    if start < 0:
        raise ConfigError("this model's chat template changes the prompt's text: its parts cannot be told")
    first, last = request.context or (0, len(request.prompt))
    if not 0 <= first < last <= len(request.prompt):
        raise ConfigError(f"context={first}, {last} must lie within the prompt's {len(request.prompt)} characters")
    places = _places(tokenizer, text, tokens, special)
    inside = [i for i, (begin, end) in enumerate(places) if begin < start + last and end > start + first]
    after = sum(begin >= start + len(request.prompt) for begin, _ in places) if request.chat else 0
    return Prompt(tokens, (inside[0], inside[-1] + 1), tokens[len(tokens) - after :])


def _places(tokenizer: Any, text: str, tokens: list[int], special: bool) -> list[tuple[int, int]]:
    """The characters of `text` that each token stands for."""
    if not tokenizer.is_fast:
        raise ConfigError("this model's tokenizer cannot tell where its tokens lie in the text")
    told = tokenizer._tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    if told["input_ids"] != tokens:
        raise ConfigError("this model's tokenizer does not encode the prompt the same way twice")
    return list(told["offset_mapping"])


def cut_prompt(prompt: Prompt, count: int) -> Prompt:
    """Returns the prompt without its first `count` tokens."""
    context = prompt.context
    if context is not None:
        first, last = (max(place - count, 0) for place in context)
        context = (first, last) if first < last else None
    return Prompt(prompt.tokens[count:], context, prompt.turn_end)


def _starts_with_bos(tokenizer: Any, text: str) -> bool:
    bos = getattr(tokenizer, "bos_token", None)
    return bool(bos) and text.startswith(str(bos))


def prefix_token(tokenizer: Any) -> int:
    """Returns the token that stands for an empty context: beginning of text, else end of text."""
    bos = tokenizer.bos_token_id
    return int(tokenizer.eos_token_id if bos is None else bos)


def encode_text(tokenizer: Any, text: Text, *, special: bool = True, **options: Any) -> list[int]:
    """Returns the tokens of a raw text; with `special` those its tokenizer adds, unless the text already begins so.

    `options` go to the tokenizer.
    """
    if not isinstance(text, str):
        return list(text)
    special = special and not _starts_with_bos(tokenizer, text)
    return list(tokenizer.encode(text, add_special_tokens=special, **options))


def encode_pair(tokenizer: Any, context: Text, continuation: Text) -> tuple[list[int], list[int]]:
    """Returns the tokens of a context and of what follows it, split as lm-eval splits them (TemplateLM).

    Both texts are encoded together and cut where the context alone would end; white space at the context's end goes
    with the continuation. An empty context is the model's prefix token.
    """
    if not context:
        tokens = encode_text(tokenizer, continuation, special=False)
        prefix = prefix_token(tokenizer)
        return (tokens[:1], tokens[1:]) if tokens[:1] == [prefix] else ([prefix], tokens)
    if not isinstance(context, str) or not isinstance(continuation, str):
        return encode_text(tokenizer, context), encode_text(tokenizer, continuation, special=False)
    shorter = context.rstrip()
    if not shorter:  # nothing but white space: lm-eval encodes an empty context here, special tokens alone
        return encode_pair(tokenizer, "", context + continuation)
    whole = encode_text(tokenizer, context + continuation)
    tokens = encode_text(tokenizer, shorter)
    return tokens, whole[len(tokens) :]


def encode_windows(tokenizer: Any, text: Text, length: int | None) -> list[tuple[list[int], list[int]]]:
    """Returns a text's tokens as (context, continuation) windows that do not overlap, each token scored once.

    `length` bounds the tokens the model is fed for a window (None: one window). The first window follows the model's
    prefix token, each later one the last token before it; a last one that is not full has as much context as fits.
    These are lm-eval's windows (context_len 1, made disjoint); a prefix token that the tokenizer adds is not doubled.
    """
    tokens, prefix = encode_text(tokenizer, text, special=False), prefix_token(tokenizer)
    if tokens[:1] == [prefix]:
        tokens = tokens[1:]
    size = length or max(len(tokens), 1)
    windows = []
    for start in range(0, len(tokens), size):
        end = min(start + size, len(tokens))
        windows.append((tokens[end - size - 1 : start] if start else [prefix], tokens[start:end]))
    return windows


def stop_position(
    tokenizer: Any, tokens: Sequence[int], stop: Sequence[str], *, after: str | None = None
) -> int | None:
    """Returns where in the decoded text the first stop string begins; None if there is none.

    `after`: only what follows the first place of this text, and white space there, counts. Looks at the tail first:
    only a tail that ends the answer is worth decoding whole.
    """
    wanted = [text for text in stop if text]
    if not wanted:
        return None
    # A token stands for at least one byte, so this many tokens cover the longest stop string.
    tail = tokenizer.decode(list(tokens[-(max(len(text.encode()) for text in wanted) + 4) :]))
    if not any(text in tail for text in wanted):
        return None
    whole = tokenizer.decode(list(tokens))
    start = 0
    if after:
        if after not in whole:
            return None
        start = whole.index(after) + len(after)
        start = len(whole) - len(whole[start:].lstrip())
    found = [position for text in wanted if (position := whole.find(text, start)) >= 0]
    return min(found) if found else None
