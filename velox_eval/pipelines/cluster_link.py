"""The line to a Dask scheduler: what is sent and what comes back, and one way to tell that the scheduler is gone.

A connection can be lost in the middle of any call, and Dask says so by half a dozen kinds of exception; nothing above
this file knows them. No call waits longer than `ASK_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from velox_eval.errors import ClusterError
from velox_eval.pipelines.cluster_connect import ClusterOptions

ASK_SECONDS = 10.0  # for any answer of the scheduler, and for a result on its way home


@dataclass(frozen=True)
class Landing:
    """How a future ended.

    `lost`: cancelled, as all are when the connection goes. `away`: it says it ended, but what it gave is nowhere to be
    had now, as the worker that holds it died or the scheduler is being reached again.
    """

    state: Literal["result", "error", "lost", "away"]
    value: Any = None  # the result, or the error


class Link:
    """A client whose scheduler may go away, and may come back within `options.patience` seconds."""

    def __init__(self, client: Any, options: ClusterOptions) -> None:
        self.where = options.scheduler or "the local cluster"
        self._client = client
        self._connection: Any = None

    @property
    def up(self) -> bool:
        """Whether the scheduler can be reached now."""
        return bool(self._client.status == "running")

    def gone(self) -> ClusterError:
        """Returns the error for a scheduler that does not come back."""
        return ClusterError(
            f"the scheduler at {self.where} is gone; what is done is on record, the same command goes on"
        )

    def submit(self, function: Callable[..., Any], *arguments: Any, key: str, address: str, **options: Any) -> Any:
        """Sends a call to the worker at `address`, and nowhere else; returns its future. Raises ClusterError."""
        with self._told():
            return self._client.submit(
                function, *arguments, key=key, workers=[address], allow_other_workers=False, pure=False, **options
            )

    def drop(self, future: Any) -> None:
        """Cancels what was sent; with the scheduler gone there is nothing to cancel."""
        from distributed.client import ClosedClientError

        try:
            future.cancel()
        except (ClosedClientError, OSError):
            return

    def landing(self, future: Any) -> Landing:
        """Returns how a future ended that said it did. Raises ClusterError."""
        from distributed.client import CancelledError

        try:
            with self._told():
                return Landing("result", future.result(timeout=ASK_SECONDS))
        except CancelledError:
            return Landing("lost")
        except Exception as error:
            if future.status == "error":
                return Landing("error", error)
            if isinstance(error, OSError):  # comm and time-out errors are
                return Landing("away")
            raise

    def listen(self, topic: str, hear: Callable[[Any], None]) -> None:
        """Has what workers say on `topic` handed to `hear`, also by a scheduler that came back. Raises ClusterError."""
        if self._client.scheduler_comm is self._connection:
            return
        self._connection = self._client.scheduler_comm
        with self._told():
            self._client.subscribe_topic(topic, lambda event: hear(event[1]))

    def workers(self) -> dict[str, tuple[str, Mapping[str, Any]]] | None:
        """Returns ident -> address and description of every worker; None while the scheduler is being reached again.

        Raises ClusterError when it is gone.
        """
        deadline = time.monotonic() + ASK_SECONDS
        while self._client.status == "connecting" and time.monotonic() < deadline:
            time.sleep(0.1)
        scheduler = self._client.scheduler  # None once closed
        if self._client.status not in ("running", "connecting") or scheduler is None:
            raise self.gone()
        try:
            with self._told():
                found = self._client.sync(scheduler.identity, callback_timeout=ASK_SECONDS)
        except OSError as error:
            if self._client.status == "connecting":
                return None
            raise self.gone() from error
        return {str(info["id"]): (address, info) for address, info in found["workers"].items()}

    def forgotten(self, future: Any) -> bool:
        """Returns whether nobody is at work on `future`, though it has not ended: a scheduler can lose one.

        False where nobody can be asked.
        """
        scheduler = self._client.scheduler
        if future.done() or scheduler is None:
            return False
        try:
            return not self._client.sync(scheduler.call_stack, keys=[future.key], callback_timeout=ASK_SECONDS)
        except KeyError:  # the scheduler does not know it
            return True
        except OSError:
            return False

    @contextmanager
    def _told(self) -> Iterator[None]:
        from distributed.client import ClosedClientError

        try:
            yield
        except ClosedClientError as error:
            raise self.gone() from error
