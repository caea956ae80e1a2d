"""Tables of numbers: CSV, Parquet, Arrow files, streams and frames, as pandas, polars and pyarrow read them."""

from __future__ import annotations

import gzip
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Context, Decimal
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import dataset, feather, ipc, parquet

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.fitting.documents import open_documents
from streamkm.kernels.text import csv_numbers
from streamkm.sources import open_source
from streamkm.sources.arrow import number_values
from streamkm.sources.chunks import Chunk
from streamkm.sources.formats import file_format
from streamkm.sources.tables import csv_files
from streamkm.sources.tables.csv_files import CsvTable
from streamkm.sources.tables.csv_format import NULLS
from streamkm.sources.tables.files import ParquetTable
from streamkm.text import FeatureHashing
from tests.contracts import Opened, RowSourceContract, SourceContract, assemble
from tests.tables import cases

N, NAMES = 61, ("a", "b", "c", "d")
X = np.random.default_rng(0).normal(size=(N, 4)).round(3)
X[5, 2] = np.nan
CITIES = np.random.default_rng(1).choice(["Oslo", "Rome", "B, x"], N)
FRAME = pd.DataFrame(X, columns=list(NAMES)).assign(city=CITIES, id=[f"row-{i}" for i in range(N)])
NUMBERS = {"columns": list(NAMES)}
VECTORS = X.astype(np.float32).round(3)
VECTORS[5, 2] = 0.5


def write_csv(path, frame=FRAME, **options):
    frame.to_csv(path, index=False, **options)


def write_parquet(path, frame=FRAME, row_group_size=16):
    parquet.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=row_group_size)


def write_arrow(path, frame=FRAME):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=13)


def write_npy(path):
    with path.open("wb") as file:
        np.save(file, X)


def write_parts(folder, write=write_csv, suffix=".csv", cuts=(0, 3, 40, 41, N)):
    folder.mkdir()
    for number, (start, stop) in enumerate(pairwise(cuts)):
        write(folder / f"{number}{suffix}", FRAME[start:stop])
    (folder / "_SUCCESS").write_text("")
    return folder


def text_table(kinds):
    values = [VECTORS.ravel().astype(kinds), 4]
    return pa.FixedSizeListArray.from_arrays(pa.array(values[0]), values[1])


def whole(source):
    return assemble(source.stream(1 << 20), source.n_features)


class AnyStream:
    """What has nothing but an Arrow stream."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


TABLE = pa.Table.from_pandas(FRAME, preserve_index=False)
ONE_HOT = np.hstack([X, np.stack([city == CITIES for city in ("B, x", "Oslo", "Rome")], axis=1)])


def hashed_rows():
    X_hashed = np.zeros((N, 20))
    X_hashed[:, :4] = X
    features = {city: naive_hash(f"city={city}", 16) for city in set(CITIES)}
    X_hashed[np.arange(N), [4 + features[city] for city in CITIES]] = 1
    return X_hashed


def naive_hash(text, n_features):
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % n_features


def one(name, write, options=NUMBERS, wanted=X):
    def make(folder):
        write(folder / name)
        return Opened(open_source({"path": folder / name, **options}), wanted)

    return make


def vectors(folder):
    table = pa.table({"id": pa.array(range(N)), "v": text_table(np.float32)})
    parquet.write_table(table, folder / "v.parquet", row_group_size=23)
    return Opened(open_source({"path": folder / "v.parquet", "columns": "v"}), VECTORS)


WITH_CITY = {"columns": [*NAMES, "city"]}
CHUNKED = {
    "csv": one("x.csv", write_csv),
    "csv, hashed": one("x.csv", write_csv, {**WITH_CITY, "categories": "hash", "n_features": 16}, hashed_rows()),
    "csv folder": lambda folder: Opened(open_source({"path": write_parts(folder / "t"), **NUMBERS}), X),
    "parquet": one("x.parquet", write_parquet),
    "parquet, one-hot": one("x.pq", write_parquet, {**WITH_CITY, "categories": "onehot"}, ONE_HOT),
    "parquet vectors": vectors,
    "arrow": one("x.arrow", write_arrow),
}


class TestChunkedTables(SourceContract):
    @pytest.fixture(params=CHUNKED)
    def opened(self, request, tmp_path):
        return CHUNKED[request.param](tmp_path)


STREAMED = {
    "gzip": one("x.csv.gz", write_csv),
    "bzip2, by its bytes": one("y.csv", lambda path: write_csv(path, compression="bz2")),
    "lazy frame, one-hot": lambda _: Opened(
        open_source(pl.LazyFrame(FRAME), **WITH_CITY, categories="onehot"), ONE_HOT
    ),
    "stream": lambda _: Opened(open_source(AnyStream(TABLE), **NUMBERS), X),
    "filtered dataset": lambda folder: Opened(
        open_source(
            dataset.dataset(write_parts(folder / "t", write_parquet, ".parquet")).filter(dataset.field("a") > 0),
            columns=["a", "b"],
        ),
        X[X[:, 0] > 0][:, :2],
    ),
}


class TestStreamedTables(RowSourceContract):
    @pytest.fixture(params=STREAMED)
    def opened(self, request, tmp_path):
        if request.param.startswith("lazy") and not hasattr(pl.LazyFrame, "collect_batches"):
            pytest.skip("this version of polars gives no batches")
        return STREAMED[request.param](tmp_path)


def test_a_reader_is_read_once():
    source = open_source(TABLE.select(list(NAMES)).to_reader())
    assert not source.access.replayable
    np.testing.assert_array_equal(whole(source), X)
    with pytest.raises(InvalidInputError, match="can be read only once"):
        whole(source)
    with pytest.raises(InvalidInputError, match=r"read only once; .* or give values of one-hot columns"):
        open_source(TABLE.to_reader(), **WITH_CITY, categories="onehot")
    rows = TABLE.select([*NAMES, "city"]).to_reader()
    source = open_source(rows, categories={"city": ["B, x", "Oslo", "Rome"]})
    np.testing.assert_array_equal(whole(source), ONE_HOT)


@cases(
    "kinds, dtype",
    [
        (("float32", "int8", "bool"), "float32"),
        (("float32", "int32"), "float64"),
        (("int64",), "float64"),
        (("decimal128(8, 2)", "float32"), "float64"),
    ],
)
def test_types_of_columns(tmp_path, kinds, dtype):
    values = np.array([0, 1, 1])
    columns = {str(i): pa.array(values).cast(pa.type_for_alias(kind) if "(" not in kind else pa.decimal128(21, 2))
               for i, kind in enumerate(kinds)}  # fmt: skip
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet")
    assert source.dtype == dtype
    np.testing.assert_array_equal(whole(source), np.tile(values[:, None], len(kinds)))
    assert open_source(tmp_path / "x.parquet", dtype="float32").dtype == np.float32


def test_vectors_beside_numbers_and_with_nulls(tmp_path):
    values, ids = [[1.0, 2.0], None, [3.0, None]], [1, 2, 3]
    parquet.write_table(pa.table({"id": ids, "v": pa.array(values, pa.list_(pa.float32()))}), tmp_path / "x.parquet")
    with pytest.raises(InvalidInputError, match=r"'v' holds vectors, and 'id' is there too; .* columns=\"v\""):
        open_source(tmp_path / "x.parquet")
    fixed = pa.table({"id": ids, "v": pa.array(values, pa.list_(pa.float32(), 2))})
    for data in (tmp_path / "x.parquet", fixed):
        source = open_source(data, columns=["v", "id"])
        assert source.feature_names == ("v[0]", "v[1]", "id")
        np.testing.assert_array_equal(whole(source), [[1, 2, 1], [np.nan, np.nan, 2], [3, np.nan, 3]])
    ragged = pa.table({"v": [[1.0, 2.0], [3.0]]})
    parquet.write_table(ragged, tmp_path / "y.parquet")
    with pytest.raises(InvalidInputError, match=r"list of 1 values in row 1 of .*y\.parquet, and its first has 2"):
        whole(open_source(tmp_path / "y.parquet"))
    parquet.write_table(pa.table({"v": pa.array([[1], [None]], pa.list_(pa.int8(), 1))}), tmp_path / "z.parquet")
    with pytest.raises(InvalidInputError, match=r"null in row 1 of .*z\.parquet.*dtype=\"float32\""):
        whole(open_source(tmp_path / "z.parquet"))


@cases(
    "options, message",
    [
        ({}, r"column 'city' contains text \('Oslo|column 'city' contains text"),
        ({"exclude": "city"}, r"column 'id' contains text \('row-0' in row 0\).*exclude=\"id\".*categories=\"onehot\""),
        ({"columns": ["a", "x"]}, "column 'x' is missing; it has a, b, c, d, city, id"),
        ({"columns": ["citi"]}, r"column 'citi' is missing \(did you mean 'city'\?\)"),
        ({"columns": ["a"], "exclude": ["a"]}, "no column is left"),
        ({"columns": ["a", "a"]}, "column 'a' is there twice"),
        ({"id_column": "no"}, "column 'no' is missing"),
        ({"columns": ["city"], "categories": {"city": ["Oslo", "Rome"]}}, "has the value 'B, x' in .* none of its 2"),
    ],
)
@cases("form", ["csv", "parquet", "arrow"])
def test_columns_that_are_refused(tmp_path, form, options, message):
    path = tmp_path / f"x.{form}"
    {"csv": write_csv, "parquet": write_parquet, "arrow": write_arrow}[form](path)
    with pytest.raises(InvalidInputError, match=message):
        whole(open_source(path, **options))


@cases("form", ["parquet", "arrow"])
def test_a_column_name_that_is_there_twice(tmp_path, form):
    path = str(tmp_path / f"x.{form}")
    table = pa.table([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], names=["a", "a", "b"])
    parquet.write_table(table, path) if form == "parquet" else feather.write_feather(table, path)
    for options in ({}, {"columns": ["a"]}, {"columns": ["b"], "id_column": "a"}):
        with pytest.raises(InvalidInputError, match=rf"x\.{form}: column 'a' is there twice; rename one"):
            open_source(path, **options)
    np.testing.assert_array_equal(whole(open_source(path, columns=["b"])), [[5], [6]])


def test_decimals_of_every_width_are_the_nearest_numbers(tmp_path):
    texts = ["7", "0.3", "-0.7", "1.25", "90071992547409.93", "-90071992547409.91", "999999999999999.99"]
    kinds = [pa.decimal128(17, 2), pa.decimal128(38, 22), pa.decimal256(50, 30)]
    for kind in [*kinds, *([pa.decimal64(18, 2)] if hasattr(pa, "decimal64") else [])]:
        values = pa.array([Decimal(text) for text in texts], kind)
        parquet.write_table(pa.table({"x": values}), tmp_path / "x.parquet")
        for data in (tmp_path / "x.parquet", pa.table({"x": pa.FixedSizeListArray.from_arrays(values, 1)})):
            np.testing.assert_array_equal(whole(open_source(data))[:, 0], [float(text) for text in texts])


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(2**64), 2**64), max_size=8), st.integers(-5, 38))
def test_any_decimal_is_the_nearest_number(unscaled, scale):
    unscaled = [0, *unscaled, 2**53, -(2**53), 2**53 + 1, -(2**63), 3]
    stored = pa.py_buffer(b"".join(number.to_bytes(16, "little", signed=True) for number in unscaled))
    valid = pa.py_buffer(np.packbits([True] * (len(unscaled) - 1) + [False], bitorder="little"))
    values = pa.Array.from_buffers(pa.decimal128(38, scale), len(unscaled), [valid, stored]).slice(1)
    wanted = [float(Decimal(number).scaleb(-scale, Context(prec=60))) for number in unscaled[1:-1]]
    np.testing.assert_array_equal(number_values(values), [*wanted, np.nan])


def test_text_in_a_large_row_group_is_refused(tmp_path):
    """More rows than the head that is looked at, to name a value."""
    pd.DataFrame({"x": np.arange(3_000), "city": "Oslo"}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InvalidInputError, match=r"column 'city' contains text \('Oslo' in row 0\)"):
        open_source(tmp_path / "x.parquet")


@cases(
    "options",
    [
        {"categories": "one"}, {"columns": 3}, {"columns": []}, {"dtype": "int8"}, {"n_features": 5}, {"id_column": 1},
        {"delimiter": ";;"}, {"header": "yes"}, {"categories": "hash", "n_features": 0},
    ],
)  # fmt: skip
def test_options_that_are_refused(tmp_path, options):
    write_csv(tmp_path / "x.csv")
    with pytest.raises(InvalidParameterError, match=f"{list(options)[-1]}="):
        open_source(tmp_path / "x.csv", **options)


def test_too_many_categories_for_one_hot(tmp_path):
    frame = pd.DataFrame({"a": range(2000), "name": [f"n{i}" for i in range(2000)]})
    for write, name in ((write_csv, "x.csv"), (write_parquet, "x.parquet"), (write_arrow, "x.arrow")):
        write(tmp_path / name, frame)
        with pytest.raises(InvalidInputError, match=r"'name' has .* values or more.*1,024 in all.*exclude=\"name\""):
            open_source(tmp_path / name, categories="onehot")


class TestCsvText:
    """What text means, against pandas, and what is said of text that is none."""

    def read(self, tmp_path, text, target=1 << 20, **options):
        (tmp_path / "x.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        return assemble(open_source(tmp_path / "x.csv", **options).stream(target), 2)

    @cases("text", [
            "a,b\n1,2\n3,4", "a,b\r\n1,2\r\n\r\n3,4\r\n", "\ufeffa,b\n1,2\n3,4\n", '"a","b"\n"1",2\n3,"4"\n',
            "a,b\n\n1, 2 \n 3,4\n\n", "a,b\n1e0,.2e1\n+3,4.\n", 'a,b\n1,2\n"3",4\n',
        ])  # fmt: skip
    def test_numbers(self, tmp_path, text):
        for target in (1, 20, 1 << 20):
            np.testing.assert_array_equal(self.read(tmp_path, text, target), [[1, 2], [3, 4]])

    @cases("text", ["1,2\n3,4\n", '"1","2"\n3,4', "1,\n3,4\n"])
    def test_a_first_record_of_numbers_is_a_row_unless_it_is_named(self, tmp_path, text):
        assert len(self.read(tmp_path, text)) == len(self.read(tmp_path, text, header=False)) == 2
        np.testing.assert_array_equal(self.read(tmp_path, text, header=True), [[3, 4]])

    @cases("word", NULLS)
    def test_words_for_nothing(self, tmp_path, word):
        np.testing.assert_array_equal(self.read(tmp_path, f"a,b\n1,{word}\n{word},2\n"), [[1, np.nan], [np.nan, 2]])

    @cases("words", ["-999", ["-999", "missing value"], ["inf", "-999"], ["x", "-999"]])
    def test_words_for_nothing_that_are_given(self, tmp_path, words):
        text = "a,b\n" + "".join(f"1,{word}\n" for word in ["2", *np.atleast_1d(words), ""])
        wanted = [[1, 2], *[[1, np.nan]] * (text.count("\n") - 2)]
        np.testing.assert_array_equal(self.read(tmp_path, text, null_values=words), wanted)
        source = open_source(tmp_path / "x.csv", null_values=words)
        assert source.origin.made_with["csv"]["null_values"] == tuple(np.atleast_1d(words))
        with pytest.raises(InvalidInputError, match="column 'b' contains text"):
            self.read(tmp_path, text + "1,NA\n", null_values=words)
        with pytest.raises(InvalidParameterError, match="null_values=-999; needed: words"):
            self.read(tmp_path, text, null_values=-999)

    @cases("form", ["x.csv", "x.csv.gz"])
    def test_ids_and_categories_are_what_they_say(self, tmp_path, form):
        """Namibia is a country; an empty field alone is none, unless the user names others."""
        words = [word for word in NULLS if word]
        text = "id,c,n\n" + "".join(f"{word},{word},{word}\n" for word in words) + ",,1\nlast,Oslo,2\n"
        (tmp_path / form).write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
        source = open_source(tmp_path / form, id_column="id", categories="onehot")
        assert [each for part in source.ids() for each in part.to_pylist()] == [*words, None, "last"]
        assert source.feature_names == (*(f"c={word}" for word in sorted([*words, "Oslo"])), "n")
        rows = assemble(source.stream(20), len(words) + 2)
        np.testing.assert_array_equal(rows[:, :-1].sum(axis=1), [*[1] * len(words), 0, 1])
        np.testing.assert_array_equal(rows[:, -1], [*[np.nan] * len(words), 1, 2])
        given = open_source(tmp_path / form, id_column="id", categories="onehot", null_values=words)
        assert [each for part in given.ids() for each in part.to_pylist()] == [*words, None, "last"]
        assert given.feature_names == ("c=Oslo", "n")

    @cases("quoted", ["'NA", '"NA'])
    def test_a_record_that_is_too_long(self, tmp_path, monkeypatch, quoted):
        """A quote that never ends would have the rest of the file in memory: the record is named before."""
        monkeypatch.setattr(csv_files, "MAX_LINE_BYTES", 1 << 16)
        monkeypatch.setattr(csv_files, "_HEAD_BYTES", 1 << 14)
        text = '"a",b\n' + "1,2\n" * 5_000 + f"1,{quoted}\n" + "3,4\n" * 50_000
        (tmp_path / "x.csv").write_text(text)
        source = open_source(tmp_path / "x.csv", exclude="b", newlines_in_values=True)
        if quoted[0] == "'":
            assert assemble(source.stream(1 << 12), 1).shape == (55_001, 1)
            return
        with pytest.raises(
            InvalidInputError, match=r"x\.csv, line 5,002 \(byte 20,006\): .* 65,536 bytes, .*quote in a field"
        ):
            assemble(source.stream(1 << 12), 1)

    def test_line_feeds_in_quotes(self, tmp_path):
        rows = "".join(f'{i};"a\n{i};""b"";\n";{i * 2}\n' for i in range(40_000))
        for target in (1 << 16, 1 << 30):
            got = self.read(tmp_path, f"a;t;b\n{rows}", target, exclude="t", newlines_in_values=True, delimiter=";")
            np.testing.assert_array_equal(got, np.arange(40_000)[:, None] * [1, 2])
        with pytest.raises(InvalidInputError, match=r"x\.csv, line 2 .*newlines_in_values=True"):
            self.read(tmp_path, f"a;t;b\n{rows}", exclude="t", delimiter=";")

    @cases("text, message", [
            ("a,b\n1,2\n3\n", r"line 3 \(byte 8\): a record of 1, where 2 columns"),
            ("a,b\n1,2\n\n\n3\n", r"line 5 \(byte 10\): a record of 1"),
            ("a,b\n1,2\r3,4\r5,6,7\n", "line 2"), ("", "0 rows"), ("a,b\n", "0 rows"),
            ("a,b\n1,2\n3,NA\n4,x\n", r"column 'b' contains text \('x' in row 2\)"),
            (b"\xff\xfea\x00", "line 1: not CSV text: .*convert it to UTF-8"),
            (b'a,b\n1,"\xff"\n', "column 'b' has type binary"),
        ])  # fmt: skip
    def test_malformed_text(self, tmp_path, text, message):
        with pytest.raises(InvalidInputError, match=rf"x\.csv.*{message}"):
            self.read(tmp_path, text)

    @cases(
        "row, message",
        [
            ("1,x", r"column 'b' holds 'x', .* are of type double.*exclude=\"b\", .*categories=\{\"b\": \["),
            ("1", "a record of 1, where 2"),
            ('1,"2', "malformed CSV: a field in quotes does not end; the file is cut short, needs newlines"),
        ],
    )
    def test_a_record_far_behind_the_head(self, tmp_path, row, message):
        text = "a,b\n" + "1,2\n" * 400_000 + row + "\n" + "3,4\n" * 10
        with pytest.raises(InvalidInputError, match=rf"x\.csv, line 400,002 \(byte 1,600,004\): {message}"):
            self.read(tmp_path, text)

    def test_long_headers_and_first_records(self, tmp_path):
        """A later file's names of more than 64 KiB; a first record that is longer than the first 1 MiB."""
        names = [f"{'n' * 700}{number}" for number in range(100)]
        for name in ("1", "2"):
            (tmp_path / f"{name}.csv").write_text(",".join(names) + "\n" + ",".join("7" * 100) + "\n")
        assert assemble(open_source(tmp_path, columns=names[:2]).stream(1 << 20), 2).tolist() == [[7, 7]] * 2
        text = "a,note,b\n" + f"1,{'x' * (1 << 20)},2\n" + "3,y,4\n"
        np.testing.assert_array_equal(self.read(tmp_path, text, exclude="note"), [[1, 2], [3, 4]])


@settings(max_examples=3 * settings().max_examples)
@given(st.data())
def test_the_kernel_reads_what_pyarrow_reads(data):
    """Cells of any text: the kernel gives the values of pyarrow, or leaves them to it."""
    cell = st.one_of(
        st.floats().map(repr), st.integers(-(10**25), 10**25).map(str),
        st.sampled_from([*NULLS, " 1", "2 ", " NA", "x"]),
        st.text("0123456789+-.eE naif\"", max_size=8), st.decimals(allow_nan=False, allow_infinity=False).map(str),
    )  # fmt: skip
    rows = data.draw(st.lists(st.tuples(cell, cell), min_size=1, max_size=6))
    text = "".join(f"{a},{b}\n" for a, b in rows).encode()
    buffer = np.frombuffer(text + bytes(64), np.uint8)
    out, places = np.empty((len(rows), 2)), np.empty(len(rows), np.int64)
    n_rows, at = csv_numbers.parse_numbers(buffer, (len(text), 0), 44, np.arange(2), out, places)
    if n_rows == 0:
        return
    options = pa.csv.ConvertOptions(column_types={"a": pa.float64(), "b": pa.float64()}, null_values=list(NULLS))
    table = pa.csv.read_csv(io.BytesIO(text[:at]), pa.csv.ReadOptions(column_names=["a", "b"]), convert_options=options)
    wanted = np.stack([column.to_numpy() for column in table.columns], axis=1)
    np.testing.assert_array_equal(out[:n_rows], wanted)


class TestDamagedFiles:
    def test_a_damaged_page_is_named(self, tmp_path):
        write_parquet(tmp_path / "x.parquet")
        meta = parquet.read_metadata(tmp_path / "x.parquet")
        start = meta.row_group(2).column(0).data_page_offset
        data = bytearray((tmp_path / "x.parquet").read_bytes())
        data[start : start + 40] = b"\xff" * 40
        (tmp_path / "x.parquet").write_bytes(data)
        with pytest.raises(SourceError, match=r"x\.parquet, row group .* cannot be read as Parquet"):
            whole(open_source(tmp_path / "x.parquet", **NUMBERS))

    @pytest.mark.parametrize("how", ["dataset", "documents"])
    def test_checksums_of_pages_are_verified(self, tmp_path, how):
        path, text = tmp_path / "x.parquet", [f"word{i % 9} word" for i in range(1000)]
        table = pa.table({"a": np.arange(1000.0), "t": text})
        parquet.write_table(
            table, path, write_page_checksum=True, use_dictionary=False, compression="none", store_schema=False
        )

        def opened():
            if how == "documents":
                return open_documents(path, field="t", hashing=FeatureHashing(n_features=64), tfidf=False)
            return open_source(dataset.dataset(path), columns="a")

        assert whole(opened()).shape[0] == 1000
        column = parquet.read_metadata(path).row_group(0).column(int(how == "documents"))
        data = bytearray(path.read_bytes())
        data[column.data_page_offset + 2000] ^= 4
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"x\.parquet.* cannot be read.*checksum"):
            whole(opened())


class TestChunks:
    def test_row_groups_are_joined_and_cut_by_bytes(self, tmp_path):
        for number, rows in enumerate([5] * 40 + [4000]):
            write_parquet(
                tmp_path / f"{number:02}.parquet", pd.DataFrame(np.ones((rows, 4)), columns=list("abcd")), 1000
            )
        source = open_source(tmp_path)
        sizes = [chunk.n_bytes // 32 for chunk in source.chunks(100 * 32)]
        assert sizes == [100, 100] + [100] * 40
        assert [chunk.n_bytes // 32 for chunk in source.chunks(2500 * 32)] == [2200, 2000]

    def test_a_row_group_is_decoded_once(self, tmp_path, monkeypatch):
        """Pieces of a row group in order, by two threads: each goes on where another ended."""
        write_parquet(
            tmp_path / "x.parquet", pd.DataFrame(np.arange(4e5).reshape(-1, 4), columns=list("abcd")), 100_000
        )
        opened = []
        begin = parquet.ParquetFile.iter_batches
        monkeypatch.setattr(
            parquet.ParquetFile, "iter_batches", lambda *args, **kw: opened.append(1) or begin(*args, **kw)
        )
        source = pickle.loads(pickle.dumps(open_source(tmp_path / "x.parquet")))
        chunks = source.chunks(64_000)
        assert len(chunks) == 50
        with ThreadPoolExecutor(2) as pool:
            read = [rows.X for rows in pool.map(source.read, chunks)]
        np.testing.assert_array_equal(np.concatenate(read), np.arange(4e5).reshape(-1, 4))
        assert len(opened) <= 4

    def test_rows_that_nobody_reads_are_not_waited_for(self, tmp_path):
        """However often other row groups are read to their ends meanwhile."""
        X = np.arange(8e3).reshape(-1, 4)
        write_parquet(tmp_path / "x.parquet", pd.DataFrame(X, columns=list("abcd")), 1000)
        source, ended = open_source(tmp_path / "x.parquet"), threading.Event()
        chunks = [Chunk(0, 0, start, stop, 0) for start, stop in ((1000, 1500), (1500, 2000), (0, 10), (500, 510))]

        def others():
            while not ended.is_set():
                for chunk in list(chunks)[:2]:
                    source.read(chunk)

        other = threading.Thread(target=others)
        source.read(chunks[2])
        reader = threading.Thread(target=lambda: read.append(source.read(chunks[3]).X), daemon=True)
        read = []
        other.start()
        reader.start()
        reader.join(20)
        ended.set()
        other.join()
        np.testing.assert_array_equal(read, [X[500:510]])


def test_remote_tables(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    for form, write in (("csv", write_csv), ("parquet", write_parquet), ("arrow", write_arrow)):
        write(tmp_path / f"x.{form}")
        with fsspec.open(f"memory://tables/x.{form}", "wb") as file:
            file.write((tmp_path / f"x.{form}").read_bytes())
        source = open_source(f"memory://tables/x.{form}", **NUMBERS)
        np.testing.assert_array_equal(assemble(source.stream(1000), 4), X)


MARKET = "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1\n"


@cases("name, write, wanted", [
        ("x.csv", write_csv, "csv"), ("x.TSV", write_csv, "csv"), ("x", write_parquet, "parquet"),
        ("x", write_arrow, "arrow"),
        ("x.csv", write_parquet, "parquet"), ("x.parquet", write_npy, "npy"),
        ("x.csv.gz", lambda path: path.write_bytes(gzip.compress(b"a\n1\n")), "csv"),
        ("x.svm.gz", lambda path: path.write_bytes(gzip.compress(b"1 1:1\n")), "compressed"),
        ("x.txt", lambda path: path.write_text("1 1:1\n"), "svmlight"),
        ("x", lambda path: path.write_text(MARKET), "mtx"),
        ("x.mtx.gz", lambda path: path.write_bytes(gzip.compress(MARKET.encode())), "mtx"),
    ])  # fmt: skip
def test_bytes_tell_before_suffixes(tmp_path, name, write, wanted):
    write(tmp_path / name)
    assert file_format(str(tmp_path / name)) == wanted


def test_ids_are_given_on_request(tmp_path):
    frame = pd.DataFrame({"id": [f"{i:04}" for i in range(900)], "a": np.arange(900.0), "b": 1.5})
    write_csv(tmp_path / "x.csv", frame)
    write_csv(tmp_path / "x.csv.gz", frame)
    write_parquet(tmp_path / "x.parquet", frame)
    for data in (*(tmp_path / name for name in ("x.csv", "x.csv.gz", "x.parquet")), pl.DataFrame(frame).lazy()):
        source = open_source(data, id_column="id")
        assert source.feature_names == ("a", "b")
        assert source.origin.id_column == "id"
        for _ in range(2):
            assert [each for part in source.ids() for each in part.to_pylist()] == frame["id"].tolist()
    with pytest.raises(InvalidInputError, match="has no column that names rows; give one as id_column="):
        list(open_source(tmp_path / "x.parquet", columns=["a"]).ids())
    once = open_source(pa.Table.from_pandas(frame, preserve_index=False).to_reader(), id_column="id")
    with pytest.raises(InvalidInputError, match="can be read only once"):
        list(once.ids())


def test_folders(tmp_path):
    with pytest.raises(SourceError, match="nor has it tables"):
        open_source(tmp_path)
    write_csv(tmp_path / "x.csv")
    write_parquet(tmp_path / "y.parquet")
    with pytest.raises(
        InvalidInputError, match=r"x\.csv is csv and .*y\.parquet is parquet; .* are read from files of one"
    ):
        open_source(tmp_path)
    with pytest.raises(InvalidParameterError, match="nothing inside"):
        open_source(f"{tmp_path}/x.csv:/a")
    assert isinstance(open_source(tmp_path / "x.csv", columns="a"), CsvTable)
    assert isinstance(open_source([tmp_path / "y.parquet"] * 2, columns="a"), ParquetTable)


def test_nulls_follow_invalid(tmp_path):
    write_csv(tmp_path / "x.csv")
    write_parquet(tmp_path / "x.parquet")
    for name, place in (("x.csv", r"x\.csv, line 7"), ("x.parquet", r"row 5 of .*x\.parquet")):
        given = {"path": tmp_path / name, **NUMBERS}
        with pytest.raises(InvalidInputError, match=rf"NaN in column 'c', .*{place}"):
            StreamKMeans(2, random_state=0).fit(given)
        labels = StreamKMeans(2, random_state=0, invalid="skip").fit(given).labels_
        assert np.flatnonzero(labels < 0).tolist() == [5]


def test_categories_take_a_pass_of_their_own(tmp_path):
    write_csv(tmp_path / "x.csv", FRAME.fillna(0))
    kmeans = StreamKMeans(2, random_state=0).fit({"path": tmp_path / "x.csv", "exclude": "id", "categories": "onehot"})
    assert kmeans.n_passes_ == 3
    assert kmeans.stages_[0].name == "categories"
    assert kmeans.fitted_on_["made_with"]["table"]["categories"] == {"city": ["B, x", "Oslo", "Rome"]}
