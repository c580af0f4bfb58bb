"""Between text and tokens: prompts in, stop strings out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError


def encode_prompt(tokenizer: Any, request: Generate) -> list[int]:
    """Returns the prompt's tokens: the raw text, or the chat template's turns when the request asks for them.

    A beginning-of-sequence token that the template or the text already has is not doubled.
    """
    if not request.chat:
        bos = getattr(tokenizer, "bos_token", None)
        special = not (bos and request.prompt.startswith(bos))
        return list(tokenizer.encode(request.prompt, add_special_tokens=special))
    if not tokenizer.has_chat_template:
        raise ConfigError("this model has no chat template, and the task asks for one")
    turns = [{"role": "system", "content": request.system}] if request.system is not None else []
    turns.append({"role": "user", "content": request.prompt})
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True))


def stop_position(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> int | None:
    """Returns where in the decoded text the first stop string begins; None if there is none.

    Looks at the tail first: only a tail that ends the answer is worth decoding whole.
    """
    wanted = [text for text in stop if text]
    if not wanted:
        return None
    # A token stands for at least one byte, so this many tokens cover the longest stop string.
    tail = tokenizer.decode(list(tokens[-(max(len(text.encode()) for text in wanted) + 4) :]))
    if not any(text in tail for text in wanted):
        return None
    whole = tokenizer.decode(list(tokens))
    found = [position for text in wanted if (position := whole.find(text)) >= 0]
    return min(found) if found else None
