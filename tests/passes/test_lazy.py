"""Predictions for Dask collections: lazy, block by block, equal to those for the same rows in memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.passes.predict import distances, lazy_map, nearest_d2, nearest_labels
from streamkm.sources import open_source
from tests.dask_processes import ROOT
from tests.sources.matrices import dense_matrix, sparse_matrix, unknown
from tests.tables import cases

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")

ROWS = (20, 0, 13, 20)
FUNCTIONS = {"labels": (nearest_labels, None), "d2": (nearest_d2, None), "distances": (distances, 3)}


def sparse_blocks(convert):
    return da.from_array(sparse_matrix().toarray(), chunks=(ROWS, (11, 20))).map_blocks(convert)


MADE = {
    "dense": lambda: da.from_array(dense_matrix(), chunks=(ROWS, 7)),
    "uint8": lambda: da.from_array(dense_matrix().astype("u1"), chunks=(ROWS, (3, 4))),
    "float64, column blocks": lambda: da.from_array(dense_matrix(dtype="f8"), chunks=(ROWS, (3, 1, 3))),
    "unknown heights": lambda: unknown(da.from_array(dense_matrix(), chunks=(ROWS, (3, 4)))),
    "csr_matrix": lambda: sparse_blocks(sp.csr_matrix),
    "csr_array": lambda: sparse_blocks(sp.csr_array),
    "COO": lambda: sparse_blocks(pytest.importorskip("sparse").COO.from_numpy),
    "sparse, unknown heights": lambda: unknown(sparse_blocks(sp.csr_matrix)),
}


def in_memory(array):
    """The rows in one array; sparse ones in CSR."""
    blocks = dask.compute(*array.to_delayed().ravel(), scheduler="sync")
    n_columns = array.numblocks[1]
    blocks = [block.to_scipy_sparse() if hasattr(block, "to_scipy_sparse") else block for block in blocks]
    rows = [blocks[i : i + n_columns] for i in range(0, len(blocks), n_columns)]
    if any(sp.issparse(block) for block in blocks):
        return sp.csr_array(sp.vstack([sp.hstack([sp.csr_array(block) for block in row]) for row in rows]))
    return np.block(rows)


@cases("kind", MADE)
def test_equal_to_those_in_memory(kind):
    array, metric = MADE[kind](), "cosine" if "heights" in kind else "euclidean"
    X = in_memory(array)
    model = StreamKMeans(3, random_state=0, executor=1, metric=metric).fit(X)
    wanted = {"labels": model.predict(X), "distances": model.transform(X)}
    for name, (function, n_columns) in FUNCTIONS.items():
        mapped = lazy_map(open_source(array), model.model_, function, invalid="raise", n_columns=n_columns)
        assert isinstance(mapped, da.Array)
        np.testing.assert_array_equal(mapped.chunks[0], array.chunks[0])
        assert mapped.shape[1:] == (() if n_columns is None else (n_columns,))
        got = mapped.compute(scheduler="sync")
        assert got.dtype == mapped.dtype
        if name in wanted:
            np.testing.assert_array_equal(got, wanted[name])
            assert got.dtype == wanted[name].dtype
        else:
            np.testing.assert_allclose(-got.sum(), model.score(X), rtol=1e-12)


def test_nothing_is_computed_before_it_is_asked_for_and_then_each_block_once():
    computed = []

    def note(block, block_info=None):
        computed.append(block_info[0]["chunk-location"])
        return block

    X = dense_matrix()
    model = StreamKMeans(3, random_state=0, executor=1).fit(X)
    array = da.from_array(X, chunks=(ROWS, (3, 4))).map_blocks(note, dtype="f4", meta=np.empty((0, 0), "f4"))
    labels = lazy_map(open_source(array), model.model_, nearest_labels, invalid="raise")
    assert not computed
    np.testing.assert_array_equal(labels[:20].compute(scheduler="sync"), model.labels_[:20])
    assert sorted(computed) == [(0, 0), (0, 1)]


@pytest.mark.parametrize("known", [True, False])
def test_invalid_rows(known):
    X = dense_matrix()
    model = StreamKMeans(3, random_state=0, executor=1).fit(X)
    X = X.copy()
    X[25, 3] = np.nan
    X[33:] = np.inf
    array = da.from_array(X, chunks=(ROWS, (3, 4)))
    source = open_source(array if known else unknown(array))
    place = "row 25 of dask array" if known else "row 5 of block 2 of dask array"
    refused = lazy_map(source, model.model_, nearest_labels, invalid="raise")
    with pytest.raises(InvalidInputError, match=f"^NaN in {place}; pass invalid"):
        refused.blocks[2].compute(scheduler="sync")
    labels = lazy_map(source, model.model_, nearest_labels, invalid="skip").compute(scheduler="sync")
    kept = np.isfinite(X).all(axis=1)
    np.testing.assert_array_equal(labels, np.where(kept, model.labels_, -1))
    d2 = lazy_map(source, model.model_, distances, invalid="skip", n_columns=3).compute(scheduler="sync")
    np.testing.assert_array_equal(np.isnan(d2).all(axis=1), ~kept)
    assert np.isfinite(d2[kept]).all()


def test_a_block_of_another_height():
    model = StreamKMeans(3, random_state=0, executor=1).fit(dense_matrix())
    array = da.from_array(dense_matrix(), chunks=((20, 13, 20), 7)).map_blocks(
        lambda x: x[:10], meta=np.empty((0, 0), "f4")
    )
    labels = lazy_map(open_source(array), model.model_, nearest_labels, invalid="raise")
    with pytest.raises(InvalidInputError, match=r"row 20 of dask array has shape \(10, 7\); the array says \(13, 7\)"):
        labels.blocks[1].compute(scheduler="sync")


@pytest.mark.slow
def test_arrays_of_expressions_give_what_arrays_of_task_graphs_give(tmp_path):
    """Dask's setting array.query-planning chooses, once for each process."""
    found = {}
    for setting in ("True", "False"):
        path = tmp_path / f"{setting}.npz"
        subprocess.run([sys.executable, "-m", "tests.expression_arrays", path, setting], check=True, cwd=ROOT)
        with np.load(path) as arrays:
            found[setting] = dict(arrays)
    assert found["True"].pop("expressions")
    assert not found["False"].pop("expressions")
    assert found["True"].keys() == found["False"].keys()
    for name, value in found["True"].items():
        np.testing.assert_array_equal(value, found["False"][name], err_msg=name)
    for name in ("dense", "centered", "sparse"):
        labels = found["True"][f"{name} labels"]
        for same in ("predicted", "lazy"):
            np.testing.assert_array_equal(found["True"][f"{name} {same}"], labels)
        np.testing.assert_array_equal(found["True"][f"cluster {name} there"], labels)
