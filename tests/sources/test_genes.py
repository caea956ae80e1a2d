"""Genes of AnnData and 10x Genomics: their names, wherever they show; genes chosen by a mark or by name."""

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

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources.binary.column_names import unique_names
from streamkm.sources.chosen_columns import columns_of
from tests.cli.test_cli import run
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import sparse_matrices, write_csr

anndata = pytest.importorskip("anndata", reason="writes and opens the files")

N_CELLS, N_GENES = 240, 60
NAMES = tuple(f"GENE{number}" for number in range(N_GENES))
SYMBOLS = ("CD3", "CD3", *(f"symbol {number}" for number in range(2, N_GENES)))
UNIQUE_SYMBOLS = ("CD3", "CD3-1", *SYMBOLS[2:])
MARKED = list(range(3, N_GENES, 4))
MARKED_NAMES = tuple(NAMES[number] for number in MARKED)


def counts() -> sp.csr_array:
    """Cells of three types, which some genes tell apart; two genes have no counts, and one cell has none."""
    rng = np.random.default_rng(0)
    rates = np.tile(np.random.default_rng(1).gamma(1.0, 2.0, N_GENES), (3, 1))
    rates[:, 10:22] *= np.random.default_rng(2).choice([0.1, 1, 6], (3, 12))
    rates[:, [5, 41]] = 0
    X = rng.poisson(rates[np.arange(N_CELLS) % 3]).astype(np.float32)
    X[7] = 0
    return sp.csr_array(X)


def cells(X=None, names=NAMES):
    """Cells with names, symbols and marks of genes, a layer, and an array that has none of the genes."""
    marks = np.isin(np.arange(N_GENES), MARKED)
    var = pd.DataFrame({"highly_variable": marks, "symbol": SYMBOLS, "kind": pd.Categorical(SYMBOLS)}, list(names))
    X = sp.csr_matrix(counts() if X is None else X)
    return anndata.AnnData(X, var=var, layers={"counts": X.copy()}, obsm={"pca": X[:, :3].toarray()})


@pytest.fixture(scope="module", params=["HDF5", pytest.param("Zarr 2", marks=pytest.mark.slow), "Zarr 3"])
def path(request, tmp_path_factory):
    place = str(tmp_path_factory.mktemp("genes") / ("x.h5ad" if request.param == "HDF5" else "x.zarr"))
    if request.param == "HDF5":
        cells().write_h5ad(place)
        return place
    with warnings.catch_warnings(), anndata.settings.override(zarr_write_format=int(request.param[-1])):
        warnings.simplefilter("ignore", UserWarning)  # that format 2 is no longer the default
        cells().write_zarr(place)
    return place


def test_the_index_or_a_column_of_var_names_the_columns(path):
    for inner in ("", ":/X", ":/layers/counts"):
        assert open_source(path + inner).feature_names == NAMES
    assert open_source(f"{path}:/obsm/pca").feature_names is None
    for column in ("symbol", "kind"):
        assert open_source(path, var_column=column, dataset="X").feature_names == UNIQUE_SYMBOLS
    read = anndata.read_h5ad if path.endswith("h5ad") else anndata.read_zarr
    assert open_source(read(path)).feature_names == NAMES
    assert open_source(read(path), var_column="kind").feature_names == UNIQUE_SYMBOLS
    assert open_source(read(path)[:, ::2]).feature_names == NAMES[::2]


def test_raw_values_have_genes_of_their_own(tmp_path):
    adata = cells()
    adata.raw = adata.copy()
    adata[:, :5].copy().write_h5ad(tmp_path / "x.h5ad")
    assert open_source(tmp_path / "x.h5ad").feature_names == NAMES[:5]
    assert open_source(f"{tmp_path}/x.h5ad:/raw/X").feature_names == NAMES


def test_backed_objects_and_open_groups(path):
    if path.endswith("h5ad"):
        adata = anndata.read_h5ad(path, backed="r")
        assert open_source(adata).feature_names == NAMES
        assert open_source(adata, genes="highly_variable").feature_names == MARKED_NAMES
        adata.file.close()
        with h5py.File(path) as file:
            assert open_source(file["X"]).feature_names == NAMES
            assert open_source(file, var_column="symbol").feature_names == UNIQUE_SYMBOLS
            assert open_source(file, genes="highly_variable").feature_names == MARKED_NAMES
    else:
        assert open_source(zarr.open_group(path, mode="r"), var_column="symbol").feature_names == UNIQUE_SYMBOLS


def test_an_index_of_strings_that_may_be_missing(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        write_csr(file.create_group("X"), counts())
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
    X, ids, symbols = counts(), np.array(NAMES, "S9"), np.array(SYMBOLS, "S20")
    for version, name in (("v3", "matrix"), ("v2", "GRCh38")):
        with h5py.File(tmp_path / f"{version}.h5", "w") as file:
            group = file.create_group(name)
            write_csr(group, X)
            group.attrs["shape"] = X.shape[::-1]
            group["barcodes"] = np.zeros(N_CELLS, "S9")
            if version == "v3":
                group["features/id"], group["features/name"] = ids, symbols
                group["features/keep"] = np.isin(np.arange(N_GENES), MARKED)
            else:
                group["genes"], group["gene_names"] = ids, symbols
        assert open_source(tmp_path / f"{version}.h5").feature_names == UNIQUE_SYMBOLS
        (rows,) = open_source(tmp_path / f"{version}.h5").stream(1 << 30)
        np.testing.assert_array_equal(rows.X.toarray(), X.toarray())
    assert open_source(tmp_path / "v3.h5", var_column="id", genes="keep").feature_names == MARKED_NAMES
    assert open_source(tmp_path / "v2.h5", var_column="genes").feature_names == NAMES


@given(st.lists(st.sampled_from(["a", "b", "a-1", "a-2", "a-1-1"]), max_size=12))
def test_unique_names_are_those_of_anndata(names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that such names are hard to read
        wanted = anndata.utils.make_index_unique(pd.Index(names, dtype=object))
    assert unique_names(names) == tuple(wanted)


class TestBacked(SourceContract):
    @pytest.fixture(params=["object", "dataset"])
    def opened(self, request, path):
        if path.endswith(".zarr"):
            yield Opened(
                open_source(anndata.io.sparse_dataset(zarr.open_group(path, mode="r")["X"])), counts().toarray()
            )
            return
        adata = anndata.read_h5ad(path, backed="r")
        yield Opened(open_source(adata if request.param == "object" else adata.X), counts().toarray())
        adata.file.close()


def test_a_matrix_by_columns_is_refused_with_the_remedy(tmp_path):
    anndata.AnnData(counts().tocsc()).write_h5ad(tmp_path / "x.h5ad")
    with h5py.File(tmp_path / "x.h5ad") as file, pytest.raises(InvalidInputError, match=r"CSC matrix .* X.tocsr\(\)"):
        open_source(anndata.io.sparse_dataset(file["X"]))


class TestChosen(SourceContract):
    @pytest.fixture(params=["marked", "by name in another order", "dense rows in memory"])
    def opened(self, request, path):
        X = counts().toarray()
        if request.param == "marked":
            return Opened(open_source(path, dataset="X", genes="highly_variable"), X[:, MARKED])
        if request.param.startswith("by name"):
            return Opened(open_source(path, dataset="X", genes=["GENE40", "GENE2", "GENE10"]), X[:, [40, 2, 10]])
        return Opened(open_source(anndata.AnnData(X, var=cells().var), genes="highly_variable"), X[:, MARKED])


@given(sparse_matrices(), st.randoms(use_true_random=False))
def test_columns_of_sparse_and_dense_rows_are_the_same(X, random):
    numbers = np.array(random.sample(range(X.shape[1]), random.randint(1, X.shape[1])))
    found = columns_of(X, numbers)
    assert found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), X.toarray()[:, numbers])
    np.testing.assert_array_equal(columns_of(X.toarray(), numbers), X.toarray()[:, numbers])


def test_refusals(path, tmp_path):
    def refused(error, match, X=path, **options):
        with pytest.raises(error, match=match):
            open_source(X, **options)

    refused(
        InvalidParameterError, r":/var has no column 'nmae', which var_column= names", dataset="X", var_column="nmae"
    )
    refused(InvalidParameterError, r"has no column 'nmae'.*symbol, kind", cells(), var_column="nmae")
    refused(InvalidParameterError, r"not apply to .*:/obsm/pca, which has no", dataset="obsm/pca", var_column="symbol")
    refused(InvalidParameterError, r"has no column 'nmae', which genes= names", dataset="X", genes="nmae")
    refused(InvalidParameterError, r"has no column 'nmae', which genes= names", cells(), genes="nmae")
    refused(InvalidInputError, r"symbol has 'CD3' in row 0; genes= names a column of true", dataset="X", genes="symbol")
    refused(InvalidParameterError, r"genes=61; needed: a column of var, or a list of names", dataset="X", genes=61)
    misspelt = ["GENE1", "GENE99"]
    refused(InvalidInputError, r"has no gene 'GENE99' \(did you mean 'GENE9'\?\)", dataset="X", genes=misspelt)
    refused(InvalidParameterError, r"genes= has 'GENE1' 2 times", dataset="X", genes=["GENE1", "GENE1"])
    refused(InvalidParameterError, r"needed: cells whose genes have names", np.eye(3), genes=["a"])
    refused(InvalidParameterError, r"genes= does not apply to an array", np.eye(3), genes="highly_variable")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    refused(InvalidParameterError, r"Columns of tables are chosen by columns=", tmp_path / "x.csv", genes=["a"])
    none = cells()
    none.var["highly_variable"] = False
    refused(InvalidInputError, r"is true for none of 60 genes", none, genes="highly_variable")


def test_names_and_masks_of_the_wrong_length_and_in_other_files(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["names"] = list(NAMES)
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        write_csr(file.create_group("X"), counts())
        file.create_group("var").attrs["_index"] = "_index"
        file["var/_index"] = h5py.ExternalLink("other.h5", "names")
        file["var/keep"] = np.ones(59, bool)
    with pytest.raises(SourceError, match="follow_external=True"):
        open_source(tmp_path / "x.h5ad")
    assert open_source(tmp_path / "x.h5ad", follow_external=True).feature_names == NAMES
    with h5py.File(tmp_path / "x.h5ad", "r+") as file:
        del file["var/_index"]
        file["var/_index"] = list(NAMES)
    with pytest.raises(SourceError, match=r"/var/keep has 59 values for the 60 columns of /X"):
        open_source(tmp_path / "x.h5ad", genes="keep")
    with h5py.File(tmp_path / "x.h5ad", "r+") as file:
        del file["var/_index"]
        file["var/_index"] = list(NAMES[1:])
    with pytest.raises(SourceError, match=r"/var/_index has 59 names for the 60 columns of /X"):
        open_source(tmp_path / "x.h5ad")


class TestFits:
    def test_later_files_are_taken_by_name(self, path, tmp_path):
        source = open_source(path, dataset="X", genes=list(NAMES[10:22]))
        model = StreamKMeans(3, preprocess=["total", "log1p"], random_state=0, progress=False).fit(source)
        np.testing.assert_array_equal(model.predict(f"{path}:/X"), model.labels_)
        order = np.random.default_rng(0).permutation(N_GENES)
        other = cells(counts()[:, order], [NAMES[number] for number in order])
        model.save(tmp_path / "model.npz")
        for each in (model, StreamKMeans.load(tmp_path / "model.npz")):
            assert tuple(each.feature_names_in_) == NAMES[10:22]
            np.testing.assert_array_equal(each.predict(other), model.labels_)
        with pytest.raises(InvalidInputError, match="has no gene 'GENE10'"):
            model.predict(cells()[:, [each for each in NAMES if each != "GENE10"]])

    def test_genes_in_another_order_are_refused(self):
        adata = cells()
        kmeans = StreamKMeans(3, random_state=0, progress=False).fit(adata)
        with pytest.raises(InvalidInputError, match="in another order"):
            kmeans.predict(adata[:, ::-1])
        with pytest.raises(InvalidInputError, match="without 'GENE59'"):
            kmeans.predict(anndata.AnnData(adata.X, var=pd.DataFrame(index=[*NAMES[:59], "other"])))

    def test_on_the_command_line(self, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        options = ["--genes", "highly_variable", "--set", "data.var_column=symbol", "--seed", "0"]
        run("fit", f"{path}:/X", "-k", "3", *options, "-o", "out", "-q")
        cells().write_h5ad("other.h5ad")
        run("assign", "out/model.npz", "other.h5ad", "-o", "labels.npy", "-q")
        np.testing.assert_array_equal(np.load("labels.npy"), np.load("out/labels.npy"))
        report = (tmp_path / "out" / "report.html").read_text("utf-8")
        assert any(f"symbol {number}" in report for number in MARKED)
