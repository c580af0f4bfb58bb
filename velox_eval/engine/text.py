"""Between text and tokens: prompts in, stop strings out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from velox_eval.caches.session import Prompt
from velox_eval.engine.requests import Generate
from velox_eval.errors import ConfigError


def read_prompt(tokenizer: Any, request: Generate, *, parts: bool = False) -> Prompt:
    """Returns the prompt: the raw text, or the chat template's turns when the request asks for them, in tokens.

    A beginning-of-sequence token that the template or the text already has is not doubled. With `parts` it also says
    which tokens are context and, in a chat, which end the user's turn. Raises ConfigError for a chat without a
    template, and where the parts cannot be told.
    """
    if not request.chat:
        bos = getattr(tokenizer, "bos_token", None)
        special = not (bos and request.prompt.startswith(bos))
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
