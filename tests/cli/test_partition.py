"""Rows of Parquet files written by cluster: what other tools read, what is refused, kills, and memory."""

from __future__ import annotations

import os
import re
import shutil
import signal
from datetime import date
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import parquet

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.passes.label_tables import write_partitions
from tests.children import command_killed, tree
from tests.cli.test_cli import run
from tests.fresh import run_compiled
from tests.programs import forking

N, M, K = 900, 6, 5
ASSIGN = ("assign", "out/model.npz", "rows.parquet", "--partition-by", "cluster", "-o", "parts")


def rows_of(n_rows, seed=0, k=K, m=M):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n_rows, m)) + 20 * rng.integers(0, k, n_rows)[:, None]).astype(np.float16)
    numbers = np.arange(n_rows)
    return X, pa.table({
        "number": numbers,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), m),
        "text": pa.array([None if i % 7 == 0 else f"row {i} of many" for i in numbers]),
        "word": pa.array([f"w{i % 3}" for i in numbers]).dictionary_encode(),
        "day": pa.array([None if i % 5 == 0 else date(2020, 1, 1 + i % 28) for i in numbers]),
        "price": pa.array([None if i % 9 == 0 else i / 4 for i in numbers]).cast(pa.decimal128(12, 2)),
        "tags": pa.array([[f"t{j}" for j in range(i % 3)] for i in numbers]),
        "place": pa.array([{"x": float(i), "name": str(i)} for i in numbers]),
    })  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Rows in row groups, with two that are skipped, and the results of a fit."""
    folder = tmp_path_factory.mktemp("partition")
    X, table = rows_of(N)
    X[[3, 500]] = np.nan
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), M)
    table = table.set_column(1, "vector", vectors)
    parquet.write_table(table, folder / "rows.parquet", row_group_size=200)
    given = {"path": str(folder / "rows.parquet"), "columns": "vector"}
    (folder / "out").mkdir()
    StreamKMeans(K, random_state=0, invalid="skip").fit(given).save(folder / "out/model.npz")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_parts(place, table, labels):
    """Each directory has the rows of its cluster, in their order, with all columns and types."""
    assert {path.name for path in place.glob("cluster=*")} == {f"cluster={label}" for label in np.unique(labels)}
    for label in np.unique(labels):
        files = sorted(place.glob(f"cluster={label}/*"), key=lambda path: int(path.stem.removeprefix("part-")))
        found = pa.concat_tables([parquet.read_table(path, partitioning=None) for path in files])
        wanted = table.filter(pa.array(labels == label))
        assert found.schema.equals(wanted.schema)
        assert found.num_rows == wanted.num_rows
        assert found.to_pylist() == wanted.to_pylist() or np.isnan(np.stack(wanted["vector"].to_numpy())).any()


def test_rows_of_each_cluster(folder):
    said = run(*ASSIGN)
    assert "900 (2 skipped)" in said
    assert re.search(rf"^files +{K + 1}$", said, re.MULTILINE)
    kmeans = StreamKMeans.load("out/model.npz")
    labels = kmeans.predict("rows.parquet")
    assert (labels == -1).sum() == 2
    check_parts(Path("parts"), parquet.read_table("rows.parquet"), labels)
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_other_tools_read_them(folder):
    run(*ASSIGN)
    labels = StreamKMeans.load("out/model.npz").predict("rows.parquet")
    wanted = dict(zip(range(N), labels.tolist(), strict=True))
    found = ds.dataset("parts", format="parquet", partitioning="hive", exclude_invalid_files=True)
    found = found.to_table(columns=["number", "cluster"])
    assert dict(zip(found["number"].to_pylist(), found["cluster"].to_pylist(), strict=True)) == wanted
    lazy = pl.scan_parquet("parts/cluster=*/*.parquet", hive_partitioning=True)
    assert dict(lazy.select("number", "cluster").collect().rows()) == wanted
    asked = "from read_parquet('parts/**/*.parquet', hive_partitioning=true)"
    assert dict(duckdb.sql(f"select number, cluster {asked}").fetchall()) == wanted
    some = duckdb.sql(f"select count(*), max(day) {asked} where cluster = 2").fetchall()[0]
    assert some == ((labels == 2).sum(), date(2020, 1, 28))


def test_centers(folder):
    run(*ASSIGN)
    kmeans = StreamKMeans.load("out/model.npz")
    centers = np.load("parts/centers.npy")
    assert centers.dtype == np.float32
    np.testing.assert_array_equal(centers, kmeans.cluster_centers_.astype(np.float32))
    table = pa.ipc.open_file("parts/centers.arrow").read_all()
    assert table.schema == pa.schema({"cluster": pa.int32(), "center": pa.list_(pa.float32(), M)})
    assert table["cluster"].to_pylist() == [*range(K)]
    np.testing.assert_array_equal(np.stack(table["center"].to_numpy()), centers)
    frame = pl.read_ipc("parts/centers.arrow")
    assert frame.schema["center"] == pl.Array(pl.Float32, M)
    np.testing.assert_array_equal(frame["center"].to_numpy(), centers)
    asked = duckdb.from_arrow(table).select("cluster, center[1]").fetchall()
    assert asked == [*zip(range(K), centers[:, 0].tolist(), strict=True)]


def test_lists_of_faiss_are_the_partitions(tmp_path):
    faiss = pytest.importorskip("faiss")
    X, table = rows_of(N)
    parquet.write_table(table, tmp_path / "rows.parquet")
    data = {"path": str(tmp_path / "rows.parquet"), "columns": "vector"}
    kmeans = StreamKMeans(K, random_state=0).fit(data)
    kmeans.predict_to(data, tmp_path / "parts", partition_by="cluster")
    centers = np.load(tmp_path / "parts/centers.npy")
    quantizer = faiss.IndexFlatL2(M)
    quantizer.add(centers)
    index = faiss.IndexIVFFlat(quantizer, M, K)
    index.train(centers)
    assert index.is_trained
    np.testing.assert_array_equal(quantizer.reconstruct_n(0, K), centers)
    index.add(X.astype(np.float32))
    for cluster in range(K):
        n_rows = index.invlists.list_size(cluster)
        listed = faiss.rev_swig_ptr(index.invlists.get_ids(cluster), n_rows).tolist()
        rows = parquet.read_table(tmp_path / f"parts/cluster={cluster}", partitioning=None)["number"].to_pylist()
        assert listed == rows == np.flatnonzero(kmeans.labels_ == cluster).tolist()


@pytest.mark.parametrize("window_bytes", [1, 3000, 40_000, 1 << 30])
def test_any_window(tmp_path, window_bytes):
    """Skewed clusters, in batches of any size: one label above the window has files of its own."""
    rng = np.random.default_rng(0)
    _, table = rows_of(300)
    labels = rng.choice([-1, 0, 3, 4, 1000], 300, p=[0.02, 0.02, 0.9, 0.03, 0.03]).astype(np.int32)
    (tmp_path / "rows").mkdir()
    labels.tofile(tmp_path / "labels")
    done = write_partitions(iter(table.to_batches(37)), tmp_path / "labels", tmp_path / "rows", window_bytes)
    check_parts(tmp_path / "rows", table, labels)
    files = [*tree(tmp_path / "rows")]
    assert (done.n_rows, done.n_skipped, done.n_files) == (300, (labels == -1).sum(), len(files))
    if window_bytes >= 40_000:
        assert len({os.path.dirname(name) for name in files}) == 5
        assert len([name for name in files if "cluster=3/" not in name]) == 4


def test_words_of_files_may_differ(tmp_path):
    """Dictionaries differ from file to file; types and the order of columns may not."""
    tables = [pa.table({"x": np.arange(5.0) + 10 * i, "w": pa.array(words).dictionary_encode()})
              for i, words in enumerate((["a", "b", "a", "c", "b"], ["z", "a", "y", "y", "z"]))]  # fmt: skip
    parquet.write_table(tables[0], tmp_path / "a.parquet")
    parquet.write_table(tables[1], tmp_path / "b.parquet")
    data = {"path": str(tmp_path / "*.parquet"), "columns": "x"}
    kmeans = StreamKMeans(2, random_state=0).fit(data)
    kmeans.predict_to(data, tmp_path / "parts", partition_by="cluster")
    found = ds.dataset(tmp_path / "parts", partitioning="hive", exclude_invalid_files=True).to_table()
    wanted = pa.concat_tables(tables).to_pylist()
    assert sorted(map(str, found.select(["x", "w"]).to_pylist())) == sorted(map(str, wanted))
    parquet.write_table(tables[1].set_column(1, "w", pa.array(range(5))), tmp_path / "b.parquet")
    with pytest.raises(InvalidInputError, match="has files of several schemas"):
        kmeans.predict_to(data, tmp_path / "new", partition_by="cluster")
    assert not (tmp_path / "new").exists()


def test_what_is_there_stays_unless_it_may_be_replaced(folder):
    run(*ASSIGN)
    before = tree("parts")
    assert "parts exists; pass --overwrite to replace it" in run(*ASSIGN, code=2)
    run(*ASSIGN, "--overwrite")
    assert tree("parts") == before
    Path("parts/mine.txt").write_text("mine")
    assert "holds other files (mine.txt)" in run(*ASSIGN, "--overwrite", code=2)
    assert tree("parts") == {**before, "mine.txt": b"mine"}


def test_other_sources_are_refused_with_what_to_do(folder):
    np.save("x.npy", np.zeros((10, M), np.float32))
    kmeans = StreamKMeans(2, random_state=0).fit(np.random.default_rng(0).normal(size=(20, M)))
    kmeans.save("arrays.npz")
    said = run("assign", "arrays.npz", "x.npy", "--partition-by", "cluster", "-o", "new", code=2)
    assert "x.npy is no Parquet table" in said
    assert "or write labels alone to NAME.parquet" in said
    table = parquet.read_table("rows.parquet")
    parquet.write_table(table.append_column("cluster", table["number"]), "rows.parquet")
    assert "has a column 'cluster': rename it" in run(*ASSIGN, code=2)
    with pytest.raises(InvalidParameterError, match="partition_by='day'; needed: one of 'cluster'"):
        kmeans.predict_to("rows.parquet", "new", partition_by="day")
    assert not {"new", "parts"} & {*os.listdir()}


def killed(moment, *more):
    """Run the command in a process that is killed at a moment; see `killed_at`."""
    child = forking().Process(target=command_killed, args=(os.getcwd(), moment, [*ASSIGN, *more]))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_a_killed_run_leaves_no_half_directory(folder):
    """Killed between the directories of clusters, and before the last rename, with and without an old directory."""
    for moment in (4, "rows"):
        killed(moment)
        assert not Path("parts").exists()
    run(*ASSIGN)
    assert not [name for name in os.listdir() if name.startswith(".")]
    before = tree("parts")
    killed("rows", "--overwrite")
    assert not Path("parts").exists()  # it is aside, and the next call puts it back
    assert "parts exists" in run(*ASSIGN, code=2)
    assert tree("parts") == before


MEMORY = """
import json, os, sys
from streamkm.cli.main import main
os.chdir(sys.argv[2])
main(["assign", "m.npz", "rows.parquet", "--partition-by", "cluster", "-o", "parts", "--memory-limit", sys.argv[1],
      "--columns", "v", "--quiet", "--overwrite"], standalone_mode=False)
print(json.dumps(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_memory(tmp_path, monkeypatch):
    """100 MB of rows in 4,096 clusters, some of them large, within a limit that the rows exceed."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    places = rng.normal(size=(4096, 16))
    schema = pa.schema({"v": pa.list_(pa.float32(), 16), "text": pa.string()})
    labels = []
    with parquet.ParquetWriter("rows.parquet", schema, compression="none") as writer:
        while Path("rows.parquet").stat().st_size < 100_000_000:
            labels.append(np.minimum(rng.integers(0, 6000, 20_000), 4095))  # a third in the last
            X = (places[labels[-1]] + 1e-3 * rng.normal(size=(20_000, 16))).astype(np.float32)
            texts = pa.array([f"{x:0300.9f}" for x in X[:, 0].tolist()])
            vectors = pa.FixedSizeListArray.from_arrays(X.ravel(), 16)
            writer.write_table(pa.Table.from_arrays([vectors, texts], schema=schema))
    data = {"path": "rows.parquet", "columns": "v"}
    StreamKMeans(4096, init=places, max_iter=1, refine=0, random_state=0).fit(data).save("m.npz")
    limit = 400 << 20
    peak = run_compiled(MEMORY, [str(limit), str(tmp_path)])
    assert peak < limit
    found = dict(
        duckdb.sql(
            "select cluster, count(*) from read_parquet('parts/*/*', hive_partitioning=true) group by 1"
        ).fetchall()
    )
    wanted = np.bincount(np.concatenate(labels), minlength=4096)
    assert found == dict(enumerate(wanted.tolist()))
