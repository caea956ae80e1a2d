"""Input that is wrong, end to end: one clear error that names the place and the remedy, and results stay as they are.

Decreasing feature indices are refused, as scikit-learn refuses them: out of order, they are mostly a broken file.
A storage chunk that a Zarr store does not hold is no error: by the format it holds the fill value; `inspect` says so.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner

from streamkm import StreamKMeans
from streamkm.cli.main import main
from streamkm.core.exceptions import InvalidInputError, StreamkmError, StreamkmWarning
from tests.sources.matrices import dense_matrix, sparse_matrix, write_csr
from tests.tables import cases

GOOD = "1 1:1 2:2\n# comment\n"  # 20 bytes, so the next line is line 3 at byte 20
N_ROWS = 40
SKIP = 'pass invalid="skip" to leave such rows out'


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]  # writes files into the current directory
    message: str
    error: type[Exception] = ValueError
    path: str = "x.svm"
    options: dict[str, Any] = field(default_factory=dict)


def text(content: str | bytes, name: str = "x.svm") -> Callable[[], Any]:
    return lambda: Path(name).write_bytes(content.encode() if isinstance(content, str) else content)


def line(content: str | bytes) -> Callable[[], Any]:
    return text(GOOD.encode() + (content.encode() if isinstance(content, str) else content) + b"\n1 1:1\n")


def hdf5(values: Any, **options: Any) -> Callable[[], Any]:
    def make() -> None:
        with h5py.File("x.h5", "w") as file:
            file.create_dataset("X", data=values, **options)

    return make


def cut_hdf5() -> None:
    hdf5(dense_matrix(N_ROWS))()
    os.truncate("x.h5", os.path.getsize("x.h5") // 2)


def csr_hdf5_of_an_index_too_large() -> None:
    X = sparse_matrix(N_ROWS)
    X.indices[0] = 31
    with h5py.File("x.h5", "w") as file:
        write_csr(file.create_group("X"), X)


def zarr_array(values: Any) -> None:
    array = zarr.create_array("x.zarr", shape=values.shape, dtype=values.dtype, chunks=(10, 7))
    array[:] = values


def corrupt_zarr() -> None:
    zarr_array(dense_matrix(N_ROWS))
    Path("x.zarr/c/2/0").write_bytes(b"\xff" * 64)


def npy_files(*widths: int) -> Callable[[], Any]:
    def make() -> None:
        for number, width in enumerate(widths):
            np.save(f"part{number}.npy", dense_matrix(20, width))

    return make


BYTE_20 = r"^x.svm, line 3 \(byte "
CASES = {
    "missing file": Case(text(GOOD, "y.svm"), r"^x.svm does not exist \(did you mean 'y.svm'\?\)", FileNotFoundError),
    "only comments": Case(text("# a\n\n  # b\n"), "^x.svm has no rows; needed: at least 1"),
    "index 0 where one-based was said": Case(
        line("1 0:1"), BYTE_20 + r"22\): an index 0, but the input is one-based", options={"zero_based": False}
    ),
    "HDF5 without the dataset": Case(
        hdf5(dense_matrix()), r"^x.h5 has no /Y \(did you mean /X\?\); it holds /X", FileNotFoundError, "x.h5:/Y"
    ),
    "HDF5 truncated": Case(cut_hdf5, "^x.h5 cannot be opened as HDF5: .*truncated", OSError, "x.h5"),
    "dataset of strings": Case(
        hdf5(np.array([[b"a", b"b"]] * 3)), r"^x.h5:/X holds strings .*must be real numbers", path="x.h5:/X"
    ),
    "no dataset of rows at all": Case(hdf5(np.ones(9)), "^x.h5:/ holds no matrix: .*it holds /X", path="x.h5"),
    "Zarr with a corrupt chunk": Case(
        corrupt_zarr, "^x.zarr, rows 0-39, cannot be read or decoded .*a storage chunk of these rows is damaged",
        OSError, "x.zarr",
    ),
    "index out of range": Case(
        csr_hdf5_of_an_index_too_large, "^index 31 in row 1 of x.h5:/X is out of range; 31 features allow 0-30",
        path="x.h5",
    ),
    "files of different widths": Case(
        npy_files(7, 8), r"^part 1 \(part1.npy\) has 8 dense features and part 0 \(part0.npy\) 7", path="part*.npy"
    ),
    "NaN": Case(line("1 1:nan"), rf"^NaN in x.svm, line 3 \(byte 20\); {SKIP}"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with results of an earlier run in out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for name in ("labels.npy", "model.npz", "streamkm.json", "report.html"):
        (tmp_path / "out" / name).write_bytes(f"{name} of an earlier run".encode())
    return tmp_path


def contents(directory: str = "out") -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in sorted(Path(directory).rglob("*"))
    }


def arguments(case: Case) -> list[str]:
    options = dict(case.options)
    settings = [f"--set=data.{name}={str(value).lower()}" for name, value in options.items() if name == "zero_based"]
    return ["fit", case.path, "-k", str(options.get("n_clusters", 2)), "-o", "out", "--overwrite", *settings]


def source(case: Case) -> Any:
    given = {name: value for name, value in case.options.items() if name != "n_clusters"}
    return {"path": case.path, **given} if given else case.path


@pytest.mark.parametrize("name", CASES)
def test_fit(folder, name):
    case = CASES[name]
    case.make()
    estimator = StreamKMeans(case.options.get("n_clusters", 2), progress=False)
    with pytest.raises(StreamkmError, match=case.message) as raised:
        estimator.fit(source(case))
    assert isinstance(raised.value, case.error)
    assert isinstance(raised.value, ValueError) != isinstance(raised.value, OSError)
    assert "\n" not in str(raised.value)
    assert not hasattr(estimator, "labels_")
    before, files = contents(), sorted(os.listdir())
    result = CliRunner().invoke(main, arguments(case))
    assert result.exit_code == 2, result.output
    assert contents() == before
    assert sorted(os.listdir()) == files


def test_a_chunk_that_zarr_does_not_hold_is_the_fill_value(folder):
    X = dense_matrix(N_ROWS)
    zarr_array(X)
    Path("x.zarr/c/1/0").unlink()
    X[10:20] = 0
    with pytest.warns(StreamkmWarning, match=r"x\.zarr lacks c/1/0, the first of those missing: 1 of 4 chunks"):
        labels = StreamKMeans(2, random_state=0).fit_predict("x.zarr")
    np.testing.assert_array_equal(labels, StreamKMeans(2, random_state=0).fit_predict(X))
    told = CliRunner().invoke(main, ["inspect", "x.zarr"]).output
    assert "not stored    1 of 4 chunks, which hold the fill value 0.0\n" in told


def hdf5_path(X: Any) -> str:
    hdf5(X)()
    return "x.h5"


def zarr_path(X: Any) -> str:
    zarr_array(X)
    return "x.zarr"


def csr_path(X: Any) -> str:
    with h5py.File("x.h5ad", "w") as file:
        write_csr(file.create_group("X"), sp.csr_array(X))
    return "x.h5ad"


def svmlight_path(X: Any) -> str:
    Path("x.svm").write_text("".join("1 " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) + "\n" for row in X))
    return "x.svm"


HOLDERS = {
    "array": (lambda X: X, "row {row} of array"),
    "CSR": (sp.csr_array, "row {row} of sparse matrix"),
    "list": (lambda X: [X[:10], X[10:]], r"row {inner} of array \(number 1 of the list\)"),
    "iterable": (lambda X: lambda: iter([X[:10], X[10:]]), "row {row} of iterable of chunks"),
    "Dask": (lambda X: da.from_array(X, chunks=(10, 7)), "row {row} of dask array"),
    "HDF5": (hdf5_path, "row {row} of x.h5:/X"),
    "CSR in HDF5": (csr_path, "row {row} of x.h5ad:/X"),
    "Zarr": (zarr_path, "row {row} of x.zarr"),
    "svmlight": (svmlight_path, r"x.svm, line {line} \(byte [\d,]+\)"),
}


@pytest.mark.parametrize(
    ("kind", "value"), [*((kind, np.nan) for kind in HOLDERS), ("svmlight", np.inf), ("array", -np.inf)]
)
def test_not_finite(folder, kind, value):
    word = "NaN" if np.isnan(value) else "infinity"
    hold, place = HOLDERS[kind]
    X = dense_matrix(N_ROWS) + np.float32(1)
    X[[23, 31], [3, 0]] = value
    held = hold(X)
    place = place.format(row=23, line=24, inner=13)
    with pytest.raises(InvalidInputError, match=f"^{word} in {place}; {SKIP}"):
        StreamKMeans(3, chunk_bytes=300).fit(held)
    skipping = StreamKMeans(3, chunk_bytes=300, invalid="skip", random_state=0).fit(held)
    assert np.flatnonzero(skipping.labels_ == -1).tolist() == [23, 31]
    assert skipping.counts_.sum() == N_ROWS - 2
    np.testing.assert_array_equal(skipping.predict(held), skipping.labels_)
    either = place.replace("row 23", "row (23|31)") if kind == "Dask" else place  # lazy: blocks come in any order
    with pytest.raises(InvalidInputError, match=f"^{word} in {either}; {SKIP}"):
        np.asarray(skipping.set_params(invalid="raise").predict(held))


@cases(
    "X, message",
    [
        ([np.ones((3, 7)), sp.csr_array(np.ones((3, 7)))], "^part 1 .* has 7 sparse features and part 0 .* dense"),
        (
            lambda: iter([np.ones((3, 7)), np.ones((3, 6))]),
            "^chunk 1 of iterable of chunks has 6 dense features; 7 dense ones are needed",
        ),
    ],
)
def test_chunks_of_different_widths(X, message):
    with pytest.raises(InvalidInputError, match=message):
        StreamKMeans(2).fit(X)


@pytest.mark.parametrize(
    ("method", "kind"), [*(("predict", kind) for kind in HOLDERS), ("transform", "array"), ("score", "Zarr")]
)
def test_another_number_of_features(folder, kind, method):
    fitted = StreamKMeans(2).fit(dense_matrix(N_ROWS))
    held = HOLDERS[kind][0](dense_matrix(N_ROWS, 9) + np.float32(1))
    with pytest.raises(InvalidInputError if kind not in ("array", "CSR") else ValueError, match=r"9 features.*7"):
        getattr(fitted, method)(held)


def test_text_narrower_than_the_model_has_zeros_there(folder):
    X = dense_matrix(N_ROWS)
    fitted = StreamKMeans(2, random_state=0).fit(X)
    Path("x.svm").write_text("1 1:3\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted.predict("x.svm") == fitted.predict([[3, 0, 0, 0, 0, 0, 0]])
