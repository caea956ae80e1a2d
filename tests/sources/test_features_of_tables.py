"""Features and rows of tables: columns by name, no index, keys of folders, files in order; names of features."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from dask import dataframe as dd
from pyarrow import parquet as pq
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from tests.cli.test_cli import run
from tests.contracts import assemble
from tests.tables import cases, row

RNG = np.random.default_rng(0)
GROUP = RNG.integers(0, 3, 300)
FRAME = pd.DataFrame(np.array([[0, 0], [9, 0], [0, 9]])[GROUP] + RNG.normal(size=(300, 2)), columns=["a", "b"])
SHUFFLED = FRAME.sample(frac=1, random_state=0)


def rows(X, **options):
    source = open_source(X, **options)
    return assemble(source.stream(1 << 12), source.n_features)


def fitted(X):
    return StreamKMeans(3, random_state=0, progress=False).fit(X)


def writers(frame, folder):
    """Files of a frame with its index, in all formats of tables."""
    frame.to_parquet(folder / "x.parquet", row_group_size=64)
    frame.to_csv(folder / "x.csv")
    with pa.ipc.new_file(folder / "x.arrow", pa.Table.from_pandas(frame).schema) as file:
        file.write(pa.Table.from_pandas(frame))
    frame.to_csv(folder / "x.csv.gz")


def readers(folder):
    """Every way to give the rows of these files."""
    path = str(folder / "x.parquet")
    yield from (folder / name for name in ("x.parquet", "x.csv", "x.csv.gz", "x.arrow"))
    yield from (pd.read_parquet(path), pd.read_csv(folder / "x.csv"))
    if "__index_level_1__" not in pq.read_schema(path).names:  # which Dask cannot read
        yield dd.read_parquet(path)
    yield dd.read_csv(folder / "x.csv")
    yield from (pl.read_parquet(path), pl.read_csv(folder / "x.csv"), pl.scan_parquet(path))
    table = pq.read_table(path)
    yield from (table, table.to_reader(), pa.dataset.dataset(path), duckdb.read_parquet(path))
    yield from ([table.slice(0, 100), table.slice(100)], lambda: iter([table.slice(0, 100), table.slice(100)]))
    yield pa.ipc.open_file(folder / "x.arrow").read_all()


@pytest.mark.parametrize(
    ("frame", "index"),
    [
        pytest.param(SHUFFLED, "__index_level_0__", marks=(pytest.mark.slow, pytest.mark.full)),
        (SHUFFLED.set_index(pd.MultiIndex.from_arrays([SHUFFLED.index, GROUP])), "__index_level_1__"),
    ],
    ids=["one level", "two levels"],
)
def test_the_same_file_has_the_same_clusters(tmp_path, frame, index):
    writers(frame, tmp_path)
    wanted = fitted(frame)
    for X in readers(tmp_path):
        with row(kind=type(X), X=str(X)[-20:]):
            found = fitted(X)
            assert tuple(found.feature_names_in_) == ("a", "b")
            assert adjusted_rand_score(found.labels_, wanted.labels_) == 1
            assert found.inertia_ == pytest.approx(wanted.inertia_, rel=1e-12)
    for X in (frame, pl.read_parquet(tmp_path / "x.parquet"), tmp_path / "x.csv"):
        np.testing.assert_array_equal(wanted.predict(X), wanted.labels_)
    by_name = ["b", index]
    for X in (tmp_path / "x.parquet", tmp_path / "x.arrow", pl.read_parquet(tmp_path / "x.parquet")):
        level = pq.read_table(tmp_path / "x.parquet")[index].to_numpy()
        np.testing.assert_array_equal(rows(X, columns=by_name), np.c_[frame["b"], level])
        ids = np.concatenate([part.to_numpy() for part in open_source(X, id_column=index).ids()])
        np.testing.assert_array_equal(ids, level)


def test_an_index_with_a_name(tmp_path):
    named = FRAME.set_index(pd.Index(RNG.permutation(300), name="number"))
    named.to_parquet(tmp_path / "x.parquet")
    for X in (tmp_path / "x.parquet", pq.read_table(tmp_path / "x.parquet"), pa.Table.from_pandas(named).to_reader()):
        source = open_source(X)
        assert source.feature_names == ("a", "b")
    assert open_source(tmp_path / "x.parquet").details()["left out"] == "'number' (index)"
    np.testing.assert_array_equal(rows(tmp_path / "x.parquet", columns="number")[:, 0], named.index)
    FRAME.to_parquet(tmp_path / "y.parquet")  # without one
    assert open_source(tmp_path).feature_names == ("a", "b")
    model = StreamKMeans(2, random_state=0, progress=False).fit(
        open_source(tmp_path / "x.parquet", columns=["a", "number"])
    )
    np.testing.assert_array_equal(model.predict(tmp_path / "x.parquet"), model.labels_)
    FRAME[["a"]].set_index("a").to_parquet(tmp_path / "z.parquet")
    with pytest.raises(InvalidInputError, match=r"no column is left to be a feature; it has 'a' \(index\)"):
        open_source(tmp_path / "z.parquet")


def test_an_index_of_dask(tmp_path):
    level = "__null_dask_index__"
    named = FRAME.set_index(pd.Index(RNG.permutation(300))).sort_index()
    dd.from_pandas(named, npartitions=3).to_parquet(tmp_path / "x")
    files = sorted((tmp_path / "x").glob("*.parquet"))
    for X in (files, dd.read_parquet(tmp_path / "x").rename_axis(index=level)):
        np.testing.assert_array_equal(rows(X, columns=["b", level]), np.c_[named["b"], named.index])
        source = open_source(X, id_column=level)
        assert source.feature_names == ("a", "b")
        np.testing.assert_array_equal(np.concatenate([np.asarray(part) for part in source.ids()]), named.index)
        with pytest.raises(InvalidInputError, match="column 'other' is missing"):
            open_source(X, columns=["b", "other"])


def write_hive(folder, frame, keys):
    pq.write_to_dataset(pa.Table.from_pandas(frame, preserve_index=False), folder / "p", partition_cols=keys)
    for place, part in frame.groupby(keys):
        for name, write in (("c", lambda part, path: part.to_csv(path, index=False)), ("f", pd.DataFrame.to_feather)):
            under = folder / name / "/".join(f"{key}={value}" for key, value in zip(keys, place, strict=True))
            under.mkdir(parents=True)
            write(part.drop(columns=keys).reset_index(drop=True), under / ("x.csv" if name == "c" else "x.arrow"))


def test_keys_of_folders_are_columns_of_text(tmp_path):
    zones = np.array(["01", "2A", "10"])[GROUP]
    frame = FRAME.assign(zone=zones, year=np.where(FRAME.a > 0, "24a", "25b"))
    write_hive(tmp_path, frame, ["zone", "year"])
    wanted = None
    for name in "pcf":
        folder = tmp_path / name
        source = open_source(folder, categories="onehot")
        assert source.feature_names == (
            "a", "b", "zone=01", "zone=10", "zone=2A", "year=24a", "year=25b",
        )  # fmt: skip
        found = rows(folder, categories="onehot")
        wanted = found if wanted is None else wanted
        np.testing.assert_array_equal(found, wanted)
        assert found[:, 2:5].sum(axis=0).tolist() == [(zones == zone).sum() for zone in ("01", "10", "2A")]
        np.testing.assert_array_equal(rows(f"{folder}/*/*/*", categories="onehot"), found)
        np.testing.assert_array_equal(rows(folder, columns="zone", categories="onehot"), found[:, 2:5])
        np.testing.assert_array_equal(rows(folder, exclude=["zone", "year"]), found[:, :2])
        ids = [
            each for part in open_source(folder, exclude="year", id_column="zone").ids() for each in part.to_pylist()
        ]
        assert ids == np.array(["01", "10", "2A"])[found[:, 2:5].argmax(axis=1)].tolist()
        with pytest.raises(InvalidInputError, match=r"column 'zone' contains text \('01' in row 0\).*exclude=\"zone\""):
            open_source(folder)
        inside = [str(each) for each in folder.glob("zone=01/year=24a/*")]
        assert open_source(inside).feature_names == ("a", "b")
        assert open_source([folder / "zone=01", folder / "zone=10"], categories="hash").n_features == 1024 + 2
    model = StreamKMeans(3, random_state=0, progress=False).fit(open_source(tmp_path / "p", categories="onehot"))
    np.testing.assert_array_equal(model.predict(tmp_path / "c"), model.labels_)
    given = pl.read_parquet(tmp_path / "p", hive_schema={"zone": pl.String, "year": pl.String})
    wanted = np.unique(wanted, axis=0)  # other readers sort "10" before "2A"
    np.testing.assert_array_equal(np.unique(rows(given, categories="onehot"), axis=0), wanted)


def test_keys_without_a_value(tmp_path):
    for key, value in (("__HIVE_DEFAULT_PARTITION__", 1), ("a%2Fb", 2)):
        (tmp_path / f"k={key}").mkdir()
        (tmp_path / f"k={key}" / "x.csv").write_text(f"a\n{value}\n")
    assert open_source(tmp_path, categories="onehot").feature_names == ("a", "k=a/b")
    np.testing.assert_array_equal(rows(tmp_path, categories="onehot"), [[1, 0], [2, 1]])
    (tmp_path / "x.csv").write_text("a\n3\n")
    with pytest.raises(InvalidInputError, match="'k'"):
        open_source(tmp_path, categories="onehot")


def test_columns_are_taken_by_name(tmp_path):
    frame = FRAME.assign(c=np.arange(300.0))
    swapped = frame[["c", "a", "b"]]
    for each, name in ((frame, "1"), (swapped, "2")):
        each.to_csv(tmp_path / f"{name}.csv", index=False)
        each.to_parquet(tmp_path / f"{name}.parquet", index=False)
        each.to_csv(tmp_path / f"{name}.csv.gz", index=False)
    sparse = frame.astype(pd.SparseDtype(float, 0.0))
    wanted = np.r_[frame.to_numpy(), frame.to_numpy()]
    pairs = [[tmp_path / f"{number}.{name}" for number in "12"] for name in ("csv", "parquet", "csv.gz")]
    pairs += [[frame, swapped], [pl.DataFrame(frame), swapped], [sparse, sparse[["b", "c", "a"]]]]
    for pair in pairs:
        np.testing.assert_array_equal(rows(pair), wanted)
        if not isinstance(pair[0], pd.DataFrame | pl.DataFrame):
            np.testing.assert_array_equal(rows(pair, columns=["b", "a"]), wanted[:, [1, 0]])
        else:
            assert open_source(pair).feature_names == ("a", "b", "c")
            np.testing.assert_array_equal(rows(lambda pair=pair: iter(pair)), wanted)
            np.testing.assert_array_equal(rows(iter(pair)), wanted)
    frame.assign(d=1).to_csv(tmp_path / "3.csv", index=False)
    np.testing.assert_array_equal(rows([tmp_path / "2.csv", tmp_path / "3.csv"], columns="a")[:, 0], wanted[:, 0])
    with pytest.raises(InvalidInputError, match="with 'd'"):
        open_source(tmp_path / "*.csv")


@cases("pattern", ["", "*.csv", "part-*.csv"])
def test_files_come_by_number(tmp_path, pattern):
    for number in (10, 2, 1, 100):
        (tmp_path / f"part-{number}.csv").write_text(f"a\n{number}\n")
    assert rows(str(tmp_path / pattern))[:, 0].tolist() == [1, 2, 10, 100]


@pytest.mark.parametrize("kind", ["polars", "duckdb", "callable"])
def test_a_pass_with_other_rows_is_refused(kind):
    passes = iter(range(100))

    class Lazy:
        """A query whose order changes from pass to pass."""

        def __arrow_c_stream__(self, requested_schema=None):
            turned = np.roll(FRAME.to_numpy(), next(passes), axis=0)
            return pa.table({"a": turned[:, 0], "b": turned[:, 1]}).to_reader().__arrow_c_stream__(requested_schema)

    if kind == "polars":
        many = pl.DataFrame({"g": RNG.integers(0, 5000, 20000), "x": RNG.normal(size=20000)}).lazy()
        given = many.group_by("g").agg(pl.col("x").mean())
    else:
        given = Lazy() if kind == "duckdb" else lambda: iter([np.roll(FRAME.to_numpy(), next(passes), axis=0)])
    with pytest.raises(
        InvalidInputError, match="gave other rows in this pass than before, or the same in another order"
    ):
        fitted(given)
    if kind == "polars":
        ordered = fitted(many.group_by("g", maintain_order=True).agg(pl.col("x").mean()))
        assert len(ordered.labels_) == len(np.unique(many.collect()["g"]))


@cases("log, name", [("_delta_log/00000000000000000000.json", "Delta Lake"), ("metadata/v1.metadata.json", "Iceberg")])
def test_folders_with_a_log_are_refused(log, name, tmp_path):
    FRAME.to_parquet(tmp_path / "part.parquet")
    (tmp_path / log).parent.mkdir()
    assert open_source(tmp_path).n_rows == 300
    (tmp_path / log).write_text("{}")
    with pytest.raises(SourceError, match=rf"is a table of {name}, .* deleted since; pass .*path\)"):
        open_source(tmp_path)
    assert open_source(f"{tmp_path}/**/*.parquet").n_rows == 300


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two groups of rows that features 1 and 4 of five tell apart, as svmlight text of both bases and as .npy."""
    monkeypatch.chdir(tmp_path)
    X = np.zeros((60, 5))
    X[::2, 1], X[1::2, 4], X[:, 0] = 3, np.linspace(2, 3, 30), np.linspace(0.1, 0.2, 60)
    dump_svmlight_file(X, np.zeros(60), "one.svm", zero_based=False)
    dump_svmlight_file(X, np.zeros(60), "zero.svm", zero_based=True)
    np.save("x.npy", X)
    return X


@pytest.mark.parametrize(("name", "first"), [("one.svm", 1), ("zero.svm", 0), ("x.npy", 0)])
def test_features_are_called_as_the_file_calls_them(folder, name, first):
    kmeans = StreamKMeans(2, random_state=0, progress=False).fit(name)
    kmeans.save("model.npz")
    wanted = {f"x{1 + first}", f"x{4 + first}"}
    for each in (kmeans, StreamKMeans.load("model.npz")):
        text = str(each.summary(n_traits=2))
        assert set(re.findall(r"x\d", text)) == wanted
    rows = str(kmeans.summary(rows=name))
    assert f"x{1 + first}=3" in rows or f"x{4 + first}=3" in rows or name == "x.npy"


@pytest.mark.parametrize("name", ["one.svm", "x.npy", "array", "sparse"])
def test_names_are_given_as_a_list_or_a_file(folder, name):
    X = {"array": folder, "sparse": sp.csr_array(folder)}.get(name, name)
    Path("names.txt").write_text("zero\none\ntwo\nthree\nfour\n")
    for names in (["zero", "one", "two", "three", "four"], "names.txt", Path("names.txt")):
        source = open_source(X, feature_names=names)
        kmeans = StreamKMeans(2, random_state=0, progress=False).fit(source)
        assert kmeans.feature_names_in_.tolist() == ["zero", "one", "two", "three", "four"]
    assert "one" in str(kmeans.summary())


def test_a_wrong_number_of_names_is_refused_with_both(folder):
    with pytest.raises(InvalidParameterError, match=r"gives 2 names, and x\.npy has 5 features"):
        open_source("x.npy", feature_names=["a", "b"])
    source = open_source("one.svm", feature_names=["a", "b", "c"])
    with pytest.raises(InvalidInputError, match="an index beyond 3"):
        StreamKMeans(2, progress=False).fit(source)


def test_the_command_line_and_the_configuration_take_a_file_of_names(folder):
    Path("below").mkdir()
    Path("below/names.txt").write_text("zero\none\ntwo\nthree\nfour\n")
    Path("below/c.yaml").write_text(
        "data:\n  path: ../one.svm\n  feature_names: names.txt\nestimator: {n_clusters: 2}\n"
    )
    for given in (("one.svm", "-k", 2, "--feature-names", "below/names.txt"), ("below/c.yaml",)):
        run("fit", *given, "-o", "out", "--no-report", "--overwrite")
        model = StreamKMeans.load("out/model.npz")
        assert model.feature_names_in_.tolist() == ["zero", "one", "two", "three", "four"]
