"""HDF5: dense datasets of any storage, CSR groups, 10x, open handles, what must not be followed, damage."""

from __future__ import annotations

import io
import pickle
import sys
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from streamkm.core.exceptions import InvalidInputError, MissingDependencyError, SourceError, SourceNotFoundError
from streamkm.sources import open_source
from streamkm.sources.binary import hdf5_arrays
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import dense_matrix, sparse_matrix, write_csr
from tests.tables import cases

STORAGES = {
    "contiguous": {"dtype": "f2"},
    "chunked": {"chunks": (8, 7), "dtype": ">f8"},
    "gzip and shuffle": {"chunks": (8, 3), "compression": "gzip", "shuffle": True, "dtype": ">u4"},
    "checksum": {"chunks": (8, 7), "fletcher32": True, "dtype": "f2"},
    "lzf": {"chunks": (8, 7), "compression": "lzf", "dtype": "?"},
}


@pytest.fixture(autouse=True)
def _read_small_chunks_directly(monkeypatch):
    monkeypatch.setattr(hdf5_arrays, "_LEAST_CHUNK_BYTES", 0)


def write(path, X, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, **options)
    return str(path)


class TestStorages(SourceContract):
    @pytest.fixture(params=STORAGES)
    def opened(self, request, tmp_path):
        options = STORAGES[request.param]
        X = dense_matrix(dtype=options["dtype"])
        return Opened(open_source(write(tmp_path / "x.h5", X, **options)), X)


class TestCsrGroup(SourceContract):
    @pytest.fixture(params=["contiguous", "gzip", "10x"])
    def opened(self, request, tmp_path):
        X = sparse_matrix()
        with h5py.File(tmp_path / "x.h5", "w") as file:
            group = file.create_group("matrix")
            if request.param == "10x":
                write_csr(group, X)
                for name in ("shape", "encoding-type"):
                    del group.attrs[name]
                group["shape"] = X.shape[::-1]
                group["barcodes"] = np.array([b"x"] * X.shape[0])
                group.create_group("features")
            elif request.param == "contiguous":
                write_csr(group, X)
            else:
                write_csr(group, X, chunk=32, compression="gzip")
        return Opened(open_source(f"{tmp_path / 'x.h5'}:/matrix"), X.toarray())


def test_chunks_that_were_never_written_are_the_fill_value(tmp_path):
    X = np.full((64, 5), 7.0)
    X[16:32] = 1
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", X.shape, chunks=(8, 5), fillvalue=7.0, dtype="f8")[16:32] = 1
    (rows,) = open_source(tmp_path / "x.h5").stream(1 << 20)
    np.testing.assert_array_equal(rows.X, X)


def test_every_storage_chunk_is_read_once_a_pass(tmp_path, monkeypatch):
    X = dense_matrix(200, 9)
    source = open_source(write(tmp_path / "x.h5", X, chunks=(16, 4), compression="gzip"))
    counts = Counter()
    decoded = hdf5_arrays.Hdf5Array._decoded

    def count(self, dataset, at):
        counts[at] += 1
        return decoded(self, dataset, at)

    monkeypatch.setattr(hdf5_arrays.Hdf5Array, "_decoded", count)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(source.read, source.chunks(1_500)))
    assert len(counts) == 13 * 3
    assert set(counts.values()) == {1}


class TestHandles:
    def test_a_file_open_for_writing_is_read_through_its_handle(self, tmp_path):
        X = dense_matrix()
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["X"] = X
            source = open_source(file["X"])
            file["X"][3] = -1
            (rows,) = source.stream(1 << 20)
            assert rows.X[3, 0] == -1
            with pytest.raises(SourceError, match=r"open for writing.*pass its path"):
                pickle.dumps(source)

    def test_a_file_in_memory(self):
        X = dense_matrix()
        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            file["X"] = X
        with h5py.File(buffer, "r") as file:
            (rows,) = open_source(file).stream(1 << 20)
        np.testing.assert_array_equal(rows.X, X)


class TestOtherFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        X = dense_matrix()
        write(tmp_path / "other.h5", X)
        (tmp_path / "raw.bin").write_bytes(X.tobytes())
        layout = h5py.VirtualLayout(X.shape, X.dtype)
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "X", X.shape)
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/X")
            file["soft"] = h5py.SoftLink("/link")
            file.create_virtual_dataset("virtual", layout)
            external = [(str(tmp_path / "raw.bin"), 0, X.nbytes)]
            file.create_dataset("external", X.shape, X.dtype, external=external)
        return tmp_path

    @cases("name", ["link", "soft", "virtual", "external"])
    def test_are_not_read_unless_asked(self, folder, name):
        with pytest.raises(SourceError, match="follow_external=True"):
            open_source(folder / "x.h5", dataset=name)
        source = open_source(folder / "x.h5", dataset=name, follow_external=True)
        (rows,) = source.stream(1 << 20)
        np.testing.assert_array_equal(rows.X, dense_matrix())


class TestChoosing:
    def test_the_nearest_name_is_given(self, tmp_path):
        with pytest.raises(SourceNotFoundError, match=r"did you mean /X\?.* /X \(53, 7\) float32"):
            open_source(write(tmp_path / "x.h5", dense_matrix()), dataset="x")

    def test_several_matrices_are_listed(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["train/data"] = dense_matrix(9)
            file["train/target"] = np.arange(9)
            write_csr(file.create_group("test"), sparse_matrix())
        with pytest.raises(InvalidInputError, match=r"2 matrices: /test \(53, 31\), /train/data \(9, 7\); choose"):
            open_source(tmp_path / "x.h5")
        assert open_source(tmp_path / "x.h5", dataset="train").n_rows == 9

    def test_nothing_that_is_a_matrix(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["y"] = np.arange(4)
        with pytest.raises(InvalidInputError, match=r"no matrix.*/y \(4,\) int64"):
            open_source(tmp_path / "x.h5")


@cases(
    "values, message",
    [
        (np.array([[b"a", b"b"]]), "strings"),
        (np.zeros((2, 2), [("a", "f4")]), "records"),
        (np.zeros(4), "1 dimensions"),
        (np.zeros((0, 2)), "0 rows"),
        (h5py.Empty("f"), "0 dimensions"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path, values, message):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = values
    with pytest.raises(InvalidInputError, match=rf"x\.h5:/X .*{message}|x\.h5:/X has {message}"):
        open_source(tmp_path / "x.h5", dataset="X")


@cases(
    "change, message",
    [
        (lambda group: group.attrs.pop("shape"), "shape is None"),
        (lambda group: group.attrs.__setitem__("shape", [54, 31]), "54 rows need 55"),
        (lambda group: group.attrs.__setitem__("encoding-type", "csc_matrix"), r"CSC matrix .*tocsr"),
        (lambda group: group["indptr"].__setitem__(-1, 7), "falls"),
        (lambda group: group["indices"].__setitem__(0, 31), "index 31 in row 1"),
    ],
)
def test_an_unsound_csr_group_is_refused(tmp_path, change, message):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write_csr(file.create_group("X"), sparse_matrix())
        change(file["X"])
    with pytest.raises(InvalidInputError, match=rf"x\.h5:/X.*{message}|{message}.*x\.h5:/X"):
        list(open_source(tmp_path / "x.h5", dataset="X").stream(1 << 20))


class TestDamage:
    def test_a_chunk_of_garbage_names_its_rows(self, tmp_path):
        path = write(tmp_path / "x.h5", dense_matrix(100), chunks=(10, 7), compression="gzip")
        with h5py.File(path) as file:
            info = file["X"].id.get_chunk_info(4)
        with open(path, "r+b") as file:
            file.seek(info.byte_offset)
            file.write(b"\0" * info.size)
        source = open_source(path)
        good, bad = source.chunks(280)[3], source.chunks(280)[4]
        assert source.read(good).X.shape == (10, 7)
        with pytest.raises(SourceError, match=r"x\.h5:/X, rows 40-49, cannot be read"):
            source.read(bad)

    def test_a_chunk_that_inflates_without_end(self, tmp_path):
        path = write(tmp_path / "x.h5", dense_matrix(100), chunks=(100, 7), compression="gzip")
        with h5py.File(path, "r+") as file:
            file["X"].id.write_direct_chunk((0, 0), zlib.compress(b"\0" * 50_000_000))
        with pytest.raises(SourceError, match="inflates to more than the 2,800 bytes it holds"):
            list(open_source(path).stream(1 << 20))

    def test_a_filter_that_is_not_installed(self, tmp_path, monkeypatch):
        hdf5plugin = pytest.importorskip("hdf5plugin")
        path = write(tmp_path / "x.h5", dense_matrix(), chunks=(8, 7), compression=hdf5plugin.Zstd())
        np.testing.assert_array_equal(next(open_source(path).stream(1 << 20)).X, dense_matrix())
        monkeypatch.setitem(sys.modules, "hdf5plugin", None)
        monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
        with pytest.raises(MissingDependencyError, match=r"filter 32015.*streamkm\[hdf5plugin\]"):
            open_source(path)


def loom(path, spec):
    with h5py.File(path, "w") as file:
        file["matrix"] = dense_matrix().T
        if spec:
            file.attrs["LOOM_SPEC_VERSION"] = "3.0.0"
        else:
            file["row_attrs/Gene"] = file["col_attrs/CellID"] = np.arange(7)


@cases("spec", [True, False])
@cases("name", ["c.loom:/matrix", "c.h5"])
def test_loom_files_are_refused_with_the_remedy(tmp_path, monkeypatch, spec, name):
    monkeypatch.chdir(tmp_path)
    loom(name.partition(":")[0], spec)
    with pytest.raises(InvalidInputError, match=r"is a loom file, of genes by cells; .*read_loom\(path\).write_h5ad"):
        open_source(name)


@cases("block", [0, 512])
@cases("n_matrices", [1, 2])
def test_files_of_matlab_are_refused_with_the_remedy(tmp_path, block, n_matrices):
    with h5py.File(tmp_path / "m.mat", "w", userblock_size=block) as file:
        for number in range(n_matrices):
            file[f"X{number}"] = dense_matrix().T
            file[f"X{number}"].attrs["MATLAB_class"] = np.bytes_(b"double")
    if block:
        with open(tmp_path / "m.mat", "r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")
    with pytest.raises(InvalidInputError, match=r"X0 \(7, 53\) is of MATLAB, and MATLAB writes matrices transposed"):
        open_source(tmp_path / "m.mat")


@cases("lost", ["file", "dataset of the same file", "file of a source"])
def test_sources_that_a_virtual_dataset_has_lost_are_errors(tmp_path, lost):
    X = dense_matrix()
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["rows"] = X
    same = lost == "dataset of the same file"
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[:] = h5py.VirtualSource("." if same else "part.h5", "rows", X.shape)
    with h5py.File(tmp_path / "inner.h5", "w") as file:
        file.create_virtual_dataset("rows", layout)
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    nested = lost == "file of a source"
    layout[:] = h5py.VirtualSource("inner.h5" if nested else "." if same else "part.h5", "rows", X.shape)
    with h5py.File(tmp_path / "all.h5", "w") as file:
        if same:
            file["rows"] = X
        file.create_virtual_dataset("X", layout)
    given = {"dataset": "/X", "follow_external": True}
    source = open_source(tmp_path / "all.h5", **given)
    np.testing.assert_array_equal(np.concatenate([rows.X for rows in source.stream(1 << 20)]), X)
    if "file" in lost and not same:
        (tmp_path / "part.h5").unlink()
    else:
        with h5py.File(tmp_path / ("all.h5" if same else "part.h5"), "r+") as file:
            del file["rows"]
    with pytest.raises(SourceError, match=r"all\.h5:/X is virtual and has lost its source rows in"):
        open_source(tmp_path / "all.h5", **given)
    if not same:
        with pytest.raises(SourceError, match="has lost its source rows in"):
            list(source.stream(1 << 20))
