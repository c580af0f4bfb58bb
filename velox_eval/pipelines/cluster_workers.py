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
from velox_eval.pipelines.cluster_link import Link
from velox_eval.pipelines.matrix import SweepPlan

SILENCE_SECONDS = 20.0  # after which a worker is asked whether it is at work


class Workers:
    """The workers of a scheduler as this sweep sees them.

    The first one that is asked sets what a model's content must be; package versions and code are those of this
    process.
    """

    def __init__(
        self,
        link: Link,
        options: ClusterOptions,
        plan: SweepPlan,
        inbox: queue.SimpleQueue[tuple[str, Any]],
        note: Callable[[str], None],
    ) -> None:
        self.link = link
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
        found = self.link.workers()
        if found is None:  # who was there counts
            return set()
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
            raise ClusterError(
                f"no worker came to {self.link.where} for {self.options.patience:g} s; scripts/worker starts some"
            )
        return gone

    def _ask_again(self) -> None:
        """Meets workers anew whose answer is overdue and that nobody is working on."""
        for ident, future in list(self._asked.items()):
            worker = self._known[ident]
            if time.monotonic() - worker.heard < SILENCE_SECONDS:
                continue
            worker.heard = time.monotonic()
            if future.done():
                self.inbox.put(("checked", ident))
            elif self.link.forgotten(future):
                del self._known[ident], self._asked[ident]

    def _meet(self, worker: Worker, info: Mapping[str, Any]) -> None:
        self._known[worker.ident] = worker
        if RESOURCE not in info.get("resources", {}):
            self.refuse(worker, f"it offers no resource {RESOURCE!r}: start it with scripts/worker")
            return
        future = self.link.submit(
            cluster_worker.fingerprint,
            tuple(self._models),
            self._methods,
            key=f"velox-eval-ask-{uuid.uuid4().hex}",
            address=worker.address,
        )
        self._asked[worker.ident] = future
        future.add_done_callback(lambda _future: self.inbox.put(("checked", worker.ident)))

    def checked(self, ident: str) -> None:
        """Takes or refuses a worker that said what it has."""
        future, worker = self._asked.pop(ident, None), self._known.get(ident)
        if future is None or worker is None:
            return
        landing = self.link.landing(future)
        if landing.state in ("lost", "away"):
            del self._known[ident]  # it is met again, if it is there
            return
        if landing.state == "error":
            why = f"{type(landing.value).__name__}: {' '.join(str(landing.value).split())}"
            self.refuse(worker, f"it has no velox-eval that works ({why})")
            return
        found: dict[str, str] = landing.value
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
