"""Sweeps on real worker processes: killed, poisoned, of another version, behind certificates, left alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from velox_eval.errors import ClusterError, ConfigError
from velox_eval.pipelines.cluster import sweep_on
from velox_eval.pipelines.cluster_connect import RESOURCE, ClusterOptions
from velox_eval.pipelines.suite import SuiteMethod, SuiteTask
from velox_eval.pipelines.sweep import sweep
from velox_eval.records.store import load_run

pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")

TIMES = {"prefill_seconds", "compress_seconds", "decode_seconds", "tokens_per_second"}
NO_PAGE = ("--dashboard-address", "127.0.0.1:0")
BOTH = (SuiteTask(name="longgenbench", limit=8, max_tokens=24), SuiteTask(name="fidelity", limit=6, max_tokens=6))
METHODS = (
    SuiteMethod(name="tova", set={"n_sink": 2}),
    SuiteMethod(name="morphkv:paper", set={"window": 8, "fusion": "sum", "group": "logit_sum"}),
)


def alike(one: Any, two: Any) -> bool:
    """Equal, but for last digits of numbers: a death changes who shares a batch, and sums round in another order."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(alike(one[name], two[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return one == pytest.approx(two, rel=1e-4, abs=1e-4)
    return bool(one == two)


def same_records(first: Any, second: Any, *, digits: bool = True) -> None:
    """Both sweeps have the same runs with the same samples, but for times, and for last `digits` where they may."""
    assert [run.planned.label for run in first.runs] == [run.planned.label for run in second.runs]
    for one, two in zip(first.runs, second.runs, strict=True):
        assert one.header.config_hash == two.header.config_hash
        assert one.header.method == two.header.method
        ours, theirs = (load_run(run.path).samples for run in (one, two))  # raises where a sample is there twice
        left, right = ([sample.model_dump(exclude=TIMES) for sample in samples] for samples in (ours, theirs))
        assert left == right if digits else alike(left, right)


def worker_processes() -> list[Any]:
    """Worker processes that a cluster in this process started."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def test_a_killed_worker_loses_and_doubles_nothing(planned, watching):
    asked = {"task": BOTH, "method": METHODS}

    class Killing(watching):
        """Kills one of two workers in the middle of its order, once, and looks who listens where."""

        def recorded(self, record):
            super().recorded(record)
            if len(self.records) != 2:
                return
            self.listening = set()
            for process in (psutil.Process(), *worker_processes()):
                self.listening |= {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
            worker_processes()[0].send_signal(signal.SIGKILL)

    killing = Killing()
    spread = sweep_on(ClusterOptions(local_workers=2), planned("spread", **asked), killing)
    assert [run.error for run in spread.runs] == [None] * 6
    assert any("died; its work is sent again (try" in note for note in killing.notes)
    assert killing.listening == {"127.0.0.1"}
    assert len(killing.records) == 3 * (8 + 6)
    assert spread.spread.workers == 2
    assert spread.spread.retried >= 1
    assert 0 < spread.spread.engine_seconds <= spread.spread.worker_seconds <= spread.spread.order_seconds
    same_records(spread, sweep(planned("alone", **asked)), digits=False)
    header = spread.runs[1].header
    assert header.summary.cost.decode_tokens > 0
    assert header.summary.cost.wall_seconds >= header.summary.cost.engine_seconds > 0
    again = sweep_on(ClusterOptions(local_workers=1), planned("spread", **asked), watching())
    assert {run.state for run in again.runs} == {"finished"}


POISON = """
import os, signal

def dask_setup(worker):
    from velox_eval.engine.engine import Engine

    read = Engine.read

    def poisoned(self, ready):
        if self.method.label == "tova" and ready.request.sample_id.endswith(POISONED):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, ready)

    Engine.read = poisoned
"""


def test_a_poisoned_run_is_given_up_and_the_rest_goes_on(planned, watching, tmp_path):
    """One sample of tova kills whichever worker reads it."""
    import dask

    plan, watch = planned(), watching()
    names = [sample.sample_id for sample in sweep_names(plan)]
    preload = tmp_path / "poison.py"
    preload.write_text(POISON.replace("POISONED", repr(names[2])))
    with dask.config.set({"distributed.worker.preload": [str(preload)]}):
        result = sweep_on(ClusterOptions(local_workers=1, tries=2), plan, watch)
    full, tova, morphkv = result.runs
    assert (full.error, morphkv.error) == (None, None)
    assert tova.error.startswith("given up after 2 tries on ")
    assert names[2] in tova.error
    assert "died" in tova.error
    assert tova.header.status == "error"
    assert [run.planned.label for run in result.failed] == [tova.planned.label]
    assert [sample.sample_id for sample in load_run(tova.path).samples] == names[:2]  # what was done before stays
    healed = sweep(planned(), watching())
    assert [run.state for run in healed.runs] == ["finished", "resumed", "finished"]
    same_records(healed, sweep(planned("alone")))


def sweep_names(plan: Any) -> Any:
    from velox_eval.runs.plan import make_plan

    return make_plan(plan.runs[0].options).data.samples


@contextlib.contextmanager
def scheduler(port: int) -> Any:
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard", *NO_PAGE]
    with process("scheduler", arguments) as started:
        yield started


@contextlib.contextmanager
def worker(port: int, name: str, path: Path | None = None) -> Any:
    arguments = [f"tcp://127.0.0.1:{port}", "--host", "127.0.0.1", "--name", name, "--nthreads", "1", "--no-dashboard"]
    arguments += [
        "--resources",
        f"{RESOURCE}=1",
        "--memory-limit",
        "0",
        "--no-nanny",
        *NO_PAGE,
        "--death-timeout",
        "60",
    ]
    with process("worker", arguments, path) as started:
        yield started


@contextlib.contextmanager
def process(kind: str, arguments: list[str], path: Path | None = None) -> Any:
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-m", "dask", kind, *arguments]
    started = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_other_versions_are_refused_and_a_lost_scheduler_leaves_all_to_be_resumed(planned, watching, tmp_path):
    other = tmp_path / "other" / "mlx_lm-0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: mlx-lm\nVersion: 0.1\n")
    port = free_port()
    options = ClusterOptions(f"tcp://127.0.0.1:{port}", patience=3)
    refused = r"worker old \(tcp://127.0.0.1:\d+\): mlx-lm 0.1 instead of 0.\d+"
    with scheduler(port) as first, worker(port, "old", other.parent):
        wait_for(port)
        with pytest.raises(ClusterError, match=f"no worker can be used: {refused}"):
            sweep_on(ClusterOptions(options.scheduler, patience=30), planned(), watching())

        class Losing(watching):
            """Takes the scheduler away once two samples are recorded."""

            def recorded(self, record):
                super().recorded(record)
                if len(self.records) == 2:
                    first.kill()

        with worker(port, "new"):
            time.sleep(1)
            losing = Losing()
            with pytest.raises(ClusterError, match="is gone; what is done is on record"):
                sweep_on(options, planned(), losing)
    watch = watching()
    with scheduler(port), worker(port, "new"):
        wait_for(port)
        result = sweep_on(ClusterOptions(options.scheduler, patience=30), planned(), watch)
    assert [run.error for run in result.runs] == [None] * 3
    assert len(watch.records) == 3 * 4 - len(losing.records)
    same_records(result, sweep(planned("alone")))


def wait_for(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("no scheduler came")


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, Path]:
    """A certificate that signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=velox-eval"]
    subprocess.run([openssl, *request, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return {"tls_ca": certificate, "tls_cert": certificate, "tls_key": key}


def test_ctrl_c_leaves_all_to_be_resumed_also_behind_certificates(planned, watching, certificates):
    options = ClusterOptions(local_workers=1, **certificates)
    stopping = watching(stop_after=3)
    stopped = sweep_on(options, planned(), stopping)
    assert stopped.interrupted
    assert [run.header.status for run in stopped.runs if run.header] == ["cancelled"]
    watch = watching()
    result = sweep_on(options, planned(), watch)
    assert [run.error for run in result.runs] == [None] * 3
    assert len(watch.records) == 3 * 4 - 3
    assert [session.samples for session in result.runs[0].header.sessions] == [3, 1]
    same_records(result, sweep(planned("alone")))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "--scheduler ADDRESS or --local-workers N: give one"),
        ({"scheduler": "tcp://a:1", "local_workers": 2}, "give one of them"),
        ({"local_workers": 0}, "local_workers=0 must be at least 1"),
        ({"scheduler": "10.0.0.5:8786"}, "scheduler='10.0.0.5:8786' is no address: write tcp://HOST:PORT"),
        ({"scheduler": "tcp://10.0.0.5"}, "is no address"),
        ({"scheduler": "tcp://10.0.0.5:x"}, "is no address"),
        ({"scheduler": "tls://10.0.0.5:8786"}, "give --tls-ca, --tls-cert and --tls-key"),
        ({"local_workers": 1, "tls_ca": Path(__file__)}, "--tls-cert, --tls-key is missing"),
        (
            {"local_workers": 1, **dict.fromkeys(("tls_ca", "tls_cert", "tls_key"), Path("no.pem"))},
            "--tls-ca no.pem: there is no such file",
        ),
        (
            {"scheduler": "tcp://a:1", **dict.fromkeys(("tls_ca", "tls_cert", "tls_key"), Path(__file__))},
            "certificates and tls:// go together; write tls://HOST:PORT",
        ),
        ({"local_workers": 1, "tries": 0}, "tries=0 must be at least 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, says):
    with pytest.raises(ConfigError) as raised:
        ClusterOptions(**options)
    assert says in str(raised.value)


def test_an_open_network_is_warned_of():
    assert "can run code there" in ClusterOptions("tcp://10.0.0.5:8786").warning
    assert ClusterOptions("tcp://127.0.0.1:8786").warning is None
    assert ClusterOptions(local_workers=1).warning is None


def test_a_scheduler_that_does_not_answer_is_named(planned):
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=f"no scheduler answers at {address}"):
        sweep_on(ClusterOptions(address, patience=0.5), planned())
