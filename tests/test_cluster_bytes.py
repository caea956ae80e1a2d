"""What travels: bytes through the scheduler and between workers in an iteration, counted outside of Dask or by it."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from distributed import Client

from streamkm import StreamKMeans
from tests.dask_processes import Cluster

K, M, N_CHUNKS, N_WORKERS = 50, 64, 48, 2
FEW, MANY = 2, 12  # iterations: their difference leaves out the passes
STATE_BYTES = 8 * K * M
CALL_BYTES = 8_000  # messages about one call, at most


class Counted:
    """A relay in front of a scheduler that counts every byte: client and workers know the scheduler by its address."""

    def __init__(self, address: str):
        host, port = address.removeprefix("tcp://").split(":")
        self.n_bytes = 0
        self._target = (host, int(port))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, "127.0.0.1", 0), self._loop
        ).result()
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connected(self, reader, writer):
        target_reader, target_writer = await asyncio.open_connection(*self._target)
        await asyncio.gather(self._relay(reader, target_writer), self._relay(target_reader, writer))

    async def _relay(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                self.n_bytes += len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # one side went; the other is told
        writer.close()


@pytest.fixture
def counted(tmp_path):
    cluster = Cluster(tmp_path)
    relay = Counted(cluster.address)
    try:
        cluster.address = relay.address
        for _ in range(N_WORKERS):
            cluster.add()
        with Client(relay.address, set_as_default=False) as client:
            client.wait_for_workers(N_WORKERS, timeout=60)
            yield relay, client
    finally:
        cluster.close()
        relay.close()


def sent(dask_worker):
    return dask_worker.transfer_outgoing_bytes_total


def per_iteration(relay, client, path, n_rows):
    """Bytes through the scheduler, and sent by workers, of one iteration."""
    found = []
    for max_iter in (FEW, MANY):
        before = relay.n_bytes, sum(client.run(sent).values())
        fitted = StreamKMeans(
            K, init=np.load(path)[:K], max_iter=max_iter, tol=0, sketch="identity", random_state=0, executor=client,
            chunk_bytes=4 * M * n_rows // N_CHUNKS, progress=False,
        ).fit(path)  # fmt: skip
        assert fitted.n_iter_ == max_iter
        found.append((relay.n_bytes - before[0], sum(client.run(sent).values()) - before[1]))
    (few, few_sent), (many, many_sent) = found
    return (many - few) / (MANY - FEW), (many_sent - few_sent) / (MANY - FEW)


@pytest.mark.slow
def test_bytes_of_an_iteration_do_not_depend_on_the_rows(counted, tmp_path):
    relay, client = counted
    through, moved = {}, []
    for n_rows in (4_800, 48_000, 48_000, 48_000):
        path = tmp_path / f"{n_rows}.npy"
        np.save(path, np.random.default_rng(0).normal(size=(n_rows, M)).astype(np.float32))
        through[n_rows], between = per_iteration(relay, client, path, n_rows)
        moved.append(between)
    n_calls = 24 + 3 + 1 + 1  # runs, joins of eight, the last join, what is shared
    assert max(through.values()) <= 2 * N_WORKERS * STATE_BYTES + n_calls * CALL_BYTES
    assert through[48_000] <= 1.25 * through[4_800]
    # sums travel to where they are joined, blocks stay: those of 48,000 rows have 12 MB
    # but for a block that Dask moves where one worker's processor is taken away for a while: the least of three counts
    assert min(moved[1:]) <= (n_calls + 2 * N_WORKERS) * 2 * STATE_BYTES
