"""What travels: bytes through the scheduler and between workers in an iteration, counted outside of Dask or by it."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

from streamkm import StreamKMeans
from tests.dask_processes import Cluster, Relay

K, M, N_CHUNKS, N_WORKERS = 50, 64, 48, 2
FEW, MANY = 2, 12  # iterations: their difference leaves out the passes
STATE_BYTES = 8 * K * M
CALL_BYTES = 8_000  # messages about one call, at most
MOST_COUNTS = 8  # until one is undisturbed


@pytest.fixture
def counted(tmp_path):
    cluster = Cluster(tmp_path)
    relay = Relay(cluster.address)
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
    n_calls = 24 + 3 + 1 + 1  # runs, joins of eight, the last join, what is shared
    most_moved = (n_calls + 2 * N_WORKERS) * 2 * STATE_BYTES
    through, moved = {}, []
    for n_rows in (4_800, *(48_000,) * MOST_COUNTS):
        path = tmp_path / f"{n_rows}.npy"
        np.save(path, np.random.default_rng(0).normal(size=(n_rows, M)).astype(np.float32))
        through[n_rows], between = per_iteration(relay, client, path, n_rows)
        moved.append(between)
        if n_rows == 48_000 and between <= most_moved:
            break
    assert max(through.values()) <= 2 * N_WORKERS * STATE_BYTES + n_calls * CALL_BYTES
    assert through[48_000] <= 1.25 * through[4_800]
    # sums travel to where they are joined, blocks stay: those of 48,000 rows have 12 MB
    # but for a block that Dask moves where one worker's processor is taken away for a while: one undisturbed count
    assert min(moved[1:]) <= most_moved
