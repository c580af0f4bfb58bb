"""Runs a suite's matrix on a cluster: ranges of samples go to workers, outcomes come home and are recorded here.

A worker gets one order at a time, and only this process decides which: what is done, what is left and how often
something was tried stay here, so neither a dead worker nor a new scheduler loses or doubles a sample. Records are
written by the same code as a run in one process writes them.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections import deque
from typing import Any

from velox_eval.engine.requests import Progress
from velox_eval.errors import ClusterError, VeloxEvalError
from velox_eval.pipelines import cluster_worker
from velox_eval.pipelines.cluster_connect import RESOURCE, ClusterOptions, connected, ctrl_c
from velox_eval.pipelines.cluster_flights import ActiveRun, Flight, Order, Totals, Worker, split
from velox_eval.pipelines.cluster_link import Link
from velox_eval.pipelines.cluster_workers import SILENCE_SECONDS, Workers
from velox_eval.pipelines.matrix import Plans, SweepPlan
from velox_eval.pipelines.sweep import FAILURES, SweepObserver, SweepResult, SweepRun, check_results, failed
from velox_eval.records.schema import ModelInfo

POLL_SECONDS = 0.5


def sweep_on(options: ClusterOptions, plan: SweepPlan, observer: SweepObserver | None = None) -> SweepResult:
    """Runs what is planned on a cluster; what is finished is shown, what was interrupted goes on.

    Raises ConfigError for options that cannot work, StoreError where no run could be recorded, ClusterError when there
    is no scheduler, no worker that can be used, or the scheduler goes away: what is recorded stays, and the same sweep
    resumes. Ctrl-C ends it likewise.
    """
    observer = observer or SweepObserver()
    check_results(plan)
    with connected(options, observer.note) as client:
        work = _Sweep(Link(client, options), options, plan, observer)
        observer.sweep_begins(len(plan.runs), sum(run.samples for run in plan.runs))
        try:
            return work.run()
        finally:
            observer.sweep_ended()


class _Sweep:
    """One process's work on a sweep: a loop over what comes in."""

    def __init__(self, link: Link, options: ClusterOptions, plan: SweepPlan, observer: SweepObserver) -> None:
        self.link = link
        self.options = options
        self.plan = plan
        self.observer = observer
        self.topic = f"velox-eval-{uuid.uuid4().hex}"
        self.inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.workers = Workers(link, options, plan, self.inbox, observer.note)
        self.plans = Plans()
        self.waiting = deque(plan.runs)
        self.active: list[ActiveRun] = []
        self.orders: deque[Order] = deque()
        self.flights: dict[int, Flight] = {}
        self.numbers = 0
        self.models: dict[str, ModelInfo] = {}
        self.done: dict[str, SweepRun] = {}
        self.totals = Totals()
        self.looked = -POLL_SECONDS

    def run(self) -> SweepResult:
        """Works until every run is through."""
        try:
            with ctrl_c() as asked:
                while len(self.done) < len(self.plan.runs):
                    if asked.is_set():
                        raise KeyboardInterrupt
                    self._look_at_workers()
                    self._send()
                    self._take(POLL_SECONDS)
        except KeyboardInterrupt:
            self._stop()
            return self._result(interrupted=True)
        except ClusterError:
            self._stop()
            raise
        return self._result()

    def _result(self, *, interrupted: bool = False) -> SweepResult:
        in_order = [self.done[run.label] for run in self.plan.runs if run.label in self.done]
        return SweepResult(tuple(in_order), interrupted, self.totals.spread())

    # What goes out

    def _look_at_workers(self) -> None:
        """Finds out who came and who went; work of those who went is sent again."""
        if time.monotonic() - self.looked < POLL_SECONDS:
            return
        self.looked = time.monotonic()
        gone = self.workers.look()
        self.link.listen(self.topic, lambda message: self.inbox.put(("event", message)))
        for number, flight in list(self.flights.items()):
            if flight.worker.ident in gone:
                self._died(number, flight)
            elif time.monotonic() - flight.heard > SILENCE_SECONDS:
                self._ask_after(number, flight)

    def _ask_after(self, number: int, flight: Flight) -> None:
        """Sends an order again that nobody is at work on; takes in one whose landing went unheard."""
        flight.heard = time.monotonic()
        if flight.future.done():
            self.inbox.put(("landed", number))
        elif self.link.forgotten(flight.future):
            self.link.drop(flight.future)
            self._failed_try(number, flight, f"worker {flight.worker.name} is not at work on it")

    def _send(self) -> None:
        """Gives every idle worker an order, of runs under way first; a run that is finished is shown."""
        if not self.link.up:
            return
        busy = {flight.worker.ident for flight in self.flights.values()}
        for worker in self.workers.ready():
            if worker.ident in busy:
                continue
            if not self.orders:
                self._begin_next()
            if not self.orders:
                return
            self._take_off(self.orders.popleft(), worker)

    def _begin_next(self) -> None:
        """Makes the next run's first order; a run that cannot be planned any more is done with."""
        while self.waiting and not self.orders:
            planned = self.waiting.popleft()
            self.observer.run_begins(planned, len(self.done) + len(self.active) + 1, len(self.plan.runs))
            try:
                run = ActiveRun(planned, self.plans.make(planned.options), self.observer)
            except FAILURES as error:
                self._close(failed(planned, error))
                continue
            self.active.append(run)
            self.orders.append(Order(run, None))

    def _take_off(self, order: Order, worker: Worker) -> None:
        run, number = order.run, self.numbers
        self.numbers += 1
        options = run.planned.options
        if order.requests is None:
            task: tuple[Any, ...] = (cluster_worker.load, options, run.method, run.plan.requests[0])
        else:
            model = self.models[options.model]
            carried = cluster_worker.Order(self.topic, number, options, run.method, order.requests, model)
            task = (cluster_worker.answer, carried)
        future = self.link.submit(*task, key=f"{self.topic}-{number}", address=worker.address, resources={RESOURCE: 1})
        future.add_done_callback(lambda _future: self.inbox.put(("landed", number)))
        self.flights[number] = Flight(order, worker, future)
        if order.requests is not None:
            run.took_off()

    # What comes in

    def _take(self, seconds: float) -> None:
        """Works on what came in, waiting `seconds` for it."""
        try:
            kind, what = self.inbox.get(timeout=seconds)
            while True:
                if kind == "event":
                    self._event(what)
                elif kind == "landed":
                    self._landed(what)
                else:
                    self.workers.checked(what)
                kind, what = self.inbox.get_nowait()
        except queue.Empty:
            return

    def _event(self, message: Any) -> None:
        """An outcome or progress; what comes of an order that was sent again comes too late."""
        flight = self.flights.get(message["order"])
        if flight is not None:
            flight.heard = time.monotonic()
        if "progress" in message:
            if flight is not None:
                flight.progress = Progress(**message["progress"])
                self._show_progress()
            return
        if flight is None:
            return
        run, outcome = flight.order.run, cluster_worker.unpacked(message["outcome"])
        flight.report = cluster_worker.unpacked_report(message["report"])
        try:
            flight.recorded += run.record(outcome)
        except VeloxEvalError as error:
            self._give_up(run, error)

    def _show_progress(self) -> None:
        known = [flight.progress for flight in self.flights.values() if flight.progress is not None]
        speeds = [progress.tokens_per_second or 0.0 for progress in known]
        self.observer.step(
            Progress(
                in_flight=sum(progress.in_flight for progress in known),
                decoded_tokens=sum(progress.decoded_tokens for progress in known),
                tokens_per_second=sum(speeds) or None,
                cache_bytes=sum(progress.cache_bytes for progress in known),
            )
        )

    def _landed(self, number: int) -> None:
        """An order is through, or failed."""
        flight = self.flights.get(number)
        if flight is None:
            return  # sent again meanwhile, or given up
        run, landing = flight.order.run, self.link.landing(flight.future)
        if landing.state == "result":
            self._landed_well(number, flight, landing.value)
        elif landing.state == "lost":
            self._again(number, flight)
        elif landing.state == "away":
            return  # its worker is missed, or it is asked after
        elif isinstance(landing.value, VeloxEvalError):
            self._land(number, flight)
            self._give_up(run, landing.value)
        else:
            error = landing.value
            self._failed_try(number, flight, f"{type(error).__name__}: {' '.join(str(error).split())}")

    def _landed_well(self, number: int, flight: Flight, result: Any) -> None:
        run = flight.order.run
        if isinstance(result, cluster_worker.Refused):
            self.workers.refuse(flight.worker, result.reason)
            self._again(number, flight)
            return
        self.totals.names.add(flight.worker.name)
        self.totals.worker += result.seconds
        self.totals.orders += time.perf_counter() - flight.began
        if isinstance(result, cluster_worker.Loaded):
            self._land(number, flight)
            self._prepared(run, result.model, result.layers, flight.worker)
            return
        self.totals.engine += result.engine_seconds
        if self._rest(flight.order):
            self._failed_try(number, flight, f"not all outcomes came from worker {flight.worker.name}")
            return
        self._land(number, flight)
        self._finish_if_through(run)

    def _prepared(self, run: ActiveRun, model: ModelInfo, layers: Any, worker: Worker) -> None:
        """The method works on the model: opens the run's folder and makes its orders."""
        options = run.planned.options
        expected = self.models.setdefault(options.model, model)
        if model != expected:
            names = [name for name in ModelInfo.model_fields if getattr(model, name) != getattr(expected, name)]
            self.workers.refuse(worker, f"model {options.model} has another {', '.join(names)} than on other workers")
            self._resend(Order(run, None))
            return
        try:
            todo = run.open(model, layers)
        except FAILURES as error:
            self._give_up(run, error)
            return
        if todo is None:
            self._close(run.finish(), run)
            return
        batch = options.batch_size if isinstance(options.batch_size, int) else None
        parts = split(todo, batch, len(self.workers.ready()))
        self.orders.extendleft(Order(run, part) for part in reversed(parts))
        self._finish_if_through(run)

    # What goes wrong

    def _died(self, number: int, flight: Flight) -> None:
        self.link.drop(flight.future)
        self._failed_try(number, flight, f"worker {flight.worker.name} died")

    def _failed_try(self, number: int, flight: Flight, why: str) -> None:
        """Sends the rest of an order again, or gives its run up after so many tries without a sample."""
        order, most = flight.order, self.options.tries
        tries = 1 if flight.recorded else order.tries + 1
        self._land(number, flight)
        rest = self._rest(order)
        if order.requests is not None and not rest:
            self._finish_if_through(order.run)
        elif tries >= most:
            names = [request.sample_id for request in rest or ()]
            about = f" on {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}" if names else ""
            self._give_up(order.run, ClusterError(f"given up after {tries} tries{about}: {why}"))
        else:
            self.observer.note(f"{order.run.planned.label}: {why}; its work is sent again (try {tries + 1} of {most})")
            self._resend(Order(order.run, rest, tries))

    def _again(self, number: int, flight: Flight) -> None:
        """Sends the rest of an order again without counting a try."""
        self._land(number, flight)
        order = flight.order
        rest = self._rest(order)
        if order.requests is None or rest:
            self._resend(Order(order.run, rest, order.tries))
        else:
            self._finish_if_through(order.run)

    def _resend(self, order: Order) -> None:
        self.totals.retried += 1
        self.orders.appendleft(order)

    def _rest(self, order: Order) -> tuple[Any, ...] | None:
        """The requests of an order that have no outcome; None for an order that only loads."""
        if order.requests is None:
            return None
        return tuple(request for request in order.requests if request.sample_id in order.run.left)

    def _land(self, number: int, flight: Flight) -> None:
        del self.flights[number]
        if flight.order.requests is not None:
            flight.order.run.landed()
            if flight.report is not None:
                flight.order.run.reports.append(flight.report)

    def _give_up(self, run: ActiveRun, error: BaseException) -> None:
        """Ends a run that cannot go on."""
        self._drop_orders(run)
        self._close(run.give_up(error), run)

    def _drop_orders(self, run: ActiveRun) -> None:
        self.orders = deque(order for order in self.orders if order.run is not run)
        for number, flight in list(self.flights.items()):
            if flight.order.run is run:
                self.link.drop(flight.future)
                self._land(number, flight)

    def _finish_if_through(self, run: ActiveRun) -> None:
        if not run.through:
            return
        try:
            entry = run.finish()
        except VeloxEvalError as error:
            entry = run.give_up(error)
        self._close(entry, run)

    def _close(self, entry: SweepRun, run: ActiveRun | None = None) -> None:
        if run is not None:
            self.active.remove(run)
        self.done[entry.planned.label] = entry
        self.observer.run_ended(entry)

    def _stop(self) -> None:
        """Ends everything where it stands: orders are cancelled, runs under way are left to be resumed."""
        for run in list(self.active):
            self._drop_orders(run)
            entry = run.interrupt()
            if entry is not None:
                self._close(entry, run)
