"""Sketch stores as sources: the contract, damage that is named, what a store says of itself, fingerprints of inputs."""

from __future__ import annotations

import itertools
import json
import os

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from streamkm.core.exceptions import InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.sketches import CountSketch, IdentitySketch
from streamkm.sources import open_source
from streamkm.sources.fingerprints import SAMPLE_BYTES, file_fingerprint, fingerprint
from streamkm.sources.sketch_store import StoreInfo, StoreSource
from streamkm.stores.writer import append_rows, write_store
from tests.children import reader_of
from tests.contracts import Opened, SourceContract
from tests.naive import countsketch_matrix
from tests.sources.matrices import dense_matrix, sparse_matrix
from tests.tables import cases, slow_but


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

    def test_anndata_reads_it(self, stored, tmp_path):
        io = pytest.importorskip("anndata.io")
        got = io.read_elem(zarr.open_group(tmp_path / "s.zarr", mode="r")["parts/0/X"])
        np.testing.assert_array_equal(got.toarray(), np.concatenate([rows.X.toarray() for rows in read_all(stored)]))

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

    def test_missing(self, tmp_path):
        with pytest.raises(SourceNotFoundError, match=r"is no sketch store: it has no zarr\.json"):
            StoreInfo.read(tmp_path)


ARRAYS = ("X/data", "X/indices", "X/indptr")
HARMS = ("flipped", "short", "missing", "swapped")
EACH_ONCE = list(zip((*ARRAYS, "X/data"), HARMS, strict=True))


class TestDamage:
    @pytest.mark.parametrize(("array", "how"), slow_but(EACH_ONCE, itertools.product(ARRAYS, HARMS)))
    def test_is_named_with_file_and_storage_chunk(self, stored, tmp_path, array, how):
        file = tmp_path / "s.zarr/parts/0" / array / "c/1"
        whole = file.read_bytes()
        if how == "flipped":
            file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 16]) + whole[-2:])
        elif how == "short":
            file.write_bytes(whole[:9])
        elif how == "missing":
            file.unlink()
        else:  # sound, but another's
            file.write_bytes(file.with_name("0").read_bytes())
        source = open_source(tmp_path / "s.zarr")
        with pytest.raises(SourceError, match=f"storage chunk 1 of .*/parts/0/{array} is .*: {file}: ") as caught:
            read_all(source)
        assert ("is missing" in str(caught.value)) == (how == "missing")

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

    def test_of_no_bytes(self, tmp_path):
        (tmp_path / "x").write_bytes(b"")
        assert file_fingerprint(str(tmp_path / "x"))["bytes"] == 0

    def test_of_a_directory(self, tmp_path):
        (tmp_path / "d/e").mkdir(parents=True)
        (tmp_path / "d/e/f").write_text("1")
        first = file_fingerprint(str(tmp_path / "d"))
        (tmp_path / "d/e/f").rename(tmp_path / "d/f")
        assert file_fingerprint(str(tmp_path / "d"))["sample"] != first["sample"]

    @pytest.mark.parametrize("sparse", [False, True])
    def test_of_rows_in_memory(self, sparse):
        X = np.random.default_rng(0).random((500, 80))
        first = fingerprint(open_source(sp.csr_array(X) if sparse else X))
        assert first["sample"]
        X[-1, -1] += 1
        assert fingerprint(open_source(sp.csr_array(X) if sparse else X)) != first

    def test_of_a_stream(self):
        assert fingerprint(open_source(lambda: iter([np.ones((2, 2))])))["sample"] is None

    @cases("name", ["x.npy", "x.npz", "x.h5", "x.zarr", "x.svm", "x.svm.gz", "two.npy"])
    def test_files_are_known(self, tmp_path, name):
        import gzip

        import h5py

        X, path = dense_matrix(), tmp_path / name
        text = b"".join(b"0 1:%d 7:3\n" % row[0] for row in X)
        if name.endswith(".npy"):
            np.save(path, X)
        elif name == "x.npz":
            np.savez(path, X=X)
        elif name == "x.h5":
            with h5py.File(path, "w") as file:
                file["X"] = X
        elif name == "x.zarr":
            zarr.save_array(path, X)
        else:
            path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        opened = open_source([path, path] if name == "two.npy" else path)
        (file,) = fingerprint(opened)["files"]
        assert file["path"] == str(path)
