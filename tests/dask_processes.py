"""A Dask cluster as people start one: ``dask scheduler`` and ``dask worker`` from the command line, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from distributed import Client, Security

ROOT = Path(__file__).parents[1]
STARTED_SECONDS = 60


class Cluster:
    """Processes of a scheduler and its workers; each worker has one thread and no nanny unless asked."""

    def __init__(self, folder: Path, tls: Sequence[str] = (), settings: dict[str, str] | None = None):
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self._tls = list(tls)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s",  # for so long a worker that is gone is looked for
            **(settings or {}),
        }
        self._file = folder / "scheduler.json"
        listen = ["--protocol", "tls"] if tls else []
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show", *listen,
            "--scheduler-file", str(self._file),
        )  # fmt: skip
        deadline = time.monotonic() + STARTED_SECONDS
        while not self._file.exists():
            if self.scheduler.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "scheduler.log").read_text())
            time.sleep(0.05)
        self.address = json.loads(self._file.read_text())["address"]

    def add(self, *options: str, nanny: bool = False) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        started = self._start(
            "worker", self.address, "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1",
            "--name", f"w{len(self.workers)}", "--local-directory", str(self.folder),
            "--nanny" if nanny else "--no-nanny", *options,
        )  # fmt: skip
        self.workers.append(started)
        return started

    def kill(self, number: int) -> None:
        """End a worker as the kernel would: it can say nothing."""
        self.workers[number].send_signal(signal.SIGKILL)
        self.workers[number].wait()

    def close(self) -> None:
        """End all processes."""
        for process in [*self.workers, self.scheduler]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        name = kind if kind == "scheduler" else f"worker{len(self.workers)}"
        with open(self.folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", kind, *options, *self._tls],
                cwd=self.folder, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip


@contextlib.contextmanager
def cluster_of(
    folder: Path, n_workers: int, *, tls: Sequence[str] = (), settings: dict[str, str] | None = None, **client: Any
) -> Iterator[tuple[Cluster, Client]]:
    """Start a scheduler and workers; give the processes and a client that is not the default one."""
    cluster = Cluster(folder, tls, settings)
    try:
        for _ in range(n_workers):
            cluster.add()
        with Client(cluster.address, set_as_default=False, timeout="10s", **client) as opened:
            if n_workers:
                opened.wait_for_workers(n_workers, timeout=STARTED_SECONDS)
            yield cluster, opened
    finally:
        cluster.close()


def certificate(folder: Path) -> tuple[dict[str, str], list[str], Security]:
    """A key and a certificate that is its own authority: their files, options of the commands, and for a client."""
    files = {"ca": str(folder / "cert.pem"), "cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", files["key"], "-out", files["cert"]],
        check=True, capture_output=True,
    )  # fmt: skip
    options = ["--tls-ca-file", files["ca"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
    security = Security(
        tls_ca_file=files["ca"], tls_client_cert=files["cert"], tls_client_key=files["key"], require_encryption=True
    )
    return files, options, security
