"""A Dask cluster as people start one: ``dask scheduler`` and ``dask worker`` from the command line, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import key_split
from distributed import Client, SchedulerPlugin, Security

from tests.programs import Program

ROOT = Path(__file__).parents[1]
N_WORKERS = 3  # of the fixture `cluster`
STARTED_SECONDS = 60


class Cluster:
    """Processes of a scheduler and its workers; each worker has one thread and no nanny unless asked."""

    def __init__(self, folder: Path, tls: Sequence[str] = (), settings: dict[str, str] | None = None):
        self.folder = folder
        self.workers: list[Any] = []  # programs
        self._tls = list(tls)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s",  # for so long a worker that is gone is looked for
            # as in tests/conftest.py: clusters do nothing most of the time
            "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
            "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
            "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
            **(settings or {}),
        }
        self._file = folder / "scheduler.json"
        listen = ["--protocol", "tls"] if tls else []
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show", *listen,
            "--scheduler-file", str(self._file),
        )  # fmt: skip
        deadline = time.monotonic() + STARTED_SECONDS
        while not self._file.exists() or not self._file.read_text().endswith("}"):  # there, and written to its end
            if self.scheduler.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError((folder / "scheduler.log").read_text())
            time.sleep(0.05)
        self.address = json.loads(self._file.read_text())["address"]

    def add(self, *options: str, nanny: bool = False) -> Program:
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

    def living(self) -> list[int]:
        """Numbers of the workers that were not ended."""
        return [number for number, worker in enumerate(self.workers) if worker.poll() is None]

    def refill(self, client: Client, n_workers: int) -> None:
        """Start workers for those that were ended."""
        for _ in range(n_workers - len(client.nthreads())):
            self.add()
        client.wait_for_workers(n_workers, timeout=STARTED_SECONDS)

    def close(self) -> None:
        """End all processes."""
        for process in [*self.workers, self.scheduler]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # one that leads no session yet
            process.wait()

    def _start(self, kind: str, *options: str) -> Program:
        name = kind if kind == "scheduler" else f"worker{len(self.workers)}"
        log = self.folder / f"{name}.log"
        return Program(["-m", "dask", kind, *options, *self._tls], self.folder, self.environment, log, log)


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


def write_rows(path: Path) -> None:
    """Write float32 (6,000, 32), five groups in turn, as NPY."""
    X = np.random.default_rng(0).normal(size=(6_000, 32)) + 3 * (np.arange(6_000) % 5)[:, None]
    np.save(path, X.astype(np.float32))


def assert_same_bits(got: Any, wanted: Any) -> None:
    """Demand that two estimators found the same."""
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, wanted.cluster_centers_)
    assert got.inertia_ == wanted.inertia_
    assert got.history_ == wanted.history_


class Relay:
    """A relay in front of a scheduler that counts every byte: client and workers know the scheduler by its address."""

    def __init__(self, address: str):
        host, port = address.removeprefix("tcp://").split(":")
        self.n_bytes = self.n_received = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._target = (host, int(port))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, "127.0.0.1", 0), self._loop
        ).result()
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """End the connections that there are, and take no other."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        self._cut()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        if connections:
            await asyncio.wait(connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, target_writer]
        received = self._relay(target_reader, writer, received=True)
        await asyncio.gather(self._relay(reader, target_writer), received)

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, received: bool = False
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.n_bytes += len(data)
                self.n_received += len(data) if received else 0
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # one side went; the other is told
        writer.close()


class _Calls(SchedulerPlugin):
    """Notes on the scheduler what calls are named, how many of each stage are done, and what happens to tasks."""

    name = "calls"

    def __init__(self) -> None:
        self.groups: dict[str, str] = {}  # of the dashboard, by the name that people see
        self.n_done: Counter[str] = Counter()  # by the first part of that name
        self.keys: set[Any] = set()
        self.n_transitions = 0

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Note a call that is done: the name that people see, without its token, and how the dashboard groups it."""
        self.keys.add(key)
        self.n_transitions += 1
        if finish == "memory" and isinstance(key, tuple):
            stage = key[0].rsplit("-", 1)[0]
            self.groups[stage] = key_split(key)
            self.n_done[stage.split("-")[0]] += 1


@contextlib.contextmanager
def watched(client: Client, what: str = "groups") -> Iterator[Callable[[], Any]]:
    """Give a function that says what the scheduler has noted of calls, an attribute of `_Calls`."""
    client.register_plugin(_Calls())
    try:
        yield lambda: client.run_on_scheduler(lambda dask_scheduler: getattr(dask_scheduler.plugins["calls"], what))
    finally:
        client.unregister_scheduler_plugin("calls")


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
