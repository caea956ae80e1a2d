"""bfloat16 in arrays, tensors and files that have no type for it."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources import open_source
from streamkm.sources.dense import as_float32
from tests.cli.test_cli import run
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import dense_matrix


def words() -> np.ndarray:
    """16-bit words of whole numbers up to 99, which bfloat16 holds."""
    return (dense_matrix().view(np.uint32) >> 16).astype(np.uint16)


def store(kind, folder):
    """The words in a file; what `open_source` takes to read them."""
    if kind in ("npy", "npy V2", "memory map V2"):
        np.save(folder / "x.npy", words() if kind == "npy" else words().view("V2"))
        return np.load(folder / "x.npy", mmap_mode="r") if kind == "memory map V2" else folder / "x.npy"
    if kind == "hdf5":
        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset("X", data=words(), chunks=(8, 7), compression="gzip")
        return folder / "x.h5"
    if kind in ("zarr", "Zarr array"):
        array = zarr.create_array(str(folder / "x.zarr"), data=words(), chunks=(8, 7))
        return folder / "x.zarr" if kind == "zarr" else array
    lists = pa.FixedSizeListArray.from_arrays(pa.array(words().ravel()), 7)
    pq.write_table(pa.table({"embedding": lists}), folder / "x.parquet", row_group_size=20)
    return folder / "x.parquet"


class TestWords(SourceContract):
    @pytest.fixture(params=["npy", "npy V2", "memory map V2", "hdf5", "zarr", "Zarr array", "parquet", "array"])
    def opened(self, request, tmp_path):
        X = words() if request.param == "array" else store(request.param, tmp_path)
        return Opened(open_source(X, dtype="bfloat16"), dense_matrix())


def test_every_word_is_the_upper_half_of_a_float():
    every = np.arange(1 << 16, dtype=np.uint16)
    values = as_float32(every)
    np.testing.assert_array_equal(values.view(np.uint32), every.astype(np.uint32) << 16)
    assert as_float32(np.array([0x3F80, 0xC000, 0x7F80], np.uint16)).tolist() == [1.0, -2.0, np.inf]


class JaxArray:
    """What an array of JAX offers: its type by name, and an array of NumPy's of two bytes without a type."""

    dtype = "bfloat16"

    def __init__(self, words):
        self._words, self.shape = words, words.shape

    def __array__(self, dtype=None, copy=None):
        return self._words.view("V2")


def test_arrays_of_jax_are_no_tensors_of_pytorch():
    (rows,) = open_source(JaxArray(words())).stream(1 << 20)
    np.testing.assert_array_equal(rows.X, as_float32(words()))


def test_words_without_a_type_are_refused_unless_it_is_said(tmp_path):
    path = store("npy V2", tmp_path)
    with pytest.raises(InvalidInputError, match=r'two bytes without a type \(\|V2\), as NumPy .* dtype="bfloat16"'):
        open_source(path)
    with pytest.raises(InvalidInputError, match=r'without a type .*pass dtype="bfloat16"'):
        open_source(words().view("V2"))


@pytest.mark.parametrize(
    ("save", "dtype", "error", "message"),
    [
        ("f4", "bfloat16", InvalidInputError, r"holds float32, not bfloat16 \(V2 or uint16\); leave dtype='bfloat16'"),
        ("f4", "float64", InvalidParameterError, "dtype='float64' does not apply to .*x.npy, .* is 'bfloat16'"),
        ("V4", "bfloat16", InvalidInputError, r"holds \|V4, not bfloat16"),
    ],
)
def test_other_types_are_refused(tmp_path, save, dtype, error, message):
    np.save(tmp_path / "x.npy", dense_matrix().view(save))
    with pytest.raises(error, match=message):
        open_source(tmp_path / "x.npy", dtype=dtype)


def test_files_of_other_types_and_sparse_rows_are_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = dense_matrix()
    with pytest.raises(InvalidInputError, match=r"x\.h5:/X holds dense rows of float32; dtype='bfloat16' is for dense"):
        open_source(tmp_path / "x.h5", dtype="bfloat16")
    with pytest.raises(InvalidParameterError, match="dtype= does not apply to HDF5"):
        open_source(tmp_path / "x.h5", dtype="float32")


def test_zarr_arrays_of_a_type_that_zarr_does_not_know_are_refused(tmp_path):
    zarr.create_array(str(tmp_path / "x.zarr"), data=words(), chunks=(8, 7))
    metadata = json.loads((tmp_path / "x.zarr/zarr.json").read_text())
    metadata["data_type"] = "bfloat16"
    (tmp_path / "x.zarr/zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(SourceError, match=r"x\.zarr is no Zarr store that can be read.*bfloat16"):
        open_source(tmp_path / "x.zarr")


def test_the_command_line_reads_them(tmp_path):
    path = store("npy V2", tmp_path)
    said = run("inspect", path, "--set", "data.dtype=bfloat16")
    assert "float32, dense" in said
    assert "16-bit words, read as bfloat16" in said
