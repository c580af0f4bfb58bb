"""A judge behind an OpenAI-compatible address (`/chat/completions`), through the openai client (extra `judge`).

The client repeats what may go better the next time (no connection, 408, 409, 429, 5xx, a time limit) with growing
pauses, or those that the server's Retry-After asks for. What it says of a failure is told in one line without the key.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, ClassVar

from velox_eval.errors import JudgeError
from velox_eval.extras import required
from velox_eval.judges.address import KEY_VARIABLE, OPENAI_KEY_VARIABLE, Address, find_key
from velox_eval.judges.cache import ReplyCache
from velox_eval.judges.model import LONGEST_REPLY, ModelJudge, Question, Reply
from velox_eval.judges.prompts import PROMPT_VERSION

_LONGEST_BODY = 4 * 2**20  # bytes of an answer that are read
_TOO_LONG = f"the answer is longer than {_LONGEST_BODY} bytes"
_SHOWN = 200
_TRIES_AT_START = 2
_PROBE = "Reply with one word: yes."


@dataclass(frozen=True)
class Limits:
    """How an endpoint is asked: requests at a time, seconds a request may take, repeats of a failed one."""

    concurrency: int = 8
    timeout: float = 120.0
    retries: int = 5


class Endpoint:
    """One model at one address. Threads may share it; no more than `limits.concurrency` requests run at a time."""

    def __init__(self, address: Address, limits: Limits) -> None:
        self.address = address
        self.limits = limits
        self._key, self._key_name = find_key(address)
        self._room = threading.BoundedSemaphore(limits.concurrency)
        self._lock = threading.Lock()
        self._open: Any = None

    def ask(self, prompt: str, max_tokens: int, *, retries: int | None = None) -> Reply:
        """Returns the model's reply, at temperature 0; a Reply without text when it refuses this very question.

        Raises JudgeError when it cannot be asked, with the reason and without the key.
        """
        openai = _openai()
        limit = "max_completion_tokens" if self.address.is_openai else "max_tokens"
        client = self._client().with_options(max_retries=self.limits.retries if retries is None else retries)
        failure: str | Reply
        try:
            with self._room:
                raw = client.chat.completions.with_raw_response.create(
                    model=self.address.model,
                    messages=[{"role": "user", "content": prompt}],
                    temperature=0,
                    extra_body={limit: max_tokens},
                )
            return self._read(raw.http_response.content)
        except openai.APIStatusError as error:
            failure = self._refused(error)
        except openai.APITimeoutError:
            failure = f"no whole reply within {self.limits.timeout:g} s"
        except openai.APIConnectionError as error:
            failure = f"no reply: {self._clean(_root_cause(error))}"
        if isinstance(failure, Reply):
            return failure
        # Not chained: the server's words, which may repeat the key, are in the exception behind this one.
        raise self.error(failure) from None

    def close(self) -> None:
        """Ends what runs and frees the connections; the next `ask` opens new ones."""
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    def _client(self) -> Any:
        with self._lock:
            if self._open is None:
                self._open = _client(self.address.url, self._key, self.limits)
                weakref.finalize(self, self._open.close)  # no connection outlives the judge
            return self._open

    def error(self, why: str) -> JudgeError:
        """Returns the exception that says what is wrong with this model at this address."""
        return JudgeError(f"judge {self.address.model} at {self.address.url}: {why}")

    def _refused(self, error: Any) -> str | Reply:
        """What an HTTP status says: of the address, key or model a sentence, of this very question a Reply."""
        status, said = error.status_code, self._clean(_message(error))
        if status in (401, 403):
            if self._key_name:
                return f"the server refuses the key in ${self._key_name} ({status})"
            return f"the server wants a key ({status}): set ${KEY_VARIABLE} (or ${OPENAI_KEY_VARIABLE} over https)"
        if status == 404:
            return f"no such model or address (404): {said}"
        if status in (400, 413, 422):
            return Reply(None, f"the judge refused the question ({status}): {said}")
        if status == 429:
            return f"still too many requests, or no quota, after {self.limits.retries} repeats (429): {said}"
        return f"status {status}: {said}"

    def _read(self, body: bytes) -> Reply:
        try:
            answer = json.loads(body)
            message = answer["choices"][0]["message"]
            text = message.get("content")
        except (ValueError, RecursionError, TypeError, KeyError, IndexError, AttributeError):
            shown = self._clean(body[:1000].decode("utf-8", "replace"))
            raise self.error(f"its answer is no chat completion: {shown!r}") from None
        if text is None:
            return Reply("")  # a refusal: the model was asked and had nothing to say
        if not isinstance(text, str):
            raise self.error(f"its answer's content is no text: {self._clean(json.dumps(text))!r}")
        return Reply(self._without_key(text[:LONGEST_REPLY]))

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    def _clean(self, text: str) -> str:
        """A server's words in one short line, safe to print and store."""
        plain = "".join(c if c.isprintable() else " " for c in self._without_key(text))
        return " ".join(plain.split())[:_SHOWN]


class EndpointJudge(ModelJudge):
    """A model at an address, asked several questions at a time."""

    max_tokens: ClassVar = {"contains": 1024, "rate": 4096}  # room for models that think first

    def __init__(self, address: Address, replies: ReplyCache | None = None, limits: Limits | None = None) -> None:
        super().__init__(replies)
        self._endpoint = Endpoint(address, limits or Limits())

    @property
    def id(self) -> str:
        """`openai:MODEL@HOST#VERSION`."""
        address = self._endpoint.address
        return f"openai:{address.model}@{address.host}#{PROMPT_VERSION}"

    @property
    def parallel(self) -> int:
        """Requests that may run at a time."""
        return self._endpoint.limits.concurrency

    def prepare(self) -> None:
        """Asks one short question, so that a wrong address, model or key shows now.

        Raises JudgeError then, and StoreError when replies cannot be kept.
        """
        super().prepare()
        tries = min(_TRIES_AT_START, self._endpoint.limits.retries)
        reply = self._endpoint.ask(_PROBE, self.max_tokens["contains"], retries=tries)
        if reply.text is None:
            raise self._endpoint.error(reply.reason)

    def _ask(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Reply]]:
        workers = ThreadPoolExecutor(min(self.parallel, len(questions)), thread_name_prefix="judge")
        try:
            asked = {workers.submit(self._endpoint.ask, q.prompt, q.max_tokens): q for q in questions}
            for future in as_completed(asked):
                yield asked[future], future.result()
        except KeyboardInterrupt:
            self._endpoint.close()
            raise
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


def _openai() -> Any:
    return required("openai", "judge", "a judge at an address", JudgeError)


def _client(url: str, key: str, limits: Limits) -> Any:
    openai = _openai()
    base: Any = openai.DefaultHttpxClient

    class Bounded(base):  # type: ignore[misc]  # openai is an extra: its types are not always here
        """Reads no more of an answer than could be one, for no longer than a request may take."""

        def send(self, request: Any, *, stream: bool = False, **rest: Any) -> Any:
            ends = time.monotonic() + limits.timeout
            response = super().send(request, stream=True, **rest)
            if stream:
                return response
            body = bytearray()
            try:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > _LONGEST_BODY:
                        raise openai.APIConnectionError(message=_TOO_LONG, request=request)
                    if time.monotonic() > ends:
                        raise openai.APITimeoutError(request=request)
            finally:
                response.close()
            dropped = ("content-encoding", "content-length", "transfer-encoding")  # true of the bytes on the wire
            headers = [(name, value) for name, value in response.headers.items() if name.lower() not in dropped]
            return type(response)(response.status_code, headers=headers, content=bytes(body), request=request)

    return openai.OpenAI(
        base_url=url,
        api_key=key or "none",
        timeout=limits.timeout,
        max_retries=limits.retries,
        http_client=Bounded(timeout=limits.timeout, follow_redirects=False),
    )


def _message(error: Any) -> str:
    """The server's own sentence, wherever it put it."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        said = inner.get("message") if isinstance(inner, dict) else inner
        return said if isinstance(said, str) else json.dumps(body)
    return str(body or error.response.text or error.response.reason_phrase)


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
