"""Labels in Zarr arrays, in tables with distances, beside frames, and lazy ones: those of rows in memory."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from streamkm import SketchOptions, StreamKMeans, open_source
from streamkm.cli.main import main
from streamkm.core.atomic_io import working_directory
from streamkm.core.exceptions import DiskFullError, InvalidInputError, MissingDependencyError, OutputError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.fitting import assign
from streamkm.passes import labels as labelling
from streamkm.passes.label_tables import COLUMNS
from streamkm.passes.labels import HeldLabels, count_skipped, open_labels, write_labels
from streamkm.passes.predict import distances, lazy_map, nearest_d2, nearest_labels
from streamkm.sources.chunks import Origin
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


def rows(n=500, d=4):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, d)) + 8 * rng.integers(0, 3, (n, 1))).astype(np.float32)


def fitted(X, n_clusters=3, **parameters):
    return StreamKMeans(n_clusters, random_state=0, progress=False, **parameters).fit(X)


def read(path):
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


@cases(
    "kind, suffix",
    [
        ("dense", ".csv"), ("sparse", ".parquet"), ("skipped", ".csv"), ("skipped", ".parquet"),
        ("one cluster", ".csv"), ("one cluster", ".parquet"), ("in the sketch", ".parquet"),
    ],
)  # fmt: skip
def test_tables_hold_what_loops_find(kind, suffix, tmp_path):
    X, given = rows(), {"chunk_bytes": 2000}
    if kind == "skipped":
        X[[3, 499], 1] = np.nan
        given["invalid"] = "skip"
    if kind == "in the sketch":
        X, given = np.tile(X, 30), {"sketch": SketchOptions("signs", 8, assign_space="sketch")}
    source = sp.csr_array(X) if kind == "sparse" else X
    model = fitted(source, 1 if kind == "one cluster" else 3, **given)
    path = tmp_path / f"labels{suffix}"
    written = model.predict_to(source, path)
    table = read(path)
    assert tuple(table.columns) == ("row", *COLUMNS)
    assert table.row.tolist() == list(range(len(X)))
    assert (written.n_rows, written.n_skipped) == (len(X), int((model.labels_ < 0).sum()))
    assert table.label.tolist() == model.labels_.tolist()
    seen = model.labels_ >= 0
    away = model.transform(source)[seen].astype(np.float64)
    order = np.argsort(away, axis=1)
    some, at = table[seen], np.arange(seen.sum())
    np.testing.assert_allclose(some.distance, away[at, order[:, 0]], rtol=1e-5)
    if kind == "one cluster":
        assert some.second_label.isna().all()
        assert some.second_distance.isna().all()
    else:
        np.testing.assert_allclose(some.second_distance, away[at, order[:, 1]], rtol=1e-4)
        assert some.second_label.tolist() == order[:, 1].tolist()
    assert table[~seen].drop(columns=["row", "label"]).isna().all(axis=None)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_fit_writes_them_and_a_loaded_model_the_same(suffix, tmp_path):
    np.save(tmp_path / "X.npy", rows())
    path = tmp_path / f"a{suffix}"
    model = StreamKMeans(3, random_state=0, progress=False).fit(tmp_path / "X.npy", labels_to=path)
    assert model.n_passes_ == 3
    assert (model.stages_[-1].name, model.stages_[-1].rows) == ("predict", len(rows()))
    assert isinstance(model.labels_, np.ndarray)
    model.save(tmp_path / "m.npz")
    StreamKMeans.load(tmp_path / "m.npz").predict_to(tmp_path / "X.npy", tmp_path / f"b{suffix}")
    assert read(tmp_path / f"b{suffix}").equals(read(path))
    for write in (
        lambda: StreamKMeans(3).fit(tmp_path / "X.npy", labels_to=path),
        lambda: model.predict_to(rows(), path),
    ):
        with pytest.raises(OutputError, match="exists"):
            write()
    model.predict_to(rows()[:7], path, overwrite=True)
    assert len(read(path)) == 7
    with pytest.raises(InvalidInputError, match="read only once"):
        StreamKMeans(3).fit(iter([rows()]), labels_to=tmp_path / "c.csv")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_what_is_no_file_is_neither_opened_nor_replaced(tmp_path):
    """Nobody writes to the pipes, so whoever opened one would wait for ever."""
    X = rows()
    model = fitted(X)
    np.save(tmp_path / "X.npy", X)
    model.save(tmp_path / "m.npz")
    for name in ("pipe.csv", "pipe.parquet", "pipe.npy", "pipe.npz", "pipe.html"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "link.csv").symlink_to(os.devnull)
    for name in ("pipe.csv", "pipe.parquet", "link.csv"):
        with pytest.raises(OutputError, match="no regular file"):
            model.predict_to(X, tmp_path / name, overwrite=True)
    with pytest.raises(OutputError, match="no regular file"):
        model.save(tmp_path / "pipe.npz")
    with pytest.raises(OutputError, match="no regular file"):
        model.report(tmp_path / "pipe.html")
    data, target = str(tmp_path / "X.npy"), str(tmp_path / "pipe.npy")
    for command in (["assign", str(tmp_path / "m.npz"), data], ["dedupe", data]):
        done = CliRunner().invoke(main, [*command, "-o", target, "--overwrite"])
        assert done.exit_code == 2
        assert "no regular file" in done.output
    assert all(path.is_fifo() for path in tmp_path.glob("pipe.*"))


def named_rows(rows, pieces):
    """A source of rows with ids, which come in pieces."""
    source = open_source(rows)
    source.origin, source.ids = Origin(id_column="who"), lambda: iter(pieces)
    return source


def test_calls_that_still_run_put_nothing_in_a_directory_that_is_removed(tmp_path, monkeypatch):
    remove = shutil.rmtree

    def meanwhile(path, **options):
        with pytest.raises(FileNotFoundError):
            (place / "part").touch()
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", meanwhile)
    with pytest.raises(ValueError, match="failed"), working_directory(tmp_path / "labels.csv") as place:
        raise ValueError("failed")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("suffix", "chunk_bytes"), [(".csv", 800), (".parquet", 80_000)], ids=["while parts are joined", "in a part"]
)
def test_a_full_disk_leaves_the_table_as_it_was(suffix, chunk_bytes, tmp_path):
    resource = pytest.importorskip("resource")
    X, path = rows(2_000), tmp_path / f"labels{suffix}"
    model = fitted(X, chunk_bytes=chunk_bytes)
    model.predict_to(X[:7], path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(DiskFullError, match=rf"labels\{suffix}: no space"):
            model.predict_to(X, path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_stand_in_place_of_numbers(suffix, tmp_path):
    X = rows()
    model = fitted(X)
    wanted = model.predict(X[:6]).tolist()
    chunks = da.from_array(X[:6], chunks=((2, 0, 4), (4,)))
    names = ["a", 'b,"x"', "c\nd\re", "", None, "ü"]
    path = tmp_path / f"labels{suffix}"
    for cuts in ([0, 6], [0, 1, 1, 4, 6]):
        pieces = [pa.chunked_array([names[i:j]], pa.string()) for i, j in pairwise(cuts)]
        model.predict_to(named_rows(chunks, pieces), path, overwrite=True)
        table = read(path)
        assert table.label.tolist() == wanted
        if suffix == ".parquet":
            assert [None if name != name else name for name in table.who] == names  # noqa: PLR0124 - NaN
            continue
        with open(path, newline="") as file:
            lines = list(csv.reader(file))
        assert [line[0] for line in lines] == ["who", *(name or "" for name in names)]
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(lines)
        assert path.read_bytes() == text.getvalue().encode()
    for wrong in (names[:4], [*names, "f"]):
        with pytest.raises(InvalidInputError, match=r"(fewer|more) ids than rows"):
            model.predict_to(named_rows(chunks, [pa.chunked_array([wrong])]), path, overwrite=True)
    assert read(path).label.tolist() == wanted


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    model = fitted(rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"streamkm\[tables\]"):
        model.predict_to(rows(), tmp_path / "labels.parquet")


def test_commands_write_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", rows())

    def run(*given, code=0):
        done = CliRunner().invoke(main, list(given))
        assert done.exit_code == code, done.output
        return done.output

    run("fit", "X.npy", "-k", "3", "--seed", "0", "--labels-format", "parquet", "-o", "out", "-q")
    table = read(tmp_path / "out" / "labels.parquet")
    assert len(table) == 500
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert "more-labels.parquet" in page
    summary = json.loads((tmp_path / "out" / "streamkm.json").read_text())
    assert summary["result"]["n_passes"] == 3
    assert "predict" in [stage["name"] for stage in summary["stages"]]
    assert "500" in run("assign", "out/model.npz", "X.npy", "-o", "again.parquet")
    assert read(tmp_path / "again.parquet").equals(table)
    assert "pass --overwrite" in run("assign", "out/model.npz", "X.npy", "-o", "again.parquet", code=2)
    run("assign", "out/model.npz", "X.npy", "-o", "again.parquet", "--overwrite", "-q")
    run("fit", "X.npy", "-k", "3", "-o", "out", "--overwrite", "-q")
    assert not (tmp_path / "out" / "labels.parquet").exists()
    assert (tmp_path / "out" / "labels.npy").exists()


def test_columns_beside_frames():
    frame = pd.DataFrame(rows(), columns=list("abcd"))
    model = fitted(frame)
    labels = model.labels_.tolist()
    with_pandas = model.with_labels(frame)
    assert with_pandas["cluster"].tolist() == labels
    assert "cluster" not in frame
    assert model.with_labels(with_pandas, overwrite=True)["cluster"].tolist() == labels
    with pytest.raises(InvalidInputError, match="already"):
        model.with_labels(with_pandas)
    polars = pl.from_pandas(frame)
    assert model.with_labels(polars, "k")["k"].to_list() == labels
    assert model.with_labels(polars.lazy(), "k").collect()["k"].to_list() == labels
    assert model.with_labels(model.with_labels(polars), overwrite=True).columns == ["a", "b", "c", "d", "cluster"]
    lazy = model.with_labels(dd.from_pandas(frame, npartitions=3))
    assert hasattr(lazy, "dask")
    assert lazy.compute()["cluster"].tolist() == labels
    for other in (rows(), "x.npy", Path("x.h5ad"), [[1.0]]):
        with pytest.raises(InvalidInputError, match="takes no"):
            model.with_labels(other)
