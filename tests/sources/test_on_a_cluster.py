"""Rows that lie in this process, on workers of another: sent chunk by chunk, never with the calls themselves."""

from __future__ import annotations

import pickle

import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine.dask import DaskCluster
from streamkm.passes.reader import RowReader
from streamkm.sources import open_source
from tests.sources.matrices import dense_matrix, sparse_matrix, unknown
from tests.tables import slow_but

MOST_WALK_BYTES = 100_000
ROWS = 5_000


@pytest.fixture
def walk_bytes(monkeypatch):
    """Pickled size of every reader that was shared with workers."""
    sizes = []
    share = DaskCluster.share

    def measured(self, value):
        walks = [part for part in value if isinstance(part, RowReader)] if isinstance(value, tuple) else []
        sizes.extend(len(pickle.dumps(reader)) for reader in walks)
        return share(self, value)

    monkeypatch.setattr(DaskCluster, "share", measured)
    return sizes


def groups(n_rows=ROWS, d=64):
    """float32, 1.3 MB by default."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n_rows, d)) + 6 * (np.arange(n_rows) % 5)[:, None]).astype(np.float32)


def in_blocks(convert=None, columns=(20, 44)):
    """A Dask array (900, 64) with an empty row-block."""
    array = da.from_array(groups(900), chunks=((300, 0, 250, 350), columns))
    return array if convert is None else array.map_blocks(convert)


def frame():
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    return dd.from_pandas(pd.DataFrame(groups(900)), npartitions=4)


def coo(block):
    return pytest.importorskip("sparse").COO.from_numpy(block)


MADE = {
    "dask, heights unknown": lambda: unknown(in_blocks()),
    "dask, csr": lambda: in_blocks(sp.csr_matrix),
    "dask, sparse": lambda: in_blocks(coo),
    "dask frame": frame,
    "array": groups,
    "callable": lambda: lambda: iter(np.array_split(groups(9_000), 7)),
    "dask in a list": lambda: [da.from_array(groups(900), chunks=(300, 64)), groups(500)],
}


@pytest.mark.parametrize("kind", slow_but(["dask, csr", "dask frame", "array", "callable"], MADE))
def test_walks_are_small_and_results_the_same(client, walk_bytes, kind):
    X = MADE[kind]()
    got, wanted = (
        StreamKMeans(3, random_state=0, n_init=1, max_iter=5, tol=0, executor=executor).fit(X)
        for executor in (client, 2)
    )
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, wanted.cluster_centers_)
    assert got.inertia_ == wanted.inertia_
    np.testing.assert_array_equal(got.predict(X), wanted.labels_)
    assert len(walk_bytes) >= 2
    assert max(walk_bytes) < MOST_WALK_BYTES


def test_kernels_on_dask_arrays(client):
    array = in_blocks(sp.csr_matrix)
    options = {"n_landmarks": 60, "rank": 16, "random_state": 0, "progress": False}
    got, wanted = (StreamKernelKMeans(3, executor=executor, **options).fit(array) for executor in (client, 2))
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, wanted.cluster_centers_)
    assert got.inertia_ == wanted.inertia_
    lazy = got.predict(array)
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == array.chunks[:1]
    np.testing.assert_array_equal(client.compute(lazy).result(), wanted.labels_)


def spoiled(row=777, n_rows=1000):
    X = groups(n_rows, 4)
    X[row, 2] = np.nan
    return X


SPOILED = {
    "array": (spoiled, "row 777 of array"),
    "list": (lambda: [groups(500, 4), spoiled(7)], r"row 7 of array \(number 1 of the list\)"),
    "callable": (lambda: lambda: iter([groups(500, 4), spoiled(277)]), "row 777 of iterable of chunks"),
    "dask, unknown": (lambda: unknown(da.from_array(spoiled(), chunks=(250, 4))), "row 27 of block 3 of dask array"),
}


@pytest.mark.parametrize(
    ("where", "kind"),
    [("threads", "array"), ("threads", "list"), ("cluster", "callable"), ("cluster", "dask, unknown")],
)
def test_errors_on_workers_name_the_row(request, kind, where):
    make, place = SPOILED[kind]
    executor = request.getfixturevalue("client") if where == "cluster" else 2
    with pytest.raises(InvalidInputError, match=f"^NaN in {place}; pass invalid"):
        StreamKMeans(2, executor=executor, chunk_bytes=2_000).fit(make())


def test_what_lies_in_this_process(tmp_path):
    X, path = dense_matrix(), str(tmp_path / "x.npy")
    np.save(path, X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
        assert open_source(file["X"]).access.in_process
    in_memory = zarr.storage.MemoryStore()
    zarr.create_array(in_memory, name="X", data=X)
    for held in (X, X.tolist(), sparse_matrix(), [X, X], iter([X]), lambda: iter([X]), zarr.open_group(in_memory)):
        assert open_source(held).access.in_process
    for stored in (path, [path] * 2, np.load(path, mmap_mode="r"), h5py.File(tmp_path / "x.h5", "r")):
        assert not open_source(stored).access.in_process


def test_blocks_that_lie_on_workers_are_read_there(client, monkeypatch):
    """Dask chooses the workers: this process would send blocks from one to another."""
    places = []
    submit = DaskCluster._submit

    def watched(self, stage, *rest, place=None):
        places.append((stage, place))
        return submit(self, stage, *rest, place=place)

    monkeypatch.setattr(DaskCluster, "_submit", watched)
    array = client.persist(da.from_array(groups(900), chunks=(90, 64)))
    StreamKMeans(5, random_state=0, progress=False, executor=client).fit(array)
    assert {place for stage, place in places if stage in ("sketch", "assign")} == {None}
