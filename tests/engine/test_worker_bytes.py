"""What travels: bytes through the scheduler and between workers in an iteration, counted outside of Dask or by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from distributed import Client, SchedulerPlugin
from numpy.testing import assert_array_equal

from streamkm import StreamKMeans
from streamkm.cluster.blocks import MOST_LABEL_STEPS
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.cluster.sampling.row_sample import SampleRule
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.passes.gathered import Gathered
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import sketch_pass
from streamkm.sketches import make_sketch
from streamkm.sources import open_source
from tests.dask_processes import Cluster, Relay

K, M, N_CHUNKS, N_WORKERS = 50, 64, 48, 2
FEW, MANY = 2, 12  # iterations: their difference leaves out the passes
STATE_BYTES = 8 * K * M
CALL_BYTES = 8_000  # messages about one call, at most
MOST_COUNTS = 8  # until one is undisturbed
MOST_TOLD = 160  # bytes: of a chunk, beside its candidates
MOST_CALLS = 40  # of a pass


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


class LloydCalls(SchedulerPlugin):
    """Counts on the scheduler the calls of steps of Lloyd's algorithm: those that are done, and most at a time."""

    name = "lloyd-calls"

    def __init__(self) -> None:
        self.n_done = self.most = 0
        self._known: set[Any] = set()

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Note a call that is new, done or forgotten."""
        if isinstance(key, tuple) and str(key[0]).startswith("lloyd"):
            (self._known.discard if finish == "forgotten" else self._known.add)(key)
            self.most = max(self.most, len(self._known))
            self.n_done += finish == "memory"


@dataclass(frozen=True)
class Counts:
    """Bytes through the scheduler, bytes sent by workers, and calls, of one iteration; the most calls it ever knew."""

    through: float
    moved: float
    n_calls: float
    most_calls: int


def sent(dask_worker):
    return dask_worker.transfer_outgoing_bytes_total


def lloyd_calls(dask_scheduler):
    plugin = dask_scheduler.plugins["lloyd-calls"]
    return plugin.n_done, plugin.most


def per_iteration(relay, client, path, n_rows, *, k=K, n_chunks=N_CHUNKS, many=MANY, **settings):
    """What one iteration takes."""
    found, X = [], np.load(path)
    client.register_plugin(LloydCalls())
    for max_iter in (FEW, many):
        before = relay.n_bytes, sum(client.run(sent).values()), client.run_on_scheduler(lloyd_calls)[0]
        fitted = StreamKMeans(
            k, init=X[:k], max_iter=max_iter, sketch="identity", random_state=0, executor=client,
            chunk_bytes=X.itemsize * X.shape[1] * n_rows // n_chunks, progress=False, **settings,
        ).fit(path)  # fmt: skip
        assert fitted.n_iter_ == max_iter
        n_bytes, n_sent = relay.n_bytes, sum(client.run(sent).values())
        n_done, most = client.run_on_scheduler(lloyd_calls)
        found.append((n_bytes - before[0], n_sent - before[1], n_done - before[2]))
    client.unregister_scheduler_plugin("lloyd-calls")
    return Counts(*((b - a) / (many - FEW) for a, b in zip(*found, strict=True)), most)


@pytest.mark.slow
def test_bytes_of_an_iteration_do_not_depend_on_the_rows(counted, tmp_path):
    relay, client = counted
    n_calls = 24 + 3 + 1 + 1  # runs, joins of eight, the last join, what is shared
    most_moved = (n_calls + 2 * N_WORKERS) * 2 * STATE_BYTES
    through, moved = {}, []
    for n_rows in (4_800, *(48_000,) * MOST_COUNTS):
        path = tmp_path / f"{n_rows}.npy"
        np.save(path, np.random.default_rng(0).normal(size=(n_rows, M)).astype(np.float32))
        counts = per_iteration(relay, client, path, n_rows, tol=0)
        through[n_rows] = counts.through
        moved.append(counts.moved)
        if n_rows == 48_000 and counts.moved <= most_moved:
            break
    assert max(through.values()) <= 2 * N_WORKERS * STATE_BYTES + n_calls * CALL_BYTES
    assert through[48_000] <= 1.25 * through[4_800]
    # sums travel to where they are joined, blocks stay: those of 48,000 rows have 12 MB
    # but for a block that Dask moves where one worker's processor is taken away for a while: one undisturbed count
    assert min(moved[1:]) <= most_moved


@pytest.mark.slow
def test_labels_of_many_clusters_stay_on_the_workers(counted, tmp_path):
    """They begin each step from the last one's, and Dask keeps no more calls the more steps there are."""
    relay, client = counted
    k, m, n_rows = 600, 16, 300_000
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).random((n_rows, m), np.float32))
    counts = per_iteration(relay, client, path, n_rows, k=k, many=4 * MOST_LABEL_STEPS, tol=1e-9, coreset=None)
    n_calls = 24 * 3 + 3 + 1 + 1  # runs, their sums and labels; joins
    assert counts.n_calls <= n_calls
    assert counts.through <= 2 * N_WORKERS * 8 * k * m + n_calls * CALL_BYTES  # labels: 4 bytes a row, each way
    assert counts.most_calls <= (MOST_LABEL_STEPS + 1) * n_calls


N_SMALL, D = 3_000, 16  # chunks of 64 rows, and features, of a first pass


@pytest.mark.slow
def test_a_first_pass_sends_the_client_little_more_than_the_sample(counted, tmp_path):
    """Each chunk alone has 64 candidates at least, and fewer rows than the coreset, which workers reduce."""
    relay, client = counted
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).random((64 * N_SMALL, D), np.float32))
    reader = RowReader(open_source(tmp_path / "rows.npy"), 64 * 4 * D, "euclidean", "raise")
    sample_bytes = (2_000 + 1) * (4 * D + 16)
    for n_sampled, coreset_rule, most in (
        (2_000, None, 1.25 * sample_bytes + MOST_TOLD * N_SMALL + MOST_CALLS * CALL_BYTES),
        (100, CoresetRule(500, 5, seed=3), 0.3 * 64 * N_SMALL * 4 * D),
    ):
        found, rule = [], SampleRule.of(n_sampled, 7, 64 * N_SMALL, NO_WEIGHTS)
        for chosen in (2, client):
            with open_executor(chosen) as executor:
                before, context = relay.n_received, PassContext(executor=executor, reader=reader)
                sketch, gathered = make_sketch("identity", D, 0, D), Gathered(rule, coreset_rule)
                found.append(sketch_pass(context, gathered, Stage("sketch"), sketch=sketch))
                received = relay.n_received - before
        threads, workers = found
        assert received <= most
        if coreset_rule is None:
            assert len(workers.blocks.handles) == len(threads.blocks.handles) == N_SMALL
            assert workers.sample.complete == threads.sample.complete
            assert workers.blocks.total_d2norm == threads.blocks.total_d2norm
            assert_array_equal(workers.chunk_rows, threads.chunk_rows)
            pairs = [(workers.sample, threads.sample, ("X", "rows"))]
        else:
            pairs = [(workers.coreset, threads.coreset, ("X", "weights", "row_ids"))]
        for got, wanted, names in pairs:
            for name in names:
                assert_array_equal(getattr(got, name), getattr(wanted, name))
