"""A format of somebody else's: one module, one line in the table of formats, one subclass of the contract."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidParameterError, SourceError
from streamkm.sources.chunks import Chunk, Origin
from streamkm.sources.dense import cut_rows
from streamkm.sources.formats import FORMATS, Reader, file_format
from streamkm.sources.local import unchanged
from streamkm.sources.row_source import Rows, RowSource, row_ids_between
from streamkm.sources.stored import opened_path
from tests.contracts import Opened, SourceContract

HEADER = struct.Struct("<4sII")
X = np.random.default_rng(0).normal(size=(61, 5)) + 9 * np.arange(61)[:, None] // 20


def write(path: Path, X: np.ndarray) -> Path:
    """A header of mark, rows and features, then the rows as float64."""
    path.write_bytes(HEADER.pack(b"FWB1", *X.shape) + X.astype("<f8").tobytes())
    return path


class FixedWidth(RowSource):
    """Rows of records of one width, each of float64 values."""

    is_sparse = False
    dtype = np.dtype(np.float64)

    def __init__(self, path: str) -> None:
        self.name, self.path = str(path), opened_path(path)
        with open(self.path, "rb") as file:
            _, self.n_rows, self.n_features = HEADER.unpack(file.read(HEADER.size))
        self.n_bytes, self.origin = self.n_rows * self.n_features * 8, Origin((self.path,), self.dtype)
        if os.path.getsize(self.path) != HEADER.size + self.n_bytes:
            raise SourceError(f"{path} is truncated; write the file again")

    def details(self) -> dict[str, str]:
        return {"format": "fixed-width binary"}

    def chunks(self, target_bytes: int) -> tuple[Chunk, ...]:
        return cut_rows(self.n_rows, self.n_features * 8, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        shape, row_bytes = (chunk.stop - chunk.start, self.n_features), self.n_features * 8
        with unchanged(self.path):
            X = np.fromfile(self.path, "<f8", shape[0] * shape[1], offset=HEADER.size + chunk.start * row_bytes)
        return Rows(X.reshape(shape), row_ids_between(chunk.start, chunk.stop))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    line = Reader("fixed-width binary", f"{__name__}:FixedWidth", suffixes=(".fwb",), signature=b"FWB1")
    monkeypatch.setitem(FORMATS, "fwb", line)


class TestFixedWidth(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        return Opened(open_source(write(tmp_path / "x.fwb", X)), X)


@pytest.mark.parametrize("name", ["x.fwb", "x.bin"])
def test_it_is_told_by_its_first_bytes_or_its_suffix(tmp_path, name):
    assert file_format(str(write(tmp_path / name, X))) == "fwb"
    (tmp_path / "y.fwb").write_bytes(b"\0\1\2\3")
    assert file_format(str(tmp_path / "y.fwb")) == "fwb"


def test_its_files_are_fitted_as_arrays_are(tmp_path):
    write(tmp_path / "a.fwb", X[:30])
    write(tmp_path / "b.fwb", X[30:])
    fitted, wanted = (
        StreamKMeans(4, random_state=0, progress=False).fit(data)
        for data in (str(tmp_path / "*.fwb"), [X[:30], X[30:]])
    )
    np.testing.assert_array_equal(fitted.labels_, wanted.labels_)
    assert fitted.inertia_ == wanted.inertia_
    np.testing.assert_array_equal(fitted.predict({"path": tmp_path / "b.fwb", "format": "fwb"}), wanted.labels_[30:])


def test_options_that_it_does_not_have_are_refused(tmp_path):
    with pytest.raises(InvalidParameterError, match=r"key= does not apply to fixed-width binary"):
        open_source(write(tmp_path / "x.fwb", X), key="a")
