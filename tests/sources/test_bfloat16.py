"""bfloat16 in arrays, tensors and .npy files, which have values of two bytes without a type."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources import open_source
from streamkm.sources.stored import as_decoded
from tests.cli.test_cli import run
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import dense_matrix


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


def test_zarr_arrays_of_a_type_that_zarr_does_not_know_are_refused(tmp_path):
    zarr.create_array(str(tmp_path / "x.zarr"), data=np.zeros((8, 7), np.uint16), chunks=(8, 7))
    metadata = json.loads((tmp_path / "x.zarr/zarr.json").read_text())
    metadata["data_type"] = "bfloat16"
    (tmp_path / "x.zarr/zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(SourceError, match=r"x\.zarr is no Zarr store that can be read.*bfloat16"):
        open_source(tmp_path / "x.zarr")


def test_the_command_line_reads_them(tmp_path):
    np.save(tmp_path / "x.npy", words())
    assert "|V2, read as float32, dense" in run("inspect", tmp_path / "x.npy")
