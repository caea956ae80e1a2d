""".npy, .npz and Matrix Market files: read in parts where possible, below the limit of the plan, never a pickle."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmread, mmwrite

from streamkm import StreamKMeans
from streamkm.core.exceptions import (
    InvalidInputError,
    InvalidParameterError,
    MemoryLimitError,
    SourceError,
    SourceNotFoundError,
)
from streamkm.sources import open_source
from streamkm.sources.binary import numpy_files
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.dense import DenseSource
from streamkm.sources.stored import as_decoded
from tests.contracts import Opened, SourceContract, assemble
from tests.fresh import run_fresh
from tests.sources.matrices import dense_matrix, sparse_matrix
from tests.tables import cases


class TestNpy(SourceContract):
    @pytest.fixture(params=["?", ">u4", "f2", "by columns", "format 2"])
    def opened(self, request, tmp_path):
        X = dense_matrix(dtype=request.param if len(request.param) < 4 else "f8")
        with (tmp_path / "x.npy").open("wb") as file:
            stored = np.asfortranarray(X) if request.param == "by columns" else X
            np.lib.format.write_array(file, stored, version=(2, 0) if request.param == "format 2" else None)
        return Opened(open_source(tmp_path / "x.npy"), X)


class TestNpz(SourceContract):
    @pytest.fixture(params=["plain", "compressed", "by columns"])
    def opened(self, request, tmp_path):
        X = dense_matrix()
        save = np.savez_compressed if request.param == "compressed" else np.savez
        stored = np.asfortranarray(X) if request.param == "by columns" else X
        save(tmp_path / "x.npz", y=np.arange(53), X=stored)
        return Opened(open_source(tmp_path / "x.npz"), X)


class TestSavedSparse(SourceContract):
    @pytest.fixture(params=["csr", "csr compressed", "csc", "int64"])
    def opened(self, request, tmp_path):
        X = sparse_matrix()
        if request.param == "int64":
            X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
        kinds = {"csc": sp.csc_matrix, "int64": sp.csr_array}
        stored = kinds.get(request.param, sp.csr_matrix)(X)
        sp.save_npz(tmp_path / "x.npz", stored, compressed=request.param == "csr compressed")
        return Opened(open_source(tmp_path / "x.npz"), X.toarray())


def test_what_is_not_compressed_is_read_in_parts(tmp_path):
    np.savez(tmp_path / "x.npz", X=dense_matrix(5_000))
    sp.save_npz(tmp_path / "s.npz", sparse_matrix(5_000), compressed=False)
    for name, kind in (("x.npz", DenseSource), ("s.npz", CsrSource)):
        assert isinstance(open_source(tmp_path / name), kind)
        assert len(pickle.dumps(open_source(tmp_path / name))) < 2_000


def saved_as(kind, path):
    """Zeros: some 128 MB in a file of a few hundred KB."""
    if kind == "dense":
        np.savez_compressed(path, X=np.zeros((2_000_000, 8)))
        return
    given = {"data": np.zeros(8_000_000), "indices": np.zeros(8_000_000, np.int32), "shape": (2_000_000, 8)}
    major = 8 if kind == "csc" else 2_000_000
    indptr = np.r_[np.zeros(major, np.int64), 8_000_000]
    np.savez_compressed(path, **given, indptr=indptr, format=kind.encode())


@cases("kind", ["dense", "csr"])
def test_nothing_is_unpacked_before_its_size_is_compared_with_the_limit(tmp_path, kind, monkeypatch):
    saved_as(kind, tmp_path / "x.npz")
    loads = []
    read = numpy_files.npy_format.read_array
    monkeypatch.setattr(
        numpy_files.npy_format, "read_array", lambda member, **given: loads.append(member.name) or read(member, **given)
    )
    source = open_source(tmp_path / "x.npz")
    limit = {"limit": 200 << 20, "process_memory": 128 << 20}
    for call in (StreamKMeans(2, memory_limit=limit).plan, StreamKMeans(2, memory_limit=limit).fit):
        with pytest.raises(MemoryLimitError, match=r"x\.npz.* can only be loaded whole, and needs about"):
            call(source)
    assert not {name for name in loads if name not in ("shape.npy", "format.npy")}


def test_values_beyond_their_member_are_refused(tmp_path):
    """They would be those of the next one."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (40, 3)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", member.getvalue() + bytes(96))
        archive.writestr("Y.npy", bytes(4_000))
    with pytest.raises(SourceError, match=r"x\.npz:X is damaged: .* 960 bytes .* holds 96 at most"):
        open_source(tmp_path / "x.npz", key="X")
    with zipfile.ZipFile(tmp_path / "y.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", member.getvalue() + bytes(96))
    with pytest.raises(SourceError, match=r"y\.npz:X is damaged: .* holds 96 at most"):
        list(open_source(tmp_path / "y.npz").stream(1 << 20))


def test_pickles_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, None]]), allow_pickle=True)
    np.savez(tmp_path / "x.npz", X=np.array([[1, None]]))
    np.savez_compressed(tmp_path / "z.npz", X=np.array([[1, None]]))
    for name, options in (("x.npy", {}), ("x.npz", {"key": "X"}), ("z.npz", {"key": "X"})):
        with pytest.raises(InvalidInputError, match=rf"{name}.* holds Python objects"):
            open_source(tmp_path / name, **options)


def test_keys(tmp_path):
    np.savez(tmp_path / "x.npz", train=dense_matrix(), test=dense_matrix(9), y=np.arange(3))
    assert open_source(tmp_path / "x.npz", key="test").n_rows == 9
    assert open_source(f"{tmp_path}/x.npz:/train").n_rows == 53
    with pytest.raises(InvalidInputError, match=r"2 matrices .*test \(9, 7\) float32.*choose one with key="):
        open_source(tmp_path / "x.npz")
    with pytest.raises(SourceNotFoundError, match="no array X; it has test, train, y"):
        open_source(tmp_path / "x.npz", key="X")


@cases("shape", [(5, -3), (-5, 3)])
def test_a_negative_shape_is_refused(tmp_path, shape):
    np.save(tmp_path / "x.npy", dense_matrix())
    stored = (tmp_path / "x.npy").read_bytes()
    said = str(dense_matrix().shape).encode()
    (tmp_path / "x.npy").write_bytes(stored.replace(said, str(shape).encode().ljust(len(said))))
    with pytest.raises(SourceError, match=rf"x\.npy is damaged: .*{re.escape(str(shape))}; .* not be negative"):
        open_source(tmp_path / "x.npy")


def test_a_saved_matrix_that_does_not_fit_together(tmp_path):
    X = sparse_matrix()
    parts = {"data": X.data, "indices": X.indices[:-1], "indptr": X.indptr, "shape": X.shape, "format": b"csr"}
    np.savez(tmp_path / "x.npz", **parts)
    np.savez_compressed(tmp_path / "z.npz", **parts)
    for name in ("x.npz", "z.npz"):
        with pytest.raises(InvalidInputError, match=name):
            open_source(tmp_path / name)
    np.savez(tmp_path / "x.npz", **{**parts, "format": b"dia"})
    with pytest.raises(InvalidInputError, match="in dia format"):
        open_source(tmp_path / "x.npz")


def words() -> np.ndarray:
    """16-bit words of whole numbers up to 99, which bfloat16 holds."""
    return (dense_matrix().view(np.uint32) >> 16).astype(np.uint16).view("V2")


def as_floats(values):
    return as_decoded(values.view("V2"), np.dtype(np.float32))


class TestWords(SourceContract):
    @pytest.fixture(params=[".npy", ".npy by columns", ".npz", ".npz compressed", "memory map", "array", "view"])
    def opened(self, request, tmp_path):
        X, path = words(), tmp_path / "x.npy"
        if request.param.startswith(".npz"):
            path = tmp_path / "x.npz"
            (np.savez_compressed if "compressed" in request.param else np.savez)(path, X=X)
            return Opened(open_source(path, key="X"), dense_matrix())
        np.save(path, np.asfortranarray(X) if "columns" in request.param else X)
        mapped = np.load(path, mmap_mode="r")
        values = {"memory map": mapped, "array": X, "view": mapped[:, 1:]}.get(request.param, path)
        return Opened(open_source(values), dense_matrix()[:, request.param == "view" :])


def test_every_word_is_the_upper_half_of_a_float():
    every = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(as_floats(every).view(np.uint32), every.astype(np.uint32) << 16)
    assert as_floats(np.array([0x3F80, 0xC000, 0x7F80], np.uint16)).tolist() == [1.0, -2.0, np.inf]


class JaxArray:
    """What an array of JAX offers: its type by name, and an array of NumPy's of two bytes without a type."""

    dtype = "bfloat16"

    def __init__(self, words):
        self._words, self.shape = words, words.shape

    def __array__(self, dtype=None, copy=None):
        return self._words


def test_arrays_of_jax_are_no_tensors_of_pytorch():
    (rows,) = open_source(JaxArray(words())).stream(1 << 20)
    np.testing.assert_array_equal(rows.X, as_floats(words()))


@pytest.mark.parametrize("kind", [JaxArray, np.asarray])
def test_a_fit_takes_them(kind):
    found, wanted = (StreamKMeans(3, random_state=0, progress=False).fit(X) for X in (kind(words()), dense_matrix()))
    np.testing.assert_array_equal(found.labels_, wanted.labels_)


def test_values_of_more_bytes_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", dense_matrix().view("V4"))
    with pytest.raises(InvalidInputError, match=r"holds records \(\|V4\)"):
        open_source(tmp_path / "x.npy")
    with pytest.raises(InvalidParameterError, match=r"dtype= does not apply to \.npy"):
        open_source(tmp_path / "x.npy", dtype="bfloat16")


HEAD = "%%MatrixMarket matrix coordinate real general\n"


def shuffled(matrix: sp.coo_array) -> sp.coo_array:
    order = np.random.default_rng(0).permutation(matrix.nnz)
    return sp.coo_array((matrix.data[order], (matrix.row[order], matrix.col[order])), shape=matrix.shape)


class TestCoordinates(SourceContract):
    @pytest.fixture(params=["by columns", "shuffled", "gzip"])
    def opened(self, request, tmp_path):
        X = sparse_matrix()
        stored = {"by columns": X.tocsc().tocoo(), "shuffled": shuffled(X.tocoo())}.get(request.param, X)
        text = io.BytesIO()
        mmwrite(text, stored)
        pack = gzip.compress if request.param == "gzip" else bytes
        (tmp_path / "x.mtx").write_bytes(pack(text.getvalue()))
        return Opened(open_source(tmp_path / "x.mtx"), X.toarray().astype(np.float64))


class TestArray(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        X = dense_matrix()
        mmwrite(tmp_path / "x.mtx", X)
        return Opened(open_source(tmp_path / "x.mtx"), X.astype(np.float64))


def test_like_scipy(tmp_path):
    rng = np.random.default_rng(0)
    lower = np.tril(rng.integers(-9, 9, (30, 30))).astype(float)
    square = {"symmetric": lower + np.tril(lower, -1).T, "skew-symmetric": np.tril(lower, -1) - np.tril(lower, -1).T}
    for symmetry, X in square.items():
        for field in ("real", "integer"):
            mmwrite(tmp_path / "x.mtx", sp.coo_array(X), symmetry=symmetry, field=field)
            source = open_source(tmp_path / "x.mtx")
            assert source.is_sparse
            np.testing.assert_array_equal(assemble(source.stream(200), 30), X)
    texts = [
        HEAD + "% a remark\n\n 3 4 5 \n1 1 1e-3\n\n3\t4 -.5\r\n2 2 1\n2 2 2.5\n  1 4 12345678901234567890\n",
        HEAD.replace("real", "pattern") + "2 3 3\n2 3\n1 1\n1 2\n",
        "%%MatrixMarket MATRIX Coordinate REAL general\n2 2 1\n2 2 0.10000000000000000555111512312578270211815",
    ]
    for text in texts:
        (tmp_path / "x.mtx").write_text(text)
        X = mmread(io.BytesIO(text.encode())).toarray()
        np.testing.assert_array_equal(assemble(open_source(tmp_path / "x.mtx").stream(1), X.shape[1]), X)


@cases("text, message", [
        (HEAD + "3 3 4\n1 1", "Line 3"),
        (HEAD + "3 3 4\n1 1 1\n", "Truncated"),
        (HEAD + "3 3 1\n1 1 x\n", "Line 3"),
        (HEAD + "3 3 1\n1 4 1\n", "Line 3"),
        (HEAD + "3 3 1\n99999999999999999999 1 1\n", "Line 3"),
        (HEAD.replace("real", "complex") + "1 1 1\n1 1 1 0\n", "rows must be real"),
        (HEAD.replace("general", "symmetric") + "1 2 1\n1 1 1\n", "1 x 2 and symmetric"),
        (HEAD + "% a remark\n\n3 3 2\n1 1 1\n\n1.5 1 1\n", "Line 7: Invalid integer value"),
        (HEAD + "3 3 1\n1 1 1e\0\n", "NUL"),
        (HEAD + f"3 3 {10**17}\n1 1 1\n", "cannot be read"),
        ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3 4\n", "Truncated"),
    ])  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, text, message):
    (tmp_path / "x.mtx").write_text(text)
    with pytest.raises(SourceError) as caught:
        list(open_source(tmp_path / "x.mtx").stream(1000))
    assert str(caught.value).startswith(f"{tmp_path / 'x.mtx'} cannot be read as Matrix Market")
    assert message in str(caught.value)


def test_a_matrix_above_the_limit_is_refused_by_its_header(tmp_path):
    (tmp_path / "x.mtx").write_text(HEAD + "1000000 1000 500000000\n1 1 1\n")
    with pytest.raises(MemoryLimitError, match=r"x\.mtx can only be loaded whole, and needs .*; raise memory_limit to"):
        StreamKMeans(3, memory_limit="2 GiB").fit(tmp_path / "x.mtx")


READ = """
import json, resource, sys
from streamkm.sources import open_source
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
list(open_source(sys.argv[1]).stream(1 << 20))
before = peak()
source = open_source(sys.argv[2])
rows = sum(each.X.shape[0] for each in source.stream(1 << 20))
print(json.dumps([source.access.resident_bytes, rows, peak() - before]))
"""


def test_memory_is_counted(tmp_path):
    n_rows, n_columns = 200_000, 5
    (tmp_path / "small.mtx").write_text(HEAD + "1 1 1\n1 1 1\n")
    with open(tmp_path / "x.mtx", "w") as file:
        file.write(f"{HEAD}{n_rows} {n_columns} {n_rows * n_columns}\n")
        for j in range(n_columns):
            file.write("\n".join(f"{i} {j + 1} 1" for i in range(1, n_rows + 1)) + "\n")
    counted, rows, taken = run_fresh(READ, [str(tmp_path / "small.mtx"), str(tmp_path / "x.mtx")])
    assert rows == n_rows
    assert taken < counted, f"{taken:,} bytes, where {counted:,} are counted"
