"""Names of genes: of AnnData files, groups and objects, of 10x Genomics, and where they show."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given
from hypothesis import strategies as st

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources import open_source
from streamkm.sources.binary.column_names import unique_names
from tests.sources.matrices import sparse_matrix, write_csr

anndata = pytest.importorskip("anndata", reason="writes and opens the files")

N_GENES = 31
NAMES = tuple(f"GENE{number}" for number in range(N_GENES))
SYMBOLS = ("CD3", "CD3", *(f"symbol {number}" for number in range(2, N_GENES)))
UNIQUE_SYMBOLS = ("CD3", "CD3-1", *SYMBOLS[2:])


def cells(**changed):
    var = pd.DataFrame({"symbol": SYMBOLS, "kind": pd.Categorical(SYMBOLS), "length": range(N_GENES)}, index=NAMES)
    X = sp.csr_matrix(sparse_matrix())
    return anndata.AnnData(X, var=var, layers={"counts": X.copy()}, obsm={"pca": X[:, :3].toarray()}, **changed)


@pytest.fixture(scope="module", params=["HDF5", "Zarr 2", "Zarr 3"])
def path(request, tmp_path_factory):
    """A file with names, symbols and kinds of genes, a layer, and an array that has none of the genes."""
    folder = tmp_path_factory.mktemp("genes")
    if request.param == "HDF5":
        cells().write_h5ad(folder / "x.h5ad")
        return str(folder / "x.h5ad")
    with warnings.catch_warnings(), anndata.settings.override(zarr_write_format=int(request.param[-1])):
        warnings.simplefilter("ignore", UserWarning)  # that format 2 is no longer the default
        cells().write_zarr(folder / "x.zarr")
    return str(folder / "x.zarr")


def test_the_index_of_var_names_the_columns(path):
    for inner in ("", ":/X", ":/layers/counts"):
        assert open_source(path + inner).feature_names == NAMES
    assert open_source(f"{path}:/obsm/pca").feature_names is None


@pytest.mark.parametrize("column", ["symbol", "kind"])
def test_a_column_of_var_may_name_them_instead(path, column):
    assert open_source(path, var_column=column, dataset="X").feature_names == UNIQUE_SYMBOLS


def test_an_object_has_the_names_of_its_file(path):
    read = anndata.read_h5ad if path.endswith("h5ad") else anndata.read_zarr
    assert open_source(read(path)).feature_names == NAMES
    assert open_source(read(path), var_column="kind").feature_names == UNIQUE_SYMBOLS
    assert open_source(read(path)[:, ::2]).feature_names == NAMES[::2]


def test_raw_values_have_genes_of_their_own(tmp_path):
    adata = cells()
    adata.raw = adata.copy()
    adata = adata[:, :5].copy()
    adata.write_h5ad(tmp_path / "x.h5ad")
    assert open_source(tmp_path / "x.h5ad").feature_names == NAMES[:5]
    assert open_source(f"{tmp_path}/x.h5ad:/raw/X").feature_names == NAMES


def test_backed_objects_and_open_groups(path):
    if path.endswith("h5ad"):
        adata = anndata.read_h5ad(path, backed="r")
        assert open_source(adata).feature_names == NAMES
        adata.file.close()
        with h5py.File(path) as file:
            assert open_source(file["X"]).feature_names == NAMES
            assert open_source(file, var_column="symbol").feature_names == UNIQUE_SYMBOLS
    else:
        group = zarr.open_group(path, mode="r")
        assert open_source(group).feature_names == NAMES
        assert open_source(group, var_column="symbol").feature_names == UNIQUE_SYMBOLS


def test_an_index_of_strings_that_may_be_missing_and_of_categories(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        write_csr(file.create_group("X"), sparse_matrix())
        var = file.create_group("var")
        var.attrs.update({"encoding-type": "dataframe", "_index": "gene"})
        var.create_group("gene")
        var["gene/values"] = list(NAMES)
        var["gene/mask"] = np.zeros(N_GENES, bool)
    assert open_source(tmp_path / "x.h5ad").feature_names == NAMES
    with h5py.File(tmp_path / "x.h5ad", "r+") as file:
        file["var/gene/mask"][7] = True
    with pytest.raises(InvalidInputError, match=r"x\.h5ad:/var/gene has no name for column 7; .*var_column="):
        open_source(tmp_path / "x.h5ad")


def test_features_of_10x(tmp_path):
    X = sparse_matrix()
    with h5py.File(tmp_path / "v3.h5", "w") as file:
        write_csr(file.create_group("matrix"), X)
        file["matrix"].attrs["shape"] = X.shape[::-1]
        file["matrix/barcodes"] = np.zeros(53, "S9")
        file["matrix/features/id"], file["matrix/features/name"] = np.array(NAMES, "S9"), np.array(SYMBOLS, "S20")
    assert open_source(tmp_path / "v3.h5").feature_names == UNIQUE_SYMBOLS
    assert open_source(tmp_path / "v3.h5", var_column="id").feature_names == NAMES
    with h5py.File(tmp_path / "v2.h5", "w") as file:
        write_csr(file.create_group("GRCh38"), X)
        file["GRCh38"].attrs["shape"] = X.shape[::-1]
        file["GRCh38/barcodes"] = np.zeros(53, "S9")
        file["GRCh38/genes"], file["GRCh38/gene_names"] = np.array(NAMES, "S9"), np.array(SYMBOLS, "S20")
    assert open_source(tmp_path / "v2.h5").feature_names == UNIQUE_SYMBOLS
    (rows,) = open_source(tmp_path / "v2.h5").stream(1 << 20)
    np.testing.assert_array_equal(rows.X.toarray(), X.toarray())
    assert open_source(tmp_path / "v2.h5", var_column="genes").feature_names == NAMES


@given(st.lists(st.sampled_from(["a", "b", "a-1", "a-2", "a-1-1"]), max_size=12))
def test_unique_names_are_those_of_anndata(names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that such names are hard to read
        wanted = anndata.utils.make_index_unique(pd.Index(names, dtype=object))
    assert unique_names(names) == tuple(wanted)


def test_refusals(path, tmp_path):
    with pytest.raises(InvalidParameterError, match=r":/var has no column 'nmae', which var_column= names"):
        open_source(path, dataset="X", var_column="nmae")
    with pytest.raises(InvalidParameterError, match=r"has no column 'nmae'.*symbol, kind, length"):
        open_source(cells(), var_column="nmae")
    with pytest.raises(InvalidParameterError, match=r"does not apply to .*:/obsm/pca, which has no table"):
        open_source(path, dataset="obsm/pca", var_column="symbol")
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        write_csr(file.create_group("X"), sparse_matrix())
        file.create_group("var").attrs["_index"] = "_index"
        file["var/_index"] = list(NAMES[1:])
    with pytest.raises(SourceError, match=r"/var/_index has 30 names for the 31 columns of /X"):
        open_source(tmp_path / "x.h5ad")


def test_values_in_other_files_are_not_followed(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["names"] = list(NAMES)
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        write_csr(file.create_group("X"), sparse_matrix())
        file.create_group("var").attrs["_index"] = "_index"
        file["var/_index"] = h5py.ExternalLink("other.h5", "names")
    with pytest.raises(SourceError, match="follow_external=True"):
        open_source(tmp_path / "x.h5ad")
    assert open_source(tmp_path / "x.h5ad", follow_external=True).feature_names == NAMES


class TestFits:
    def test_names_reach_summary_and_model(self, path, tmp_path):
        kmeans = StreamKMeans(3, random_state=0, progress=False).fit(f"{path}:/X")
        assert tuple(kmeans.feature_names_in_) == NAMES
        traits = [trait.feature for row in kmeans.summary().rows for trait in row.traits]
        assert traits
        assert set(traits) <= set(NAMES)
        kmeans.save(tmp_path / "model.npz")
        assert tuple(StreamKMeans.load(tmp_path / "model.npz").feature_names_in_) == NAMES
        kmeans.report(tmp_path / "report.html")
        assert traits[0] in (tmp_path / "report.html").read_text("utf-8")

    def test_genes_in_another_order_are_refused(self):
        adata = cells()
        kmeans = StreamKMeans(3, random_state=0, progress=False).fit(adata)
        with pytest.raises(InvalidInputError, match="in another order"):
            kmeans.predict(adata[:, ::-1])
        with pytest.raises(InvalidInputError, match="without 'GENE30'"):
            kmeans.predict(anndata.AnnData(adata.X, var=pd.DataFrame(index=[*NAMES[:30], "other"])))
