"""Zarr: both formats, shards, directories, zips and stores in memory, CSR groups, damage."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import warnings

import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs.zlib import Zlib
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore, ZipStore

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
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import dense_matrix, sparse_matrix, write_csr
from tests.tables import cases

LAYOUTS = {
    "zstd": {"chunks": (8, 7)},
    "plain": {"chunks": (8, 7), "compressors": None},
    "blosc": {"chunks": (8, 7), "compressors": BloscCodec(cname="lz4", shuffle="shuffle")},
    "shards": {"chunks": (4, 3), "shards": (16, 6)},
    "format 2, by columns": {"chunks": (8, 3), "zarr_format": 2, "order": "F", "filters": None},
    "dots": {"chunks": (8, 3), "chunk_key_encoding": {"name": "default", "separator": "."}},
}


def write(store, X, **options):
    array = zarr.create_array(store, shape=X.shape, dtype=X.dtype, **options)
    array[:] = X
    return array


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request, tmp_path_factory):
    """An array of each layout, made once for all that is read from it."""
    dtype = {"blosc": ">u4", "dots": "f2", "plain": "?"}.get(request.param, "f4")
    X, path = dense_matrix(dtype=dtype), tmp_path_factory.mktemp("layout") / "x.zarr"
    write(path, X, **LAYOUTS[request.param])
    return Opened(open_source(path), X)


class TestLayouts(SourceContract):
    @pytest.fixture
    def opened(self, made):
        return made


class TestStores(SourceContract):
    @pytest.fixture(params=["zip", "memory", "object"])
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
        assert open_source(root).name == open_source(array).name
        return Opened(open_source(array), X)


class TestCsrGroup(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        X = sparse_matrix()
        write_csr(zarr.create_group(tmp_path / "x.zarr").create_group("X"), X, chunk=12, shards=(36,))
        return Opened(open_source(f"{tmp_path / 'x.zarr'}:/X"), X.toarray())


def test_a_chunk_that_is_missing_is_the_fill_value(tmp_path):
    X = dense_matrix() + 1
    write(tmp_path / "x.zarr", X, chunks=(8, 7), fill_value=5)
    (tmp_path / "x.zarr/c/1/0").unlink()
    X[8:16] = 5
    (rows,) = open_source(tmp_path / "x.zarr").stream(1 << 20)
    np.testing.assert_array_equal(rows.X, X)


@cases("layout", ["zstd", "plain", "blosc", "shards", "format 2"])
@cases("damage", ["cut", "garbage"])
def test_a_corrupt_chunk_names_store_array_and_rows(tmp_path, layout, damage):
    if (layout, damage) == ("plain", "garbage"):
        pytest.skip("any bytes are values")
    root = zarr.create_group(tmp_path / "x.zarr", zarr_format=2 if layout == "format 2" else 3)
    X = dense_matrix()
    options = LAYOUTS.get(layout, {"chunks": (8, 7), "compressors": Zlib()})
    root.create_array("X", shape=X.shape, dtype=X.dtype, **options)[:] = X
    chunk = tmp_path / "x.zarr/X" / ("1.0" if layout == "format 2" else "c/1/0")
    stored = chunk.read_bytes()
    chunk.write_bytes(stored[: len(stored) // 2] if damage == "cut" else b"\xff" * len(stored))
    source = open_source(tmp_path / "x.zarr")
    good, bad = source.chunks(1)[0], source.chunks(1)[1]
    assert source.read(good).X.shape[1] == 7
    with pytest.raises(SourceError, match=rf"x\.zarr:/X, rows {bad.start}-{bad.stop - 1}, cannot be read or decoded"):
        source.read(bad)


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


def test_a_directory_that_is_no_store(tmp_path):
    with pytest.raises(SourceError, match="is a directory and no Zarr store"):
        open_source(tmp_path)
    with pytest.raises(SourceNotFoundError, match=r"x\.zarr does not exist"):
        open_source(tmp_path / "x.zarr")


def test_a_member_of_an_unknown_type_does_not_hide_the_others(tmp_path):
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
    (tmp_path / "x.zarr/zarr.json").write_text("{")
    with pytest.raises(SourceError, match=r"x\.zarr is no Zarr store that can be read"):
        open_source(tmp_path / "x.zarr")


@cases(
    "values, message",
    [(np.array([["a", "b"]]), "strings"), (np.zeros(4), "1 dimensions"), (np.zeros((0, 2)), "0 rows")],
)
def test_what_is_no_matrix_is_refused(tmp_path, values, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr has no fixed specification for strings yet
        zarr.create_array(tmp_path / "x.zarr", data=values)
        with pytest.raises(InvalidInputError, match=rf"x\.zarr .*{message}|x\.zarr has {message}"):
            open_source(tmp_path / "x.zarr")


def test_an_event_loop_that_runs_is_no_hindrance(tmp_path):
    async def read():
        return next(open_source(tmp_path / "x.zarr").stream(1 << 30)).X

    write(tmp_path / "x.zarr", dense_matrix(), chunks=(8, 7))
    np.testing.assert_array_equal(asyncio.run(read()), dense_matrix())


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


@cases("name", ["data", "indptr"])
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


@cases("place, shape", [("", [1 << 27, 7]), ("", [8, 1 << 23]), ("X/indptr", [1 << 28])])
def test_storage_chunks_beyond_the_array_are_compared_with_the_limit(tmp_path, place, shape):
    """A few bytes that unpack to the gigabytes that metadata declare."""
    if place:
        write_csr(zarr.create_group(tmp_path / "x.zarr").create_group("X"), sparse_matrix(), chunk=1_000)
    else:
        write(tmp_path / "x.zarr", dense_matrix(), chunks=(8, 7))
    told = tmp_path / "x.zarr" / place / "zarr.json"
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    told.write_text(json.dumps({**json.loads(told.read_text()), "chunk_grid": grid}))
    with pytest.raises(MemoryLimitError, match="above the limit of"):
        StreamKMeans(3, memory_limit="1 GiB", progress=False).fit(open_source(tmp_path / "x.zarr"))
