"""Matrix Market files: entries in any order, all kinds, compressed, damaged; below the limit of the plan."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmread, mmwrite

from streamkm import StreamKMeans
from streamkm.core.exceptions import MemoryLimitError, SourceError
from streamkm.sources import open_source
from tests.contracts import Opened, SourceContract, assemble
from tests.fresh import run_fresh
from tests.sources.matrices import dense_matrix, sparse_matrix
from tests.tables import cases

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
