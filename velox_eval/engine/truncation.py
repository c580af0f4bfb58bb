"""Prompts that are too long lose their middle: beginning and end hold instructions and question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.engine.text import encode_text, read_prompt
from velox_eval.errors import ConfigError


def cut_middle(tokenizer: Any, request: Generate, context_length: int | None) -> tuple[Generate, int]:
    """Returns the request with a prompt that fits, and the tokens left out of its middle (0: none were).

    The raw prompt's tokens, with those the tokenizer adds, may be `request.cut_middle` at most, and so few that with
    the chat template around them they leave room for all of `max_tokens`. Of a longer prompt the first and the last
    half of that are decoded without special tokens and joined, as LongBench's authors do (they set the limit by hand
    for each model; nothing of theirs keeps it within the context). The span of the context moves with the text.
    Raises ConfigError when no prompt would fit.
    """
    if request.cut_middle is None:
        return request, 0
    tokens = encode_text(tokenizer, request.prompt, verbose=False)  # it would warn of a length that is dealt with here
    room = None if context_length is None else context_length - request.max_tokens
    most, shorter = request.cut_middle, request
    while True:
        if most < 2:
            raise ConfigError(
                f"max_tokens={request.max_tokens} and cut_middle={request.cut_middle} leave no room for a prompt in "
                f"the model's context of {context_length}"
            )
        left_out = 0
        if len(tokens) > most:
            shorter = _without_middle(tokenizer, request, tokens, most // 2)
            left_out = len(tokens) - 2 * (most // 2)
        count = len(read_prompt(tokenizer, shorter).tokens)
        if room is None or count <= room:
            return shorter, left_out
        most = min(most, len(tokens)) - (count - room)


def _without_middle(tokenizer: Any, request: Generate, tokens: list[int], half: int) -> Generate:
    head = tokenizer.decode(tokens[:half], skip_special_tokens=True)
    tail = tokenizer.decode(tokens[-half:], skip_special_tokens=True)
    prompt, gone = head + tail, len(request.prompt) - len(head) - len(tail)

    def moved(place: int) -> int:
        return min(place, len(head)) if place <= len(head) + gone else place - gone

    span = None
    if request.context is not None:
        first, last = (moved(place) for place in request.context)
        span = (first, last) if first < last else None
    return replace(request, prompt=prompt, context=span)
