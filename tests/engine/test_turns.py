"""Which worker gets which chunks: storage chunks that two share are read twice by few, and all end together."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from streamkm import SketchOptions, StreamKMeans, engine
from streamkm.core.progress import Stage
from streamkm.engine.dask_workers import SHARE, Reading, Turns
from streamkm.engine.reduction import FEW_RUNS, RUNS, run_lengths
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import count_pass
from streamkm.sketches import CountSketch
from streamkm.sources.binary import csr_groups
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.chunks import Origin
from streamkm.stores.writer import write_store
from tests.sources.counting import logged_csr

N_CHUNKS = 120
MOST_READS = 1.05  # of a storage chunk in a pass, on average


@pytest.fixture(scope="module")
def workers():
    """Two processes that hold no more shared storage chunks than they must, and that take no calls from each other."""

    def keep_few():
        csr_groups._KEPT_BOUNDARY_BYTES = 0

    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),  # each theft may cost two reads
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(keep_few)
        yield client


@pytest.fixture
def stored(tmp_path):
    """A source of `N_CHUNKS` storage chunks that rows cross, and its arrays of values and indices."""
    X = sp.random_array((N_CHUNKS * 50, 300), density=1 / 15, format="csr", rng=np.random.default_rng(0))
    arrays = logged_csr(X.astype(np.float32), X.nnz // N_CHUNKS + 1, tmp_path)
    return CsrSource(*arrays, shape=X.shape, name="x"), arrays[:2]


def reads(arrays, n_passes=1):
    data, indices = (array.reads() / n_passes for array in arrays)
    assert data == indices >= 1
    return data


def test_passes_read_storage_chunks_once_but_for_few(workers, stored, tmp_path):
    source, arrays = stored
    chunk_bytes = 16 * arrays[0].unit_rows
    settings = {"refine": 0, "random_state": 0, "chunk_bytes": chunk_bytes, "progress": False, "executor": workers}
    kmeans = StreamKMeans(3, sketch=SketchOptions(n_components=16), **settings).fit(source)
    assert 2 * len(source.chunks(chunk_bytes)) >= N_CHUNKS
    assert reads(arrays, 2) <= MOST_READS
    for method in (kmeans.predict, kmeans.transform):
        method(source)
        assert reads(arrays) <= MOST_READS
    reader = RowReader(source, 8 * arrays[0].unit_rows, "euclidean", "raise")
    with engine.open_executor(workers) as executor:
        count_pass(PassContext(executor=executor, reader=reader), Stage("count"))
        assert reads(arrays) <= MOST_READS
        source.origin = Origin(files=(str(tmp_path),))  # known by its files: no rows are read to know it again
        write_store(tmp_path / "s.zarr", reader, CountSketch(16, 0), executor, Stage("store"))
        assert reads(arrays) <= MOST_READS


@given(st.integers(1, 3_000), st.integers(1, 12), st.integers(2, 40), st.sampled_from([RUNS, FEW_RUNS]))
def test_stretches_are_long_enough_and_even(n_chunks, n_units, n_workers, n_runs):
    """What two workers share is one part in 24, or less than one part for each; nobody gets a stretch too many."""
    reading = Reading(n_chunks, 1000 * n_units, 1000)
    for lengths in (run_lengths(n_chunks, n_runs), [1] * n_chunks):
        stretch = reading.stretch(len(lengths), n_workers)
        turns, given_items, seen = Turns(stretch), Counter(), []
        addresses = {f"w{i}": 1 for i in range(n_workers)}
        for length in lengths:
            seen.append(turns.place(addresses, length))
            given_items[seen[-1]] += length
        assert sum(given_items.values()) == n_chunks
        longest = stretch * max(lengths)
        assert max(given_items.values()) <= n_chunks / n_workers + longest
        borders = sum(a != b for a, b in pairwise(seen))
        assert borders <= max(n_workers - 1, n_units * n_chunks / SHARE + 1)
        assert longest <= 2 * (SHARE / n_units + 1 + max(lengths))


def test_a_lost_worker_gets_no_more():
    turns = Turns(4)
    assert [turns.place({"a": 1, "b": 1}, 1) for _ in range(6)] == ["a"] * 4 + ["b"] * 2
    assert [turns.place({"a": 1}, 1) for _ in range(2)] == ["a"] * 2
    # a worker that comes catches up; one with two threads gets twice as many
    assert [turns.place({"a": 1, "c": 2}, 1) for _ in range(6)] == ["a"] * 2 + ["c"] * 4
