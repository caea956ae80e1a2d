"""Labels where they are needed: tables with distances, columns beside frames, obs of AnnData."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from streamkm import SketchOptions, StreamKMeans, open_source
from streamkm.cli.main import main
from streamkm.core.atomic_io import working_directory
from streamkm.core.exceptions import DiskFullError, InvalidInputError, MissingDependencyError, OutputError
from streamkm.passes.label_tables import COLUMNS
from streamkm.sources.chunks import Origin
from tests.fresh import run_fresh
from tests.tables import cases


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


PARQUET = """
import json, sys
import numpy as np
from streamkm import StreamKMeans
StreamKMeans(2, progress=False).fit(np.arange(40.0).reshape(20, 2), labels_to=sys.argv[1])
print(json.dumps("pandas" in sys.modules))
"""


@pytest.mark.slow
def test_a_parquet_table_loads_no_pandas(tmp_path):
    """What pyarrow loads for `pyarrow.array` alone takes some 50 MiB that no plan counts."""
    assert not run_fresh(PARQUET, [str(tmp_path / "x.parquet")])
    assert pq.read_table(tmp_path / "x.parquet")["second_distance"].null_count == 0
