"""AnnData objects whose matrix stays in its file: the object, its sparse datasets, and those that anndata opens."""

from __future__ import annotations

import h5py
import pytest
import scipy.sparse as sp
import zarr

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import sparse_matrix, write_csr

anndata = pytest.importorskip("anndata", reason="writes and opens the files")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file whose X is sparse, with a dense layer and one by columns."""
    made, X = tmp_path_factory.mktemp("anndata") / "x.h5ad", sp.csr_matrix(sparse_matrix())
    layers = {"dense": X.toarray(), "columns": X.tocsc()}
    anndata.AnnData(X, layers=layers).write_h5ad(made)
    return made


@pytest.fixture
def backed(path):
    adata = anndata.read_h5ad(path, backed="r")
    yield adata
    adata.file.close()


class TestBacked(SourceContract):
    @pytest.fixture(params=["object", "X", "dataset of HDF5", "dataset of Zarr"])
    def opened(self, request, backed, path, tmp_path):
        X = sparse_matrix()
        if request.param == "object":
            yield Opened(open_source(backed), X.toarray())
        elif request.param == "X":
            yield Opened(open_source(backed.X), X.toarray())
        elif request.param == "dataset of HDF5":
            with h5py.File(path) as file:
                yield Opened(open_source(anndata.io.sparse_dataset(file["X"])), X.toarray())
        else:
            group = zarr.open_group(tmp_path / "x.zarr", mode="w")
            write_csr(group.create_group("X"), X)
            group["X"].attrs["encoding-version"] = "0.1.0"
            yield Opened(open_source(anndata.io.sparse_dataset(group["X"])), X.toarray())


def test_a_matrix_by_columns_is_refused_with_the_remedy(path):
    with h5py.File(path) as file, pytest.raises(InvalidInputError, match=r"CSC matrix .* X.tocsr\(\)"):
        open_source(anndata.io.sparse_dataset(file["layers/columns"]))
