"""The line to a scheduler whose workers and itself are killed at bad moments."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from velox_eval.errors import ClusterError
from velox_eval.pipelines import cluster_link
from velox_eval.pipelines.cluster_connect import ClusterOptions, connected
from velox_eval.pipelines.cluster_link import Link

pytest.importorskip("distributed")


def until(true: Callable[[], object]) -> None:
    for _ in range(300):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("never true")


def refuse(what: str) -> None:
    raise FileNotFoundError(what)


def test_results_errors_and_a_result_whose_worker_died(monkeypatch):
    monkeypatch.setattr(cluster_link, "ASK_SECONDS", 2.0)
    options = ClusterOptions(local_workers=1)
    with connected(options, print) as client:
        link = Link(client, options)
        ((address, _info),) = link.workers().values()
        process = link.submit(os.getpid, key="process", address=address)
        failing = link.submit(refuse, "no such thing", key="failing", address=address)
        until(lambda: process.done() and failing.done())
        assert link.landing(failing).state == "error"
        assert str(link.landing(failing).value) == "no such thing"  # an OSError of a task is no loss of the line
        assert not link.forgotten(process)
        os.kill(link.landing(process).value, signal.SIGKILL)
        until(lambda: address not in [where for where, _info in link.workers().values()])
        assert link.landing(process).state == "away"
        assert link.forgotten(process)
        link.drop(process)
        until(lambda: process.status == "cancelled")
        assert link.landing(process).state == "lost"


def test_a_link_that_was_closed_tells_so_in_every_call():
    options = ClusterOptions(local_workers=1)
    with connected(options, print) as client:
        link = Link(client, options)
        ((address, _info),) = link.workers().values()
        future = link.submit(time.sleep, 60, key="sleeping", address=address)
        assert link.up
        client.close()
        assert not link.up
        for call in (
            link.workers,
            lambda: link.submit(os.getpid, key="process", address=address),
            lambda: link.listen("topic", print),
        ):
            with pytest.raises(ClusterError, match="the scheduler at the local cluster is gone"):
                call()
        link.drop(future)
        assert link.landing(future).state == "lost"
        assert not link.forgotten(future)
