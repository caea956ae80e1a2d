"""open_source: what is what, by type, by the first bytes, by name; options of no use are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.sources import open_source
from streamkm.sources.concat import PartsSource
from tests.sources.matrices import dense_matrix
from tests.tables import cases

X = dense_matrix()


def all_rows(source):
    blocks = [rows.X.toarray() if sp.issparse(rows.X) else rows.X for rows in source.stream(1 << 20)]
    return np.concatenate(blocks)


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", X=X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    zarr.create_array(tmp_path / "x.zarr", data=X)
    text = "".join(f"{i} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) + "\n" for i, row in enumerate(X))
    (tmp_path / "x.svm").write_text(text)
    (tmp_path / "x.svm.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


FILES = ("x.npy", "x.npz", "x.h5", "x.zarr", "x.svm", "x.svm.gz")


@cases("name", FILES)
@cases("kind", [str, Path, "renamed", "mapping", "list", "glob"])
def test_files(folder, name, kind):
    path = folder / name
    if kind == "renamed":
        # the first bytes tell, not the name
        path = path.rename(folder / "data")
    given = {
        "mapping": {"path": str(path), "format": "auto", "dataset": None, "zero_based": None, "key": None},
        "list": [path],
        "glob": str(path)[:-1] + "[" + str(path)[-1] + "]",
    }.get(kind, path if kind in (Path, "renamed") else str(path))
    np.testing.assert_array_equal(all_rows(open_source(given)), X)
    path.rename(folder / name)


def test_the_format_can_be_named(folder):
    for name in FILES:
        form = {"gz": "svmlight", "svm": "svmlight", "h5": "hdf5"}.get(name.split(".")[-1], name.split(".")[-1])
        np.testing.assert_array_equal(all_rows(open_source(folder / name, format=form)), X)
    with pytest.raises(SourceError, match=r"x\.npy cannot be opened as HDF5"):
        open_source(folder / "x.npy", format="hdf5")
    with pytest.raises(InvalidParameterError, match=r"format='hdf' is unknown \(did you mean 'hdf5'\?\)"):
        open_source(folder / "x.npy", format="hdf")


def test_a_path_inside_of_a_file(folder, tmp_path):
    assert open_source(f"{folder}/x.h5:/X").name == f"{folder}/x.h5:/X"
    assert open_source(f"{folder}/x.h*:/X").n_rows == 53
    with pytest.raises(InvalidParameterError, match="names a dataset already"):
        open_source(f"{folder}/x.h5:/X", dataset="X")
    with pytest.raises(InvalidParameterError, match="nothing inside; leave :/X out"):
        open_source(f"{folder}/x.svm:/X")
    with pytest.raises(SourceNotFoundError, match=r"x\.h does not exist \(did you mean 'x\.h5'\?\)"):
        open_source(f"{folder}/x.h:/X")
    (tmp_path / "link.npy").symlink_to("nowhere.npy")
    with pytest.raises(SourceNotFoundError, match=r"link\.npy is a link to nowhere\.npy, which does not exist"):
        open_source(tmp_path / "link.npy")


def test_several_files(folder):
    source = open_source([folder / "x.npy", folder / "x.h5", folder / "x.zarr"])
    np.testing.assert_array_equal(all_rows(source), np.vstack([X, X, X]))
    assert source.describe(54) == f"row 1 of {folder}/x.h5:/X"
    assert len(all_rows(open_source([folder / "x.svm", folder / "x.svm.gz"]))) == 106
    with pytest.raises(InvalidInputError, match=r"is svmlight text and .* is npy"):
        open_source([folder / "x.svm", folder / "x.npy"])
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        open_source(folder / "y*.h5")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("x.h5", {"datset": "X"}, r"datset= does not apply to HDF5 \(did you mean 'dataset'\?\)"),
        ("x.npy", {"dataset": "X"}, r"dataset= does not apply to \.npy; its options are none"),
        ("x.svm", {"key": "X"}, "key= does not apply to svmlight text"),
        ("x.h5", {"zero_based": True}, "zero_based= does not apply to HDF5; its options are dataset, follow_external"),
        (X, {"dataset": "X"}, "does not apply to an array"),
        (X, {"format": "npy"}, "format= does not apply to an array"),
        ({"dataset": "X"}, {}, "a mapping needs the key path; it has dataset"),
    ],
)
def test_options_that_are_unknown_or_of_no_use(folder, given, options, message):
    with pytest.raises(InvalidParameterError, match=message):
        open_source(folder / given if isinstance(given, str) else given, **options)


def test_binary_data_of_no_known_format(tmp_path):
    (tmp_path / "x.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b"\0" * 100)
    with pytest.raises(SourceError, match=r"x\.mat is binary and of no format"):
        open_source(tmp_path / "x.mat")
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(SourceError, match=r"x\.zip is a \.zip file with neither"):
        open_source(tmp_path / "x.zip")


class TestObjects:
    def test_a_source_is_returned_as_it_is(self):
        source = open_source(X)
        assert open_source(source) is source

    @cases("values", [X.tolist(), list(X), tuple(map(tuple, X.tolist()))])
    def test_a_list_of_rows_is_one_array(self, values):
        assert not isinstance(open_source(values), PartsSource)
        np.testing.assert_array_equal(all_rows(open_source(values)), X)

    @cases("values", [[X, X], (X.tolist(), X.tolist()), [X, open_source(X)]])
    def test_a_list_of_matrices_is_one_after_the_other(self, values):
        source = open_source(values)
        assert isinstance(source, PartsSource)
        np.testing.assert_array_equal(all_rows(source), np.vstack([X, X]))
