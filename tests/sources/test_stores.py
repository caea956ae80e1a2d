"""Sketch stores as sources: the contract, damage that is named, what a store says of itself, fingerprints of inputs."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec

from streamkm.core.exceptions import InvalidParameterError, SourceError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.sketches import CountSketch, IdentitySketch
from streamkm.sources import open_source
from streamkm.sources.fingerprints import SAMPLE_BYTES, file_fingerprint, fingerprint
from streamkm.sources.sketch_store import StoreSource
from streamkm.stores.writer import append_rows, write_store
from tests.children import reader_of
from tests.contracts import Opened, SourceContract, assert_same_rows
from tests.naive import countsketch_matrix
from tests.sources.matrices import dense_matrix, sparse_matrix
from tests.tables import cases


def make(path, X, sketch, *more):
    """A store of X, and of `more` added to it, in small storage chunks."""
    with open_executor(2) as executor:
        found = write_store(path, reader_of(X, chunk_bytes=500), sketch, executor, Stage("s"))
        for rows in more:
            found = append_rows(path, reader_of(rows, chunk_bytes=500), executor, Stage("s"))
    return found


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("streamkm.stores.writer.CHUNK_BYTES", 200)


@pytest.fixture(scope="module", params=["dense", "sparse", "in parts", "no values", "identity"])
def made(request, tmp_path_factory):
    """A store of each kind, made once for all that is read from it."""
    path, kind = tmp_path_factory.mktemp("store") / "s.zarr", request.param
    X = dense_matrix() if kind == "dense" else sparse_matrix()
    if kind == "no values":
        X = sp.csr_array(X.shape, dtype=np.float32)
    sketch, more = CountSketch(300, 5), (X[:7], X[3:4]) if kind == "in parts" else ()
    wanted = np.concatenate([rows @ countsketch_matrix(5, X.shape[1], 300) for rows in (X, *more)])
    if kind == "identity":
        sketch, wanted = IdentitySketch(X.shape[1]), X.toarray()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("streamkm.stores.writer.CHUNK_BYTES", 200)
        make(path, X, sketch, *more)
    return Opened(open_source(path), wanted.astype(np.float32))


class TestStores(SourceContract):
    @pytest.fixture
    def opened(self, made):
        return made


@pytest.fixture
def stored(tmp_path):
    """A store of sparse rows with many storage chunks."""
    return make(tmp_path / "s.zarr", sparse_matrix(), CountSketch(300, 5))


def read_all(source):
    return [source.read(chunk) for chunk in source.chunks(300)]


class TestWhatItSays:
    def test_is_told_from_other_zarr(self, stored, tmp_path):
        assert isinstance(open_source(tmp_path / "s.zarr"), StoreSource)
        assert isinstance(open_source(str(tmp_path / "s.zarr"), format="store"), StoreSource)
        raw = open_source(tmp_path / "s.zarr", format="zarr", dataset="/parts/0/X")
        assert not isinstance(raw, StoreSource)
        for got, wanted in zip(read_all(raw), read_all(stored), strict=True):
            np.testing.assert_array_equal(got.X.toarray(), wanted.X.toarray())
        with pytest.raises(InvalidParameterError, match="dataset= does not apply to a sketch store"):
            open_source(tmp_path / "s.zarr", dataset="/parts/0/X")

    def test_provenance(self, stored):
        info = stored.info
        assert info.sketch == {"kind": "countsketch", "n_components": 300, "seed": 5, "nnz_per_feature": 1}
        assert (info.kind, info.n_rows, info.n_components, info.n_features) == ("csr", 53, 300, 31)
        (entry,) = info.inputs
        assert (entry["rows"], entry["features"], entry["exact"]) == ([0, 53], [0, 31], True)
        assert entry["source"] == fingerprint(open_source(sparse_matrix()))
        assert stored.details()["sketch"] == "countsketch, n_components 300, seed 5, nnz_per_feature 1"

    def test_one_of_another_format_is_refused(self, stored, tmp_path):
        root = tmp_path / "s.zarr" / "zarr.json"
        told = json.loads(root.read_text())
        told["attributes"]["streamkm_store"]["format"] = 3
        root.write_text(json.dumps(told))
        with pytest.raises(SourceError, match="a sketch store of format 3; this release reads 2"):
            open_source(tmp_path / "s.zarr")

    def test_a_changed_seed_is_noticed(self, stored, tmp_path):
        root = tmp_path / "s.zarr" / "zarr.json"
        root.write_text(root.read_text().replace('"seed": 5', '"seed": 6'))
        with pytest.raises(SourceError, match="do not have the digest"):
            open_source(tmp_path / "s.zarr")

    @pytest.mark.parametrize(
        "text", ['"streamkm_store"', '{"attributes": {"streamkm_store": 3}}', '["streamkm_store"]']
    )
    def test_damaged_provenance(self, stored, tmp_path, text):
        (tmp_path / "s.zarr" / "zarr.json").write_text(text)
        with pytest.raises(SourceError, match="is not of a sketch store, or is damaged"):
            open_source(tmp_path / "s.zarr")


CODECS = {
    "zstd": {"compressors": BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=4)},  # as once written
    "bitshuffle": {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4)},
    "plain bytes": {"compressors": BloscCodec(cname="blosclz", clevel=0, shuffle="noshuffle", typesize=4)},
    "none": {"compressors": None},
    "two": {"compressors": [GzipCodec(), BloscCodec(typesize=1)]},
    "big endian": {"serializer": BytesCodec(endian="big"), "compressors": BloscCodec(typesize=4)},
}


@cases("codec", CODECS)
def test_values_in_other_bytes_are_the_same(tmp_path, codec):
    wanted = read_all(make(tmp_path / "s", sparse_matrix(), CountSketch(300, 5)))
    place = tmp_path / "s/parts/0/X/data"
    old = zarr.open_array(place, mode="r")
    given = {"shape": old.shape, "chunks": old.chunks, "dtype": old.dtype, "fill_value": 0, "overwrite": True}
    values = old[:]
    zarr.create_array(place, **given, **CODECS[codec])[:] = values
    for rows, each in zip(read_all(open_source(tmp_path / "s")), wanted, strict=True):
        assert_same_rows(rows, each)


@pytest.fixture(params=["dense", "sparse"])
def array(request, tmp_path, monkeypatch):
    """The name of a store's first array, and its values as an array of the source."""
    is_dense = request.param == "dense"
    if is_dense:
        monkeypatch.setattr("streamkm.stores.writer.CHUNK_BYTES", 4 * 1200)  # four rows
    make(tmp_path / "s.zarr", dense_matrix() if is_dense else sparse_matrix(), CountSketch(300, 5))
    (part,) = open_source(tmp_path / "s.zarr").parts
    return ("X", part._array) if is_dense else ("X/data", part._data)


def test_any_piece_of_an_array_is_what_zarr_reads(array, tmp_path):
    name, stored = array
    wanted, unit = zarr.open_array(tmp_path / "s.zarr/parts/0" / name, mode="r")[:], stored.unit_rows
    assert len(wanted) % unit, "the last storage chunk is to be cut short"
    for start, stop in ((0, len(wanted)), (unit, 2 * unit), (1, unit + 1), (unit - 1, unit), (unit, len(wanted))):
        out = np.full((stop - start, *wanted.shape[1:]), 7, wanted.dtype)
        stored.read_into(start, stop, out)
        for got in (out, pickle.loads(pickle.dumps(stored)).read(start, stop)):
            np.testing.assert_array_equal(got, wanted[start:stop])


def test_storage_chunks_of_zeros_have_no_file(tmp_path):
    X = dense_matrix().copy()
    X[10:40] = 0
    source = make(tmp_path / "s", X, IdentitySketch(X.shape[1]))
    assert not (tmp_path / "s/parts/0/X/c/3").exists()
    np.testing.assert_array_equal(np.concatenate([rows.X for rows in read_all(source)]), X)


class TestDamage:
    @pytest.mark.parametrize("how", ["huge", "empty", "lengths", "flipped", "another's", "missing"])
    def test_is_named_with_its_place(self, array, tmp_path, how):
        name, unit = array[0], array[1].unit_rows
        file = tmp_path / "s.zarr/parts/0" / name / ("c/2" if name == "X/data" else "c/2/0")
        whole = file.read_bytes()
        claimed = np.frombuffer(whole[:16], "<u4").copy()
        claimed[1] *= 1000
        changed = {
            "empty": b"",
            "huge": whole * 100,
            "lengths": claimed.tobytes() + whole[16:],
            "flipped": whole[:-3] + bytes([whole[-3] ^ 16]) + whole[-2:],
            "another's": Path(str(file).replace("c/2", "c/1")).read_bytes(),  # sound
        }
        file.unlink() if how == "missing" else file.write_bytes(changed[how])
        where = f"{'rows' if name == 'X' else 'values'} {2 * unit}-{3 * unit - 1}"
        state = "missing" if how == "missing" else "damaged"
        source = open_source(tmp_path / "s.zarr")
        if how == "huge":  # what is decoded is what was written
            with suppress(SourceError):
                read_all(source)
            return
        with pytest.raises(SourceError, match=rf"storage chunk 2 of .*{name} is {state}: {file}: .*\({where}\)"):
            read_all(source)

    def test_of_a_file_that_changed_meanwhile_is_called_so(self, array, tmp_path):
        name = array[0]
        file, source = tmp_path / "s.zarr/parts/0" / name / ("c/2" if name == "X/data" else "c/2/0"), None
        changes = (lambda: os.utime(file, ns=(1, 1)), lambda: file.write_bytes(file.read_bytes()[:-1]), file.unlink)
        for change in changes:
            source = source or open_source(tmp_path / "s.zarr")
            change()
            with pytest.raises(SourceError, match="was changed while it was in use"):
                read_all(source)

    def test_of_checksums(self, stored, tmp_path):
        table = zarr.open_array(tmp_path / "s.zarr/parts/0/checksums/data", mode="r+")
        table[0] = 7
        with pytest.raises(SourceError, match="checksums/data is damaged"):
            open_source(tmp_path / "s.zarr")

    def test_of_metadata(self, stored, tmp_path):
        (tmp_path / "s.zarr/parts/0/X/data/zarr.json").unlink()
        with pytest.raises(SourceError, match="lacks /parts/0/X/data"):
            open_source(tmp_path / "s.zarr")


class TestFingerprints:
    def test_of_a_file(self, tmp_path):
        path = tmp_path / "x"
        path.write_bytes(bytes(40 * SAMPLE_BYTES))
        first = file_fingerprint(str(path))
        assert first == file_fingerprint(str(path))
        assert first["bytes"] == 40 * SAMPLE_BYTES
        for at in (0, 40 * SAMPLE_BYTES - 1):  # head and tail, whatever the clock says
            path.write_bytes(bytes(at) + b"\1" + bytes(40 * SAMPLE_BYTES - at - 1))
            os.utime(path, ns=(0, first["mtime_ns"]))
            changed = file_fingerprint(str(path))
            assert {key for key in first if first[key] != changed[key]} == {"sample"}
        os.utime(path, ns=(0, 17))
        assert file_fingerprint(str(path))["mtime_ns"] == 17

    @cases("kind", [np.asarray, sp.csr_array])
    def test_of_rows_in_memory(self, kind):
        X = np.random.default_rng(0).random((500, 80))
        first = fingerprint(open_source(kind(X)))
        assert first["sample"]
        X[-1, -1] += 1
        assert fingerprint(open_source(kind(X))) != first
        assert fingerprint(open_source(lambda: iter([X])))["sample"] is None

    def test_files_are_known(self, tmp_path):
        X = dense_matrix()
        np.save(tmp_path / "x.npy", X)
        zarr.save_array(tmp_path / "x.zarr", X)
        (tmp_path / "x.svm.gz").write_bytes(gzip.compress(b"0 1:2 7:3\n"))
        for name in ("x.npy", "x.zarr", "x.svm.gz"):
            path = str(tmp_path / name)
            for given in (path, [path, path]):
                (file,) = fingerprint(open_source(given))["files"]
                assert file["path"] == path
