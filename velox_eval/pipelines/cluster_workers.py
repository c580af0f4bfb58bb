"""Who may work: every worker is asked what it has before it gets an order, and refused by name where it differs."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from velox_eval.errors import ClusterError
from velox_eval.pipelines import cluster_worker
from velox_eval.pipelines.cluster_connect import RESOURCE, ClusterOptions
from velox_eval.pipelines.cluster_flights import Worker
from velox_eval.pipelines.matrix import SweepPlan

_ASK_SECONDS = 10.0  # for a list of workers
SILENCE_SECONDS = 20.0  # after which a worker is asked whether it is at work


class Workers:
    """The workers of a scheduler as this sweep sees them.

    The first one that is asked sets what a model's content must be; package versions and code are those of this
    process.
    """

    def __init__(
        self,
        client: Any,
        options: ClusterOptions,
        plan: SweepPlan,
        inbox: queue.SimpleQueue[tuple[str, Any]],
        note: Callable[[str], None],
    ) -> None:
        self.client = client
        self.options = options
        self.inbox = inbox
        self.note = note
        self._models = plan.suite.models
        self._methods = tuple(sorted({run.options.method for run in plan.runs}))
        self._expected: dict[str, str] = cluster_worker.fingerprint((), self._methods)
        self._known: dict[str, Worker] = {}  # by ident
        self._asked: dict[str, Any] = {}  # ident -> future
        self._reasons: dict[str, str] = {}
        self._last_seen = time.monotonic()

    def ready(self) -> list[Worker]:
        """Returns the workers that may have orders."""
        return [worker for worker in self._known.values() if worker.state == "ready"]

    def look(self) -> set[str]:
        """Asks the scheduler who is there; returns the idents of those who are gone.

        Raises ClusterError when the scheduler is gone, or when nobody could be used for too long.
        """
        found = self._listed()
        gone = self._known.keys() - found.keys()
        for ident in gone:
            del self._known[ident]
            self._asked.pop(ident, None)
        for ident, (address, info) in found.items():
            if ident not in self._known:
                self._meet(Worker(address, ident, str(info.get("name", address))), info)
        self._ask_again()
        if any(worker.state != "refused" for worker in self._known.values()):
            self._last_seen = time.monotonic()
        elif self._known:
            raise ClusterError(f"no worker can be used: {'; '.join(self._reasons.values())}")
        elif time.monotonic() - self._last_seen > self.options.patience:
            where = self.options.scheduler or "the local cluster"
            raise ClusterError(f"no worker came to {where} for {self.options.patience:g} s; scripts/worker starts some")
        return gone

    def forgotten(self, future: Any) -> bool:
        """Returns whether nobody is at work on `future`, though it has not ended: a scheduler can lose one.

        False where nobody can be asked.
        """
        if future.done():
            return False
        try:
            return not self.client.sync(
                self.client.scheduler.call_stack, keys=[future.key], callback_timeout=_ASK_SECONDS
            )
        except KeyError:  # the scheduler does not know it
            return True
        except OSError:  # comm and time-out errors are
            return False

    def _ask_again(self) -> None:
        """Meets workers anew whose answer is overdue and that nobody is working on."""
        for ident, future in list(self._asked.items()):
            worker = self._known[ident]
            if time.monotonic() - worker.heard < SILENCE_SECONDS:
                continue
            worker.heard = time.monotonic()
            if future.done():
                self.inbox.put(("checked", ident))
            elif self.forgotten(future):
                del self._known[ident], self._asked[ident]

    def _listed(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Ident -> address and description. While the client tries to reach a scheduler again, who was there counts."""
        deadline = time.monotonic() + _ASK_SECONDS
        while self.client.status == "connecting" and time.monotonic() < deadline:
            time.sleep(0.1)
        if self.client.status not in ("running", "connecting"):
            raise self._lost()
        try:
            scheduler = self.client.sync(self.client.scheduler.identity, callback_timeout=_ASK_SECONDS)
        except OSError as error:  # comm and time-out errors are
            if self.client.status == "connecting":
                return {ident: (worker.address, {}) for ident, worker in self._known.items()}
            raise self._lost() from error
        return {str(info["id"]): (address, info) for address, info in scheduler["workers"].items()}

    def _lost(self) -> ClusterError:
        where = self.options.scheduler or "the local cluster"
        return ClusterError(f"the scheduler at {where} is gone; what is done is on record, the same command goes on")

    def _meet(self, worker: Worker, info: Mapping[str, Any]) -> None:
        self._known[worker.ident] = worker
        if RESOURCE not in info.get("resources", {}):
            self.refuse(worker, f"it offers no resource {RESOURCE!r}: start it with scripts/worker")
            return
        future = self.client.submit(
            cluster_worker.fingerprint,
            tuple(self._models),
            self._methods,
            key=f"velox-eval-ask-{uuid.uuid4().hex}",
            workers=[worker.address],
            allow_other_workers=False,
            pure=False,
        )
        self._asked[worker.ident] = future
        future.add_done_callback(lambda _future: self.inbox.put(("checked", worker.ident)))

    def checked(self, ident: str) -> None:
        """Takes or refuses a worker that said what it has."""
        future, worker = self._asked.pop(ident, None), self._known.get(ident)
        if future is None or worker is None:
            return
        if future.status == "cancelled":
            del self._known[ident]  # the connection was lost: it is met again
            return
        error = future.exception()
        if error is not None:
            self.refuse(
                worker, f"it has no velox-eval that works ({type(error).__name__}: {' '.join(str(error).split())})"
            )
            return
        found: dict[str, str] = future.result()
        missing = [f"{name} is {text}" for name, text in found.items() if text.startswith("missing (")]
        for name, text in {} if missing else found.items():
            self._expected.setdefault(name, text)
        differing = [
            f"{name} {_short(found.get(name, 'absent'))} instead of {_short(text)}"
            for name, text in self._expected.items()
            if found.get(name) != text
        ]
        if missing or differing:
            self.refuse(worker, "; ".join(missing or differing))
        else:
            worker.state = "ready"

    def refuse(self, worker: Worker, reason: str) -> None:
        """Gives a worker no orders, and says why."""
        worker.state = "refused"
        self._reasons[worker.ident] = f"worker {worker.name} ({worker.address}): {reason}"
        self.note(f"refused {self._reasons[worker.ident]}")


def _short(text: str) -> str:
    return text[:12] if len(text) == 64 else text
