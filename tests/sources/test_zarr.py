"""Zarr: both formats, shards, directories, zips and stores in memory, CSR groups, damage."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs.lzma import LZMA
from numcodecs.zlib import Zlib
from zarr.codecs import BloscCodec, GzipCodec
from zarr.storage import LocalStore, MemoryStore, WrapperStore, ZipStore

from streamkm import StreamKMeans
from streamkm.core.exceptions import (
    InvalidInputError,
    InvalidParameterError,
    MemoryLimitError,
    SourceError,
    SourceNotFoundError,
    StreamkmWarning,
)
from streamkm.sources import open_source
from tests.contracts import Opened, SourceContract, assemble
from tests.sources.matrices import DTYPES, dense_matrix, sparse_matrix, write_csr
from tests.tables import cases, slow_but

LAYOUTS = {
    "zstd": {"chunks": (8, 7)},
    "column chunks": {"chunks": (8, 3)},
    "plain": {"chunks": (8, 7), "compressors": None},
    "blosc": {"chunks": (8, 7), "compressors": BloscCodec(cname="lz4", shuffle="shuffle")},
    "gzip": {"chunks": (8, 3), "compressors": GzipCodec()},
    "shards": {"chunks": (4, 3), "shards": (16, 6)},
    "format 2": {"chunks": (8, 7), "zarr_format": 2},
    "format 2, by columns": {"chunks": (8, 3), "zarr_format": 2, "order": "F", "filters": None},
    "one chunk": {"chunks": (53, 7)},
    "dots": {"chunks": (8, 3), "chunk_key_encoding": {"name": "default", "separator": "."}},
}


def write(store, X, **options):
    array = zarr.create_array(store, shape=X.shape, dtype=X.dtype, **options)
    array[:] = X
    return array


QUICK = ("zstd", "column chunks", "shards", "format 2, by columns")


@pytest.fixture(scope="module", params=slow_but(QUICK, LAYOUTS))
def made(request, tmp_path_factory):
    """An array of each layout, made once for all that is read from it."""
    X, path = dense_matrix(), tmp_path_factory.mktemp("layout") / "x.zarr"
    write(path, X, **LAYOUTS[request.param])
    return Opened(open_source(path), X)


class TestLayouts(SourceContract):
    @pytest.fixture
    def opened(self, made):
        return made


@cases("version", [2, 3])
@cases("dtype", DTYPES)
def test_dtypes(tmp_path, dtype, version):
    X = dense_matrix(dtype=dtype)
    write(tmp_path / "x.zarr", X, chunks=(8, 7), zarr_format=version)
    source = open_source(tmp_path / "x.zarr")
    np.testing.assert_array_equal(assemble(source.stream(1), 7), X)
    assert {rows.X.dtype for rows in source.stream(1)} == {source.dtype}
    assert source.dtype.isnative


class TestStores(SourceContract):
    @pytest.fixture(params=slow_but(["zip", "object"], ["zip", "group", "memory", "object", "address"]))
    def opened(self, request, tmp_path):
        X = dense_matrix()
        if request.param == "zip":
            with ZipStore(tmp_path / "x.zip", mode="w") as store:
                write(store, X, chunks=(8, 7))
            return Opened(open_source(tmp_path / "x.zip"), X)
        if request.param == "memory":
            return Opened(open_source(write(MemoryStore(), X, chunks=(8, 7))), X)
        root = zarr.create_group(tmp_path / "x.zarr")
        array = root.create_array("a/X", shape=X.shape, dtype=X.dtype, chunks=(8, 3))
        array[:] = X
        root.create_array("y", shape=(53,), dtype="i4")
        if request.param == "object":
            return Opened(open_source(array), X)
        if request.param == "address":
            pytest.importorskip("fsspec")
            return Opened(open_source(f"file://{tmp_path}/x.zarr:/a/X"), X)
        return Opened(open_source(root), X)


class TestCsrGroup(SourceContract):
    @pytest.fixture(params=slow_but(["shards"], ["chunked", "shards", "format 2"]))
    def opened(self, request, tmp_path):
        X = sparse_matrix()
        root = zarr.create_group(tmp_path / "x.zarr", zarr_format=2 if request.param == "format 2" else 3)
        group = root.create_group("X")
        if request.param == "shards":
            write_csr(group, X, chunk=12, shards=(36,))
        else:
            write_csr(group, X, chunk=20)
        return Opened(open_source(f"{tmp_path / 'x.zarr'}:/X"), X.toarray())


class CountingStore(WrapperStore):
    """Counts how often each chunk is fetched. Open it with r+: a read-only view would be a store of its own."""

    def __init__(self, store):
        super().__init__(store)
        self.fetched = Counter()
        self.lock = threading.Lock()

    async def get(self, key, prototype, byte_range=None):
        with self.lock:
            self.fetched[key] += 1
        return await self._store.get(key, prototype, byte_range)

    def chunks(self):
        return {key: count for key, count in self.fetched.items() if "/c/" in f"/{key}"}


@cases("target_bytes", [1, 1_000, 1 << 30])
def test_every_storage_chunk_is_read_once_a_pass(target_bytes):
    memory = MemoryStore()
    X = dense_matrix(200, 9)
    write(memory, X, chunks=(16, 4))
    store = CountingStore(memory)
    source = open_source(zarr.open_array(store, mode="r+"))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(source.read, source.chunks(target_bytes)))
    assert len(store.chunks()) == 13 * 3
    assert set(store.chunks().values()) == {1}


def test_every_shard_is_opened_by_one_read_only():
    memory = MemoryStore()
    write(memory, dense_matrix(200, 9), chunks=(4, 9), shards=(32, 9))
    store = CountingStore(memory)
    source = open_source(zarr.open_array(store, mode="r+"))
    for number, chunk in enumerate(source.chunks(1)):
        store.fetched.clear()
        source.read(chunk)
        assert list(store.chunks()) == [f"c/{number}/0"]


def test_a_source_pickles_as_an_address(tmp_path):
    write(tmp_path / "x.zarr", dense_matrix(5_000), chunks=(100, 7))
    assert len(pickle.dumps(open_source(tmp_path / "x.zarr"))) < 5_000


def test_a_chunk_that_is_missing_is_the_fill_value(tmp_path):
    X = dense_matrix() + 1
    write(tmp_path / "x.zarr", X, chunks=(8, 7), fill_value=5)
    (tmp_path / "x.zarr/c/1/0").unlink()
    X[8:16] = 5
    (rows,) = open_source(tmp_path / "x.zarr").stream(1 << 20)
    np.testing.assert_array_equal(rows.X, X)


@cases("layout", ["zstd", "plain", "blosc", "gzip", "shards", "format 2"])
@cases("damage", ["cut", "garbage"])
def test_a_corrupt_chunk_names_store_array_and_rows(tmp_path, layout, damage):
    if (layout, damage) == ("plain", "garbage"):
        pytest.skip("any bytes are values")
    root = zarr.create_group(tmp_path / "x.zarr", zarr_format=2 if layout == "format 2" else 3)
    X = dense_matrix()
    options = {key: value for key, value in LAYOUTS[layout].items() if key != "zarr_format"}
    root.create_array("X", shape=X.shape, dtype=X.dtype, **options)[:] = X
    chunk = tmp_path / "x.zarr/X" / ("1.0" if layout == "format 2" else "c/1/0")
    stored = chunk.read_bytes()
    chunk.write_bytes(stored[: len(stored) // 2] if damage == "cut" else b"\xff" * len(stored))
    source = open_source(tmp_path / "x.zarr")
    good, bad = source.chunks(1)[0], source.chunks(1)[1]
    assert source.read(good).X.shape[1] == 7
    with pytest.raises(SourceError, match=rf"x\.zarr:/X, rows {bad.start}-{bad.stop - 1}, cannot be read or decoded"):
        source.read(bad)


@cases("codec", [Zlib, LZMA])
def test_a_damaged_chunk_of_format_2_is_named(tmp_path, codec):
    write(tmp_path / "x.zarr", dense_matrix(), chunks=(8, 7), zarr_format=2, compressors=codec())
    chunk = tmp_path / "x.zarr/1.0"
    stored = bytearray(chunk.read_bytes())
    stored[len(stored) // 2] ^= 0xFF
    chunk.write_bytes(stored)
    with pytest.raises(SourceError, match=r"x\.zarr, rows 8-15, cannot be read or decoded"):
        list(open_source(tmp_path / "x.zarr").stream(1))


def test_chunks_of_no_rows_are_refused(tmp_path):
    write(tmp_path / "x.zarr", dense_matrix(), chunks=(8, 3), zarr_format=2)
    metadata = json.loads((tmp_path / "x.zarr/.zarray").read_text())
    (tmp_path / "x.zarr/.zarray").write_text(json.dumps({**metadata, "chunks": [0, 3]}))
    with pytest.raises(SourceError, match=r"x\.zarr is damaged: .* chunks of \(0, 3\); lengths must be positive"):
        open_source(tmp_path / "x.zarr")


def test_a_zip_that_is_damaged(tmp_path):
    with ZipStore(tmp_path / "x.zip", mode="w") as store:
        write(store, dense_matrix(), chunks=(8, 7))
    stored = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(stored[: len(stored) // 2])
    with pytest.raises(SourceError, match=r"x\.zip is a damaged \.zip file"):
        open_source(tmp_path / "x.zip")


def test_no_such_store(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"x\.zarr does not exist"):
        open_source(tmp_path / "x.zarr")


def test_a_directory_that_is_no_store(tmp_path):
    with pytest.raises(SourceError, match="is a directory and no Zarr store"):
        open_source(tmp_path)


def test_metadata_that_cannot_be_read(tmp_path):
    write(tmp_path / "x.zarr", dense_matrix())
    (tmp_path / "x.zarr/zarr.json").write_text("{")
    with pytest.raises(SourceError, match=r"x\.zarr is no Zarr store that can be read"):
        open_source(tmp_path / "x.zarr")


class TestChoosing:
    def test_a_member_of_an_unknown_type_does_not_hide_the_others(self, tmp_path):
        root = zarr.create_group(tmp_path / "x.zarr")
        root.create_array("X", data=dense_matrix())
        root.create_array("odd", data=np.arange(3))
        odd = tmp_path / "x.zarr/odd/zarr.json"
        odd.write_text(odd.read_text().replace('"int64"', '"quaternion"'))
        assert open_source(tmp_path / "x.zarr").n_rows == 53
        with pytest.raises(SourceError, match=r"x\.zarr:/odd is no array of a type"):
            open_source(tmp_path / "x.zarr", dataset="odd")
        with pytest.raises(SourceNotFoundError, match="is one array and has no Y"):
            open_source(tmp_path / "x.zarr/X", dataset="Y")


@cases(
    "values, message",
    [
        (np.array([["a", "b"]]), "strings"),
        (np.zeros((2, 2), complex), "complex"),
        (np.zeros(4), "1 dimensions"),
        (np.zeros((2, 2, 2)), "3 dimensions"),
        (np.zeros((0, 2)), "0 rows"),
        (np.zeros((2, 0)), "0 features"),
        (np.array(3.0), "0 dimensions"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path, values, message):
    with warnings.catch_warnings():
        # zarr has no fixed specification for strings yet
        warnings.simplefilter("ignore")
        zarr.create_array(tmp_path / "x.zarr", data=values)
        with pytest.raises(InvalidInputError, match=rf"x\.zarr .*{message}|x\.zarr has {message}"):
            open_source(tmp_path / "x.zarr")


def test_a_local_store_knows_its_stored_bytes(tmp_path):
    array = write(LocalStore(tmp_path / "x.zarr"), dense_matrix(), chunks=(8, 7))
    assert open_source(array).n_bytes == array.nbytes_stored()


class TestThreads:
    """Reads beside an event loop, and after a failure."""

    @pytest.fixture
    def path(self, tmp_path):
        write(tmp_path / "x.zarr", dense_matrix(4_000), chunks=(100, 7), compressors=GzipCodec())
        return tmp_path / "x.zarr"

    def test_an_event_loop_that_runs_is_no_hindrance(self, path):
        async def read():
            source = open_source(path)
            return source.read(source.chunks(1 << 30)[0]).X

        np.testing.assert_array_equal(asyncio.run(read()), dense_matrix(4_000))

    def test_what_is_damaged_is_said_and_the_next_read_goes_on(self, path):
        damaged = path / "c" / "3" / "0"
        damaged.write_bytes(damaged.read_bytes()[:20])
        source = open_source(path)
        (chunk,) = source.chunks(1 << 30)
        with pytest.raises(SourceError, match="rows 0-3,999"):
            source.read(chunk)
        first, *_ = source.chunks(1)
        np.testing.assert_array_equal(source.read(first).X, dense_matrix(4_000)[:100])


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_more_rows_than_anybody_has(kind, tmp_path):
    """A hundred bytes of metadata that claim 10**15 rows: refused at once, without a list of their chunks."""
    many, path = 10**15, tmp_path / "x.zarr"
    if kind == "dense":
        zarr.create_array(path, shape=(many, 1), chunks=(1_000, 1), dtype="f4")
    else:
        group = zarr.open_group(path, mode="w")
        for name, size in (("data", many), ("indices", many), ("indptr", many + 1)):
            group.create_array(name, shape=(size,), chunks=(1_000,), dtype="i8")
        group.attrs.update({"shape": [many, 10], "encoding-type": "csr_matrix"})
    begun = time.monotonic()
    source = open_source(path)
    assert "not stored" in source.details()
    with pytest.raises(InvalidInputError, match=r"1,000,000,000,000,000 rows are .* chunks .* 16,777,216 are the most"):
        source.chunks(16 << 20)
    with pytest.raises(InvalidInputError, match=r"are the most; .* larger chunk_bytes"):
        StreamKMeans(3, progress=False).fit(path)
    assert time.monotonic() - begun < 20


@cases("place", ["compressor", "filters", "text"])
def test_codecs_that_are_not_on_the_list_are_refused(tmp_path, place):
    """One that is harmless, and one that runs what the file says, behind that of an array of texts."""
    zarr.create_array(tmp_path / "x.zarr", data=dense_matrix(), zarr_format=2)
    path = tmp_path / "x.zarr" / ".zarray"
    changed = {
        "compressor": {"compressor": {"id": "base64"}},
        "filters": {"filters": [{"id": "base64"}]},
        "text": {"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}, {"id": "pickle"}]},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed[place]}))
    with pytest.raises(SourceError, match=r"its codec .(base64|pickle). is none of"):
        open_source(tmp_path / "x.zarr")


@cases("sharded", [False, True])
def test_codecs_of_format_3_are_those_of_the_list(tmp_path, sharded):
    zarr.create_array(tmp_path / "x.zarr", data=dense_matrix(), chunks=(5, 7), shards=(10, 7) if sharded else None)
    path = tmp_path / "x.zarr" / "zarr.json"
    metadata = json.loads(path.read_text())
    codecs = metadata["codecs"][0]["configuration"]["codecs"] if sharded else metadata["codecs"]
    codecs.append({"name": "numcodecs.pickle", "configuration": {}})
    path.write_text(json.dumps(metadata))
    with pytest.raises(SourceError, match=r"x\.zarr .*numcodecs\.pickle"):
        open_source(tmp_path / "x.zarr")


@cases("version", [2, 3])
def test_bytes_that_are_no_zstandard_frame_are_refused_by_their_place(tmp_path, version):
    ours = numcodecs.Zstd() if version == 2 else zarr.codecs.ZstdCodec()
    where, X = tmp_path / "x.zarr", dense_matrix()
    zarr.create_array(where, data=X, chunks=X.shape, zarr_format=version, compressors=ours)
    chunk = where / ("0.0" if version == 2 else "c/0/0")
    for damage in (bytes(64), chunk.read_bytes()[:4] + bytes(64)):
        chunk.write_bytes(damage)  # which tells no size
        with pytest.raises(SourceError, match=r"x\.zarr, rows 0-\d+, .*[Zz]std"):
            list(open_source(where).stream(1 << 20))


LOST = {
    "format 2": ({"chunks": (8, 3), "zarr_format": 2}, "2.1", 21),
    "format 3": ({"chunks": (8, 3)}, "c/2/1", 21),
    "shards": ({"chunks": (4, 3), "shards": (16, 6)}, "c/2/1", 8),
}


@cases("layout", LOST)
def test_lost_chunks_are_counted_warned_of_once_and_an_error_by_request(tmp_path, layout):
    options, key, count = LOST[layout]
    write(tmp_path / "x.zarr", dense_matrix() + 1, **options)
    assert not open_source(tmp_path / "x.zarr", missing_chunks="raise").origin.missing_chunks
    (tmp_path / "x.zarr" / key).unlink()
    (tmp_path / "x.zarr" / "notes.txt").write_text("a file that is no chunk")
    source = open_source(tmp_path / "x.zarr")
    assert source.details()["not stored"].startswith(f"1 of {count} ")
    with pytest.warns(StreamkmWarning, match=rf"x\.zarr lacks {key}, .*: 1 of {count} ") as told:
        StreamKMeans(3, progress=False, random_state=0).fit(source)
    assert len(told) == 1
    with pytest.raises(SourceError, match=rf"x\.zarr lacks {key}"):
        open_source(tmp_path / "x.zarr", missing_chunks="raise")
    with pytest.raises(SourceError, match="lacks"):
        open_source(zarr.open(tmp_path / "x.zarr"), missing_chunks="raise")
    with pytest.raises(InvalidParameterError, match="missing_chunks='never'"):
        open_source(tmp_path / "x.zarr", missing_chunks="never")


@cases("name", ["data", "indices", "indptr"])
def test_lost_chunks_of_sparse_groups_are_counted(tmp_path, name):
    write_csr(zarr.create_group(tmp_path / "x.zarr").create_group("X"), sparse_matrix(), chunk=20)
    (tmp_path / "x.zarr/X" / name / "c/1").unlink()
    source = open_source(tmp_path / "x.zarr")
    assert f"/X/{name} lacks c/1" in source.details()["not stored"]
    with pytest.raises(SourceError, match=f"/X/{name} lacks c/1"):
        open_source(tmp_path / "x.zarr", missing_chunks="raise")


@cases("kind", ["zip", "memory", "url"])
def test_lost_chunks_are_counted_in_every_store_by_one_list(tmp_path, kind):
    X = dense_matrix() + 1
    if kind == "memory":
        store = MemoryStore()
        write(store, X, chunks=(8, 7))
        asyncio.run(store.delete("c/3/0"))
        source = open_source(zarr.open(store, mode="r"))
    else:
        write(tmp_path / "x.zarr", X, chunks=(8, 7))
        (tmp_path / "x.zarr/c/3/0").unlink()
        if kind == "zip":
            shutil.make_archive(str(tmp_path / "y"), "zip", tmp_path / "x.zarr")
        source = open_source(tmp_path / "y.zip" if kind == "zip" else f"file://{tmp_path}/x.zarr")
    assert source.details()["not stored"].startswith("1 of 7 chunks")


def changed_metadata(path, **changed):
    metadata = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**metadata, **changed}))


@cases("shape", [[1 << 27, 7], [8, 1 << 23]])
def test_storage_chunks_beyond_the_array_are_compared_with_the_limit(tmp_path, shape):
    """A few bytes that unpack to the gigabytes that metadata declare."""
    write(tmp_path / "x.zarr", dense_matrix(), chunks=(8, 7))
    changed_metadata(tmp_path / "x.zarr", chunk_grid={"name": "regular", "configuration": {"chunk_shape": shape}})
    with pytest.raises(MemoryLimitError, match="above the limit of"):
        StreamKMeans(3, memory_limit="1 GiB", progress=False).fit(open_source(tmp_path / "x.zarr"))


def test_storage_chunks_beyond_sparse_arrays_are_compared_with_the_limit(tmp_path):
    write_csr(zarr.create_group(tmp_path / "x.zarr").create_group("X"), sparse_matrix(), chunk=1_000)
    grid = {"name": "regular", "configuration": {"chunk_shape": [1 << 28]}}
    changed_metadata(tmp_path / "x.zarr/X/indptr", chunk_grid=grid)
    with pytest.raises(MemoryLimitError, match="above the limit of"):
        StreamKMeans(3, memory_limit="1 GiB", progress=False).fit(open_source(tmp_path / "x.zarr"))
