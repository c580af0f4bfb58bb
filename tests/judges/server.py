"""A chat-completions server on this machine, in a thread: it says what a test wants and notes what it is asked."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Say:
    """What goes back: a status, headers and a body; `wait` seconds before it."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0


def words(text: Any, **rest: Any) -> Say:
    """A chat completion whose message is `text`."""
    message = {"role": "assistant", "content": text}
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    body = json.dumps({**answer, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    return Say(body=body.encode(), headers={"Content-Type": "application/json"}, **rest)


def refusal(status: int, message: str, **headers: str) -> Say:
    """An error as such servers send it."""
    body = json.dumps({"error": {"message": message, "type": "x", "code": None}})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Say(status, body.encode(), {"Content-Type": "application/json", **named})


@dataclass
class Asked:
    """One request: its path, headers (names in lower case) and JSON body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The last message's text."""
        return str(self.body["messages"][-1]["content"])


class JudgeServer:
    """`say(prompt, number)` decides what the number-th request (from 0) gets."""

    def __init__(self) -> None:
        self.say: Callable[[str, int], Say] = lambda prompt, number: words("yes")
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self.stopping = threading.Event()
        self._at_once = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                with server.counted(
                    Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(raw))
                ) as say:
                    server.stopping.wait(say.wait)
                    with contextlib.suppress(ConnectionError):
                        self.send_response(say.status)
                        for name, value in say.headers.items():
                            self.send_header(name, value)
                        self.send_header("Content-Length", str(len(say.body)))
                        self.end_headers()
                        self.wfile.write(say.body)

            def log_message(self, *_: Any) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def judge(self) -> str:
        """The judge's name for --judge."""
        return f"openai:m@http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def id(self) -> str:
        """The judge's id in records."""
        return f"openai:m@127.0.0.1:{self._http.server_port}#1"

    @contextlib.contextmanager
    def counted(self, asked: Asked) -> Iterator[Say]:
        """Notes a request and yields what to say to it."""
        with self._lock:
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            say = self.say(asked.prompt, len(self.asked) - 1)
        try:
            yield say
        finally:
            with self._lock:
                self._at_once -= 1

    def close(self) -> None:
        """Ends the thread."""
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class DrippingServer:
    """Sends a byte of an endless answer every so often: no read of it takes long, and it never is over."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    while not server.stopping.is_set():
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        time.sleep(0.02)

            def log_message(self, *_: Any) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        self.judge = f"openai:m@http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        """Ends the threads."""
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
