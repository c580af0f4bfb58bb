"""Judges that are language models: they are asked in words, their replies are kept by content and read strictly."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from velox_eval.errors import JudgeError, ModelError
from velox_eval.judges.base import Judge, Ratings, Verdict
from velox_eval.judges.cache import ReplyCache
from velox_eval.judges.prompts import PROMPT_VERSION, contains_prompt, rating_prompt
from velox_eval.judges.reply import parse_ratings, parse_yes_no
from velox_eval.metrics.thinking import without_thinking
from velox_eval.records.config import canonical_json, text_sha256

LONGEST_REPLY = 20_000  # characters; what comes after them is dropped


@dataclass(frozen=True)
class Question:
    """One thing asked of a model: its kind, the texts it is about, and how it is put."""

    kind: str
    texts: tuple[str, ...]
    prompt: str
    max_tokens: int


@dataclass(frozen=True)
class Reply:
    """A model's words; `text` is None when it gave none to this question, with the reason."""

    text: str | None
    reason: str = ""


class ModelJudge(Judge):
    """Asks a model. Identical questions get one reply: the first one is kept in `replies` and read again ever after."""

    max_tokens: ClassVar[Mapping[str, int]]  # by kind of question

    def __init__(self, replies: ReplyCache | None = None) -> None:
        self._cache = replies
        self._turn = 0

    @property
    def rates(self) -> bool:
        """True."""
        return True

    def prepare(self) -> None:
        """Makes sure that replies can be kept. Raises StoreError when they cannot."""
        if self._cache:
            self._cache.prepare()

    def repeat(self, turn: int) -> ModelJudge:
        """Returns this judge as it answers when asked for the `turn`-th time, counted from 0."""
        other = copy.copy(self)
        other._turn = turn
        return other

    def contains(self, passage: str, description: str) -> Verdict:
        """Returns the model's yes or no. Raises JudgeError when no reply comes."""
        return self.contains_all([(passage, description)])[0]

    def contains_all(self, questions: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Returns the model's yes or no to every (passage, description), in order."""
        asked = [self._question("contains", contains_prompt(*texts), texts) for texts in questions]
        return [
            Verdict(None, reply.reason) if reply.text is None else parse_yes_no(without_thinking(reply.text).answer)
            for reply in self._replies(asked)
        ]

    def rate(self, instruction: str, response: str) -> Ratings:
        """Returns the model's points. Raises JudgeError when no reply comes."""
        texts = (instruction, response)
        [reply] = self._replies([self._question("rate", rating_prompt(*texts), texts)])
        return Ratings(None, reply.reason) if reply.text is None else parse_ratings(without_thinking(reply.text).answer)

    def _question(self, kind: str, prompt: str, texts: tuple[str, str]) -> Question:
        return Question(kind, texts, _encodable(prompt), self.max_tokens[kind])

    @abstractmethod
    def _ask(self, questions: Sequence[Question]) -> Iterable[tuple[Question, Reply]]:
        """Asks the model; yields each reply as it comes. Raises JudgeError when the model cannot be asked."""

    def _replies(self, questions: Sequence[Question]) -> list[Reply]:
        found: dict[str, Reply] = {}
        missing: dict[str, Question] = {}
        keys = [self._key(question) for question in questions]
        for key, question in zip(keys, questions, strict=True):
            known = self._cache.get(key) if self._cache and key not in missing else None
            if known is None:
                missing[key] = question
            else:
                found[key] = Reply(known)
        if missing:
            for question, reply in self._ask(list(missing.values())):
                key = self._key(question)
                found[key] = self._kept(key, question, reply)
        return [found[key] for key in keys]

    def _kept(self, key: str, question: Question, reply: Reply) -> Reply:
        if reply.text is None:
            return reply
        text = _encodable(reply.text[:LONGEST_REPLY])
        return Reply(self._cache.settle(key, self.id, question.kind, text) if self._cache else text)

    def _key(self, question: Question) -> str:
        return text_sha256(canonical_json([self.id, question.kind, list(question.texts), self._turn]))


@dataclass(frozen=True)
class LocalModel:
    """A model in this process: its content, and what writes greedy answers.

    `generate(prompts, max_tokens)` yields (index of the prompt, reply), each as soon as it is there.
    """

    content_sha256: str
    generate: Callable[[Sequence[str], int], Iterator[tuple[int, Reply]]]


class LocalJudge(ModelJudge):
    """A model that `load` brings into this process, asked in batches, greedy, with its full cache."""

    max_tokens: ClassVar = {"contains": 8, "rate": 256}

    def __init__(self, name: str, load: Callable[[str], LocalModel], replies: ReplyCache | None = None) -> None:
        super().__init__(replies)
        self.name = name
        self._load = load

    @cached_property
    def _model(self) -> LocalModel:
        try:
            return self._load(self.name)
        except ModelError as error:
            raise JudgeError(f"judge mlx:{self.name}: {error}") from error

    @property
    def id(self) -> str:
        """`mlx:NAME@CONTENT#VERSION`; loads the model, whose content is part of it."""
        path = Path(self.name)
        name = path.name if path.is_absolute() or path.exists() else self.name
        return f"mlx:{name}@{self._model.content_sha256[:12]}#{PROMPT_VERSION}"

    def prepare(self) -> None:
        """Loads the model. Raises JudgeError when that cannot be done, StoreError when replies cannot be kept."""
        super().prepare()
        _ = self._model

    def repeat(self, turn: int) -> ModelJudge:
        """Returns this judge for the `turn`-th time, with the same model in memory."""
        _ = self._model
        return super().repeat(turn)

    def _ask(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Reply]]:
        for limit in sorted({question.max_tokens for question in questions}):
            asked = [question for question in questions if question.max_tokens == limit]
            for index, reply in self._model.generate([question.prompt for question in asked], limit):
                yield asked[index], reply


def _encodable(text: str) -> str:
    """`text` with what UTF-8 has no bytes for (half a surrogate pair) as a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")
