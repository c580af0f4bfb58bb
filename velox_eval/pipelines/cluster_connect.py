"""Reaching a Dask scheduler, or starting one here: addresses, certificates, and nothing beyond this machine unasked.

Dask's messages can run code: whoever reaches a scheduler's or worker's port can do what its user can. What is started
here listens on the loopback address only. Its client does not survive Ctrl-C at any place: `ctrl_c` puts it off.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from velox_eval.errors import ClusterError, ConfigError
from velox_eval.extras import required

RESOURCE = "velox-eval"  # one a worker: orders take it, so that one runs at a time
LOOPBACK = "127.0.0.1"

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class ClusterOptions:
    """Where the work goes: a scheduler's address, or so many worker processes on this machine."""

    scheduler: str | None = None  # tcp://HOST:PORT or tls://HOST:PORT
    local_workers: int | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tries: int = 3  # of an order whose worker died without finishing a sample
    patience: float = 60.0  # seconds without a scheduler, or without any worker

    def __post_init__(self) -> None:
        """Raises ConfigError for options that do not go together."""
        if (self.scheduler is None) == (self.local_workers is None):
            raise ConfigError("a cluster is --scheduler ADDRESS or --local-workers N: give one of them")
        if self.local_workers is not None and self.local_workers < 1:
            raise ConfigError(f"local_workers={self.local_workers} must be at least 1")
        if self.tries < 1:
            raise ConfigError(f"tries={self.tries} must be at least 1")
        files = {"--tls-ca": self.tls_ca, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        missing = [name for name, path in files.items() if path is None]
        if missing and len(missing) < len(files):
            raise ConfigError(f"TLS needs all of --tls-ca, --tls-cert and --tls-key: {', '.join(missing)} is missing")
        for name, path in files.items():
            if path is not None and not path.is_file():
                raise ConfigError(f"{name} {path}: there is no such file")
        if self.scheduler is not None:
            self._check_address(self.scheduler)

    def _check_address(self, address: str) -> None:
        parts = urlsplit(address)
        try:
            complete = parts.hostname is not None and parts.port is not None
        except ValueError:  # a port that is no number
            complete = False
        if parts.scheme not in ("tcp", "tls") or not complete:
            raise ConfigError(f"scheduler={address!r} is no address: write tcp://HOST:PORT or tls://HOST:PORT")
        if (parts.scheme == "tls") != (self.tls_ca is not None):
            advice = "give --tls-ca, --tls-cert and --tls-key" if parts.scheme == "tls" else "write tls://HOST:PORT"
            raise ConfigError(f"scheduler={address!r}: certificates and tls:// go together; {advice}")

    @property
    def warning(self) -> str | None:
        """What a user of an open network should know; None on loopback or with TLS."""
        host = urlsplit(self.scheduler or "").hostname
        if self.scheduler is None or self.tls_ca is not None or host in (LOOPBACK, "localhost", "::1"):
            return None
        return (
            f"{self.scheduler} is not encrypted and knows no passwords: whoever reaches its port or a worker's can run "
            "code there. Use it in a network you trust, or with --tls-ca, --tls-cert and --tls-key."
        )


@contextmanager
def connected(options: ClusterOptions, note: Callable[[str], None]) -> Iterator[Any]:
    """Gives a distributed.Client of the scheduler, or of a cluster that is started here and stopped afterwards.

    Raises ConfigError without the extra `distributed`, ClusterError when the scheduler does not answer.
    """
    required("distributed", "distributed", "a cluster")
    from distributed import Client

    security = _security(options)
    if options.warning:
        note(options.warning)
    if options.local_workers is not None:
        with _local(options.local_workers, security) as cluster, Client(cluster, set_as_default=False) as client:
            yield client
        return
    try:
        client = Client(options.scheduler, security=security, timeout=options.patience, set_as_default=False)
    except OSError as error:
        why = " ".join(str(error).split())
        raise ClusterError(
            f"no scheduler answers at {options.scheduler} ({why}); scripts/scheduler starts one"
        ) from error
    with client:
        yield client


def _security(options: ClusterOptions) -> Any:
    from distributed import Security

    if options.tls_ca is None:
        return Security()
    certificate, key = str(options.tls_cert), str(options.tls_key)
    roles = ("client", "scheduler", "worker")
    return Security(
        require_encryption=True,
        tls_ca_file=str(options.tls_ca),
        **{f"tls_{role}_cert": certificate for role in roles},
        **{f"tls_{role}_key": key for role in roles},
    )


def _local(workers: int, security: Any) -> Any:
    """A scheduler in this process and worker processes, on loopback; cores are shared out, memory is not limited."""
    import logging

    import dask
    from distributed import LocalCluster

    threads = str(max(1, (os.cpu_count() or 1) // workers))
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host=LOOPBACK,
        protocol="tls://" if security.require_encryption else "tcp://",
        security=security,
        dashboard_address=f"{LOOPBACK}:0",
        worker_dashboard_address=f"{LOOPBACK}:0",
        scheduler_kwargs={"dashboard": False},
        preload=[*dask.config.get("distributed.worker.preload"), "velox_eval.pipelines.cluster_worker"],
        resources={RESOURCE: 1},
        memory_limit=0,
        silence_logs=logging.CRITICAL,
        env={name: os.environ.get(name, threads) for name in _THREADS},
    )


@contextmanager
def ctrl_c() -> Iterator[threading.Event]:
    """Gives an event that the first Ctrl-C sets, instead of raising wherever it finds the main thread.

    Dask's client does not survive an exception in any place, and swallows it in some. The second Ctrl-C raises.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # no signal comes here
        return

    def note(_number: int, _frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
