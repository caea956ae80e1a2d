"""Matrix Market files: any order of entries, all kinds, compressed; as SciPy reads them, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import os

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmread, mmwrite

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources import open_source
from streamkm.sources.matrix_market import entries
from tests.contracts import Opened, SourceContract, assemble
from tests.fresh import run_fresh
from tests.sources.matrices import dense_matrix, sparse_matrix
from tests.tables import cases

HEAD = "%%MatrixMarket matrix coordinate real general\n"


def shuffled(matrix: sp.coo_array) -> sp.coo_array:
    order = np.random.default_rng(0).permutation(matrix.nnz)
    return sp.coo_array((matrix.data[order], (matrix.row[order], matrix.col[order])), shape=matrix.shape)


@pytest.fixture
def small_groups(monkeypatch):
    """Many groups of rows, and blocks of each, of few entries."""
    monkeypatch.setattr(entries, "GROUP_BYTES", 200)
    monkeypatch.setattr(entries, "_BLOCK_BYTES", 64)


class TestCoordinates(SourceContract):
    @pytest.fixture(params=["by rows", "by columns", "shuffled", "gzip", "bzip2"])
    def opened(self, request, tmp_path, small_groups):
        X = sparse_matrix()
        stored = {"by columns": X.tocsc().tocoo(), "shuffled": shuffled(X.tocoo())}.get(request.param, X)
        text = io.BytesIO()
        mmwrite(text, stored)
        pack = {"gzip": gzip.compress, "bzip2": bz2.compress}.get(request.param, bytes)
        (tmp_path / "x.mtx").write_bytes(pack(text.getvalue()))
        return Opened(open_source(tmp_path / "x.mtx"), X.toarray().astype(np.float64))


class TestArray(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path, small_groups):
        X = dense_matrix()
        mmwrite(tmp_path / "x.mtx", X)
        return Opened(open_source(tmp_path / "x.mtx"), X.astype(np.float64))


def test_like_scipy(tmp_path, small_groups):
    rng = np.random.default_rng(0)
    lower = np.tril(rng.integers(-9, 9, (30, 30))).astype(float)
    square = {"symmetric": lower + np.tril(lower, -1).T, "skew-symmetric": np.tril(lower, -1) - np.tril(lower, -1).T}
    for symmetry, X in square.items():
        for stored in (X, sp.coo_array(X)):
            for field in ("real", "integer"):
                mmwrite(tmp_path / "x.mtx", stored, symmetry=symmetry, field=field)
                source = open_source(tmp_path / "x.mtx")
                assert source.is_sparse == sp.issparse(stored)
                np.testing.assert_array_equal(assemble(source.stream(200), 30), X)
    texts = [
        HEAD + "% a remark\n\n 3 4 5 \n1 1 1e-3\n\n% another\n3\t4 -.5\r\n2 2 1\n2 2 2.5\n  1 4 12345678901234567890\n",
        HEAD.replace("real", "pattern") + "2 3 3\n2 3\n1 1\n1 2\n",
        "%%MatrixMarket MATRIX Coordinate REAL general\n2 2 1\n2 2 0.10000000000000000555111512312578270211815",
    ]
    for text in texts:
        (tmp_path / "x.mtx").write_text(text)
        X = mmread(io.BytesIO(text.replace("\n% another", "").encode())).toarray()
        np.testing.assert_array_equal(assemble(open_source(tmp_path / "x.mtx").stream(1), X.shape[1]), X)


@cases("text, message", [
        (HEAD + "3 3 4\n1 1", "line 3: '1 1'; needed: 3 numbers"),
        (HEAD + "3 3 4\n1 1 1\n", "it has 1 entries, and its header says 4"),
        (HEAD + "3 3 1\n1 1 1\n1 2 1\n", "it has more entries than the 1 of its header"),
        (HEAD + "3 3 1\n1 1 x\n", "line 3: '1 1 x'; needed: 3 numbers"),
        (HEAD + "3 3 1\n1 4 1\n", "entry 1 is in row 1 and column 4 of 3 x 3"),
        (HEAD + "3 3 1\n0 1 1\n", "entry 1 is in row 0 and column 1 of 3 x 3"),
        (HEAD + "3 3 1\n99999999999999999999 1 1\n", "99999999999999999999 1 1'; needed: 3 numbers"),
        (HEAD + "3 3\n", "line 2: '3 3'; needed: 3 sizes"),
        (HEAD, "line 1: the file ends"),
        (HEAD.replace("real", "complex") + "1 1 1\n1 1 1 0\n", "rows must be real numbers"),
        (HEAD.replace("general", "symmetric") + "2 3 1\n1 1 1\n", "2 x 3 is symmetric"),
        ("%%MatrixMarket vector coordinate real general\n", "needed: %%MatrixMarket matrix"),
    ])  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, text, message):
    (tmp_path / "x.mtx").write_text(text)
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path / "x.mtx")
    assert str(caught.value).startswith(f"{tmp_path / 'x.mtx'} cannot be read as Matrix Market: ")
    assert message in str(caught.value)


def test_no_rows_are_refused(tmp_path):
    (tmp_path / "x.mtx").write_text(HEAD + "0 3 0\n")
    with pytest.raises(InvalidInputError, match="0 rows of 3 columns"):
        open_source(tmp_path / "x.mtx")


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mmwrite(tmp_path / "x.mtx", sparse_matrix())
    source = open_source(tmp_path / "x.mtx")
    assert source.n_bytes == 16 * sparse_matrix().nnz
    assert os.listdir(tmp_path) == ["x.mtx"]


GATHER = """
import ctypes, json, resource, sys
from streamkm.sources import open_source
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, which round arrays up to 2 MiB now and then
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
list(open_source(sys.argv[1]).stream(1 << 20))  # kernels are loaded
before = peak()
source = open_source(sys.argv[2])
rows = sum(each.X.shape[0] for each in source.stream(1 << 20))
print(json.dumps([source.n_bytes, rows, peak() - before]))
"""


def test_memory_is_bounded(tmp_path):
    n_rows, n_columns = 200_000, 5
    (tmp_path / "small.mtx").write_text(HEAD + "1 1 1\n1 1 1\n")
    with open(tmp_path / "x.mtx", "w") as file:
        file.write(f"{HEAD}{n_rows} {n_columns} {n_rows * n_columns}\n")
        for j in range(n_columns):
            file.write("\n".join(f"{i} {j + 1} 1" for i in range(1, n_rows + 1)) + "\n")
    n_bytes, rows, taken = run_fresh(GATHER, [str(tmp_path / "small.mtx"), str(tmp_path / "x.mtx")])
    assert (n_bytes, rows) == (16 * n_rows * n_columns, n_rows)
    assert taken < n_bytes, f"{taken:,} bytes for entries of {n_bytes:,}"
