"""Arrays of sketch stores: decoded without zarr to the same rows, and by zarr where they are stored otherwise."""

from __future__ import annotations

import os
import pickle
import re
from contextlib import nullcontext

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec

from streamkm.core.exceptions import SourceError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.sketches import CountSketch, IdentitySketch
from streamkm.sources import open_source
from streamkm.stores.writer import write_store
from tests.children import reader_of
from tests.sources.matrices import dense_matrix, sparse_matrix

ARRAYS = {"dense": ("X",), "sparse": ("X/data", "X/indices", "X/indptr")}
CODECS = {
    "zstd": {"compressors": BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=4)},  # as once written
    "bitshuffle": {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4)},
    "plain bytes": {"compressors": BloscCodec(cname="blosclz", clevel=0, shuffle="noshuffle", typesize=4)},
}
OTHER_CODECS = {
    "gzip": {"compressors": GzipCodec()},
    "none": {"compressors": None},
    "two": {"compressors": [GzipCodec(), BloscCodec(typesize=1)]},
    "big endian": {"serializer": BytesCodec(endian="big"), "compressors": BloscCodec(typesize=4)},
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("streamkm.stores.writer.CHUNK_BYTES", 200)


def make(path, X, sketch=None):
    sketch = CountSketch(300, 5) if sketch is None else sketch
    with open_executor(1) as executor:
        return write_store(path, reader_of(X, chunk_bytes=500), sketch, executor, Stage("s"))


@pytest.fixture(params=["dense", "sparse"])
def stored(request, tmp_path, monkeypatch):
    if request.param == "dense":
        monkeypatch.setattr("streamkm.stores.writer.CHUNK_BYTES", 4 * 1200)  # four rows
    X = dense_matrix() if request.param == "dense" else sparse_matrix()
    make(tmp_path / "s", X)
    return request.param, tmp_path / "s"


def rewrite(path, array="X/data", **settings):
    """Store an array of a part anew, with the same values in other bytes."""
    place = path / "parts/0" / array
    old = zarr.open_array(place, mode="r")
    values = old[:]
    shape, chunks, dtype = old.shape, old.chunks, old.dtype
    new = zarr.create_array(place, shape=shape, chunks=chunks, dtype=dtype, fill_value=0, overwrite=True, **settings)
    new[:] = values


def rows_of(source):
    return np.concatenate([dense(source.read(chunk).X) for chunk in source.chunks(700)])


def dense(X):
    return X if isinstance(X, np.ndarray) else X.toarray()


def arrays_of(source):
    (part,) = source.parts
    return [part._data, part._indices, part._indptr] if hasattr(part, "_indptr") else [part._array]


class TestValues:
    def test_are_those_that_zarr_reads(self, stored, monkeypatch):
        kind, path = stored
        source = open_source(path)
        for name, array in zip(ARRAYS[kind], arrays_of(source), strict=True):
            wanted = zarr.open_array(path / "parts/0" / name, mode="r")[:]
            unit = array.unit_rows
            assert len(wanted) % unit, "the last storage chunk is to be cut short"
            for start, stop in (
                (0, len(wanted)),
                (unit, 2 * unit),
                (1, unit + 1),
                (unit - 1, unit),
                (unit, len(wanted)),
            ):
                out = np.full((stop - start, *wanted.shape[1:]), 7, wanted.dtype)
                array.read_into(start, stop, out)
                for got in (out, array.read(start, stop), pickle.loads(pickle.dumps(array)).read(start, stop)):
                    assert got.dtype == wanted.dtype
                    np.testing.assert_array_equal(got, wanted[start:stop])

    @pytest.mark.parametrize("codec", CODECS)
    def test_of_other_settings_of_blosc(self, tmp_path, monkeypatch, codec):
        wanted = rows_of(make(tmp_path / "s", sparse_matrix()))
        rewrite(tmp_path / "s", **CODECS[codec])
        np.testing.assert_array_equal(rows_of(open_source(tmp_path / "s")), wanted)

    @pytest.mark.parametrize("codec", OTHER_CODECS)
    def test_of_other_codecs_give_the_same(self, tmp_path, codec):
        wanted = rows_of(make(tmp_path / "s", sparse_matrix()))
        rewrite(tmp_path / "s", **OTHER_CODECS[codec])
        source = open_source(tmp_path / "s")
        np.testing.assert_array_equal(rows_of(source), wanted)

    def test_of_zeros_have_no_file(self, tmp_path, monkeypatch):
        X = dense_matrix().copy()
        X[10:40] = 0
        make(tmp_path / "s", X, IdentitySketch(X.shape[1]))
        source = open_source(tmp_path / "s")
        (array,) = arrays_of(source)
        missing = [
            n for n in range(-(-len(X) // array.unit_rows)) if not (tmp_path / "s/parts/0/X/c" / str(n) / "0").exists()
        ]
        assert missing
        np.testing.assert_array_equal(rows_of(source), X)


class TestDamage:
    @pytest.mark.parametrize(
        ("how", "why"),
        [
            ("longer", None),  # what is decoded may be what was written
            ("cut", None),
            ("huge", None),
            ("empty", "error during blosc decompression"),
            ("lengths", "error during blosc decompression"),
            ("values", "it has not the bytes that were written"),
            ("missing", "it has not the bytes that were written"),
        ],
    )
    def test_is_named_with_its_rows(self, stored, how, why):
        kind, path = stored
        (array, *_), wanted = arrays_of(open_source(path)), rows_of(open_source(path))
        file, unit = path / "parts/0" / ARRAYS[kind][0] / ("c/2" if kind == "sparse" else "c/2/0"), array.unit_rows
        whole = file.read_bytes()
        claimed = np.frombuffer(whole[:16], "<u4").copy()
        claimed[1] *= 1000
        changed = {
            "longer": whole + b"\0",
            "cut": whole[:-1],
            "empty": b"",
            "huge": whole * 100,
            "lengths": claimed.tobytes() + whole[16:],
            "values": file.with_name("1").read_bytes() if kind == "sparse" else (path / "parts/0/X/c/1/0").read_bytes(),
        }
        file.unlink() if how == "missing" else file.write_bytes(changed[how])
        how_it_is = "missing" if how == "missing" else "damaged"
        where = f"{'rows' if kind == 'dense' else 'values'} {2 * unit}-{3 * unit - 1}"
        told = rf"storage chunk 2 of .*{ARRAYS[kind][0]} is {how_it_is}: .*{why or ''}.*\({where}\)"
        with nullcontext() if why is None else pytest.raises(SourceError, match=told):
            try:
                np.testing.assert_array_equal(rows_of(open_source(path)), wanted)
            except SourceError as error:
                assert re.match(told, str(error))  # noqa: PT017 - either is right
                if why is not None:
                    raise

    def test_a_file_that_was_changed_meanwhile_is_called_so(self, stored):
        kind, path = stored
        source = open_source(path)
        file = path / "parts/0" / ARRAYS[kind][0] / ("c/2" if kind == "sparse" else "c/2/0")
        whole = file.read_bytes()
        for changed in (whole + b"\0", whole[:-1]):
            file.write_bytes(changed)
            with pytest.raises(SourceError, match="was changed while it was in use"):
                rows_of(source)
        file.unlink()
        with pytest.raises(SourceError, match="was changed while it was in use"):
            rows_of(source)

    def test_a_file_written_anew_with_the_same_bytes_is_called_changed(self, stored):
        kind, path = stored
        source = open_source(path)
        file = path / "parts/0" / ARRAYS[kind][0] / ("c/2" if kind == "sparse" else "c/2/0")
        os.utime(file, ns=(1, 1))
        with pytest.raises(SourceError, match="was changed while it was in use"):
            rows_of(source)
