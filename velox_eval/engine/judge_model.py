"""A model as a judge: greedy answers with the full cache, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from velox_eval.engine.engine import Engine
from velox_eval.engine.models import load_model
from velox_eval.engine.requests import Failure, Generate
from velox_eval.judges import LocalModel, Reply
from velox_eval.methods import resolve


def load_judge_model(name: str) -> LocalModel:
    """Returns the model `name` as judges take one. Raises ModelError when it cannot be loaded.

    Prompts go in as the user's turn of its chat template, or as they stand where it has none. A prompt that the
    model has no room for gets a reply without text that says so.
    """
    loaded = load_model(name)
    engine = Engine(loaded, resolve("full"), batch_size=None)
    chat = bool(loaded.tokenizer.has_chat_template)

    def generate(prompts: Sequence[str], max_tokens: int) -> Iterator[tuple[int, Reply]]:
        requests = [Generate(str(index), prompt, max_tokens, chat=chat) for index, prompt in enumerate(prompts)]
        for outcome in engine.generate(requests):
            if isinstance(outcome, Failure):
                yield int(outcome.sample_id), Reply(None, f"the judge cannot read this: {outcome.error}")
            else:
                yield int(outcome.sample_id), Reply(outcome.text)

    return LocalModel(loaded.content_sha256, generate)
