"""Labels that calls write to Zarr arrays, and lazy predictions for Dask collections, equal those of rows in memory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st

from streamkm import SketchOptions, StreamKMeans
from streamkm.core.exceptions import InvalidInputError, OutputError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.fitting import assign
from streamkm.passes import labels as labelling
from streamkm.passes.labels import HeldLabels, count_skipped, open_labels, write_labels
from streamkm.passes.predict import distances, lazy_map, nearest_d2, nearest_labels
from streamkm.sources import open_source
from tests.children import tree
from tests.dask_processes import ROOT
from tests.sources.matrices import dense_matrix, sparse_matrix, unknown
from tests.tables import cases


def kmeans(**options):
    return StreamKMeans(3, random_state=0, executor=2, progress=False, chunk_bytes=200, n_init=2, **options)


def spoiled():
    X = dense_matrix().copy()
    X[[0, 7, 30]] = np.nan
    return X


MADE = {
    "dense": (dense_matrix, {}),
    "refined": (dense_matrix, {"refine": 2}),
    "skipped": (spoiled, {"invalid": "skip"}),
    "uint8": (lambda: dense_matrix().astype("u1"), {"sketch": SketchOptions("countsketch", 3)}),
    "csr": (sparse_matrix, {}),
    "sketch": (sparse_matrix, {"sketch": SketchOptions(n_components=9, assign_space="sketch")}),
}


@pytest.mark.parametrize(("kind", "rows_per_write"), [*((kind, 7) for kind in MADE), ("csr", 1)])
def test_equal_to_those_that_are_gathered(tmp_path, monkeypatch, kind, rows_per_write):
    monkeypatch.setattr(labelling, "ROWS_PER_WRITE", rows_per_write)
    make, options = MADE[kind]
    X = make()
    wanted = kmeans(**options).fit(X)
    got = kmeans(**options).fit(X, labels_to=tmp_path / "labels.zarr")
    np.testing.assert_array_equal(got.labels_[:], wanted.labels_)
    for name in ("cluster_centers_", "counts_", "sample_labels_", "inertia_", "distortion_", "n_samples_", "history_"):
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
    assert got.labels_.dtype == np.int32
    assert count_skipped(got.labels_) == count_skipped(wanted.labels_)
    again = got.predict_to(X, tmp_path / "again.zarr")
    np.testing.assert_array_equal(again[:], wanted.labels_)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.zarr", "labels.zarr"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_pieces_of_any_length(tmp_path_factory, lengths, rows_per_write):
    pieces = np.split(np.arange(sum(lengths), dtype=np.int32) - 3, np.cumsum(lengths)[:-1])
    target = tmp_path_factory.mktemp("pieces") / "labels.zarr"
    stage = Stage("labels")
    with pytest.MonkeyPatch.context() as patched, open_executor(1) as executor:
        patched.setattr(labelling, "ROWS_PER_WRITE", rows_per_write)
        write_labels(executor, HeldLabels(np.array(lengths), executor, list(pieces)), target, stage)
    np.testing.assert_array_equal(open_labels(target)[:], np.concatenate(pieces))
    assert count_skipped(open_labels(target)) == min(3, sum(lengths))


def test_each_storage_chunk_is_written_by_one_call(monkeypatch):
    """Two that wrote parts of one would lose rows."""
    monkeypatch.setattr(labelling, "ROWS_PER_WRITE", 10)
    lengths = np.array([3, 0, 20, 4, 6, 0])
    with open_executor(1) as executor:
        held = HeldLabels(lengths, executor, list(range(6)))
    items = list(labelling._storage_chunks(held, np.concatenate([[0], np.cumsum(lengths)])))
    assert [item[:2] for item in items] == [[0, 10], [10, 20], [20, 30], [30, 33]]
    assert [item[3:] for item in items] == [[0, 1, 2], [2], [2, 3, 4], [4]]
    assert labelling.n_writes(held) == 4


def test_what_cannot_be_written(tmp_path):
    X = dense_matrix()
    model = kmeans().fit(X)
    with pytest.raises(OutputError, match=r"labels are written as .zarr, .csv or .parquet, not as \S+labels.npy"):
        kmeans().fit(X, labels_to=tmp_path / "labels.npy")
    model.predict_to(X, tmp_path / "labels.zarr")
    with pytest.raises(OutputError, match=r"labels.zarr exists; pass overwrite to replace it"):
        model.predict_to(X, tmp_path / "labels.zarr")
    np.testing.assert_array_equal(
        model.predict_to(X[:5], tmp_path / "labels.zarr", overwrite=True)[:], model.labels_[:5]
    )
    (tmp_path / "mine.zarr").write_text("mine")
    zarr.create_group(str(tmp_path / "data.zarr")).create_array("X", shape=(3,), dtype="i4")[:] = 7
    shutil.copytree(tmp_path / "labels.zarr", tmp_path / "more.zarr")
    (tmp_path / "more.zarr" / "notes.txt").write_text("mine")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "labels.zarr")
    before = tree(tmp_path)
    other = {"mine": "is no directory", "data": "holds other files (X)", "more": "holds other files (notes.txt)"}
    for name, message in {**other, "link": other["mine"]}.items():
        with pytest.raises(OutputError, match=re.escape(f"{name}.zarr exists and {message}")):
            model.predict_to(X, tmp_path / f"{name}.zarr", overwrite=True)
    assert tree(tmp_path) == before
    with pytest.raises(InvalidInputError, match=r"can be read only once, .* Leave out labels_to"):
        kmeans().fit(iter([X]), labels_to=tmp_path / "once.zarr")
    np.testing.assert_array_equal(model.predict_to(iter([X]), tmp_path / "once.zarr")[:], model.labels_)


def test_what_came_while_rows_were_read_stays(tmp_path, monkeypatch):
    original = labelling.n_writes

    def meanwhile(held):
        (tmp_path / "labels.zarr").mkdir()
        (tmp_path / "labels.zarr" / "mine").write_text("mine")
        return original(held)

    monkeypatch.setattr(assign, "n_writes", meanwhile)
    with pytest.raises(OutputError, match=r"labels.zarr exists"):
        kmeans().fit(dense_matrix(), labels_to=tmp_path / "labels.zarr")
    assert [path.name for path in tmp_path.rglob("*")] == ["labels.zarr", "mine"]


def test_nothing_is_left_of_what_failed(tmp_path):
    X = dense_matrix()
    model = kmeans().fit(X)
    X[40, 1] = np.inf
    with pytest.raises(InvalidInputError, match="infinity in row 40"):
        model.predict_to(X, tmp_path / "labels.zarr")
    with pytest.raises(InvalidInputError, match="infinity in row 40"):
        kmeans().fit(X, labels_to=tmp_path / "labels.zarr")
    assert not list(tmp_path.iterdir())


da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")

ROWS = (20, 0, 13, 20)
FUNCTIONS = {"labels": (nearest_labels, None), "d2": (nearest_d2, None), "distances": (distances, 3)}


def sparse_blocks(convert):
    return da.from_array(sparse_matrix().toarray(), chunks=(ROWS, (11, 20))).map_blocks(convert)


BLOCKS = {
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


@cases("kind", BLOCKS)
def test_equal_to_those_in_memory(kind):
    array, metric = BLOCKS[kind](), "cosine" if "heights" in kind else "euclidean"
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
