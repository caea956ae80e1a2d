"""Genes that are chosen: by a mark in the file, or by name."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources.chosen_columns import columns_of
from tests.cli.test_cli import run
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import sparse_matrices, write_csr

anndata = pytest.importorskip("anndata", reason="writes and opens the files")

N_GENES = 60
NAMES = tuple(f"GENE{number}" for number in range(N_GENES))
MARKED = tuple(range(3, N_GENES, 4))
CHOSEN = NAMES[10:22]


def counts(n_cells: int = 240, seed: int = 0) -> sp.csr_array:
    """Cells of three types, which some genes tell apart; two genes have no counts, and one cell has none."""
    rng = np.random.default_rng(seed)
    rates = np.tile(np.random.default_rng(1).gamma(1.0, 2.0, N_GENES), (3, 1))
    rates[:, 10:22] *= np.random.default_rng(2).choice([0.1, 1, 6], (3, 12))
    rates[:, [5, 41]] = 0
    X = rng.poisson(rates[np.arange(n_cells) % 3]).astype(np.float32)
    X[7] = 0
    return sp.csr_array(X)


def cells(X=None, names=NAMES):
    marks = np.isin(np.arange(len(names)), MARKED)
    var = pd.DataFrame({"highly_variable": marks, "symbol": [f"s{name}" for name in names]}, index=list(names))
    return anndata.AnnData(sp.csr_matrix(counts() if X is None else X), var=var)


@pytest.fixture(scope="module", params=["h5ad", "zarr"])
def path(request, tmp_path_factory):
    place = str(tmp_path_factory.mktemp("genes") / f"x.{request.param}")
    if request.param == "h5ad":
        cells().write_h5ad(place)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            cells().write_zarr(place)
    return place


class TestMarkedInAFile(SourceContract):
    @pytest.fixture
    def opened(self, path):
        return Opened(open_source(path, dataset="X", genes="highly_variable"), counts().toarray()[:, list(MARKED)])


class TestByNameInAnotherOrder(SourceContract):
    @pytest.fixture
    def opened(self, path):
        names = ["GENE40", "GENE2", "GENE10"]
        return Opened(open_source(path, dataset="X", genes=names), counts().toarray()[:, [40, 2, 10]])


class TestDenseRowsInMemory(SourceContract):
    @pytest.fixture
    def opened(self):
        adata = anndata.AnnData(counts().toarray(), var=cells().var)
        return Opened(open_source(adata, genes="highly_variable"), counts().toarray()[:, list(MARKED)])


@given(sparse_matrices(), st.randoms(use_true_random=False))
def test_columns_of_sparse_and_dense_rows_are_the_same(X, random):
    numbers = np.array(random.sample(range(X.shape[1]), random.randint(1, X.shape[1])))
    found = columns_of(X, numbers)
    assert found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), X.toarray()[:, numbers])
    np.testing.assert_array_equal(columns_of(X.toarray(), numbers), X.toarray()[:, numbers])


def test_open_groups_and_backed_objects(path):
    chosen = tuple(np.array(NAMES)[list(MARKED)])
    if path.endswith("h5ad"):
        adata = anndata.read_h5ad(path, backed="r")
        assert open_source(adata, genes="highly_variable").feature_names == chosen
        adata.file.close()
        with h5py.File(path) as file:
            assert open_source(file, genes="highly_variable").feature_names == chosen
    symbols = open_source(path, dataset="X", var_column="symbol", genes="highly_variable")
    assert symbols.feature_names == tuple(f"s{name}" for name in chosen)


def test_features_of_10x(tmp_path):
    X = counts()
    with h5py.File(tmp_path / "v3.h5", "w") as file:
        write_csr(file.create_group("matrix"), X)
        file["matrix"].attrs["shape"] = X.shape[::-1]
        file["matrix/barcodes"] = np.zeros(240, "S9")
        file["matrix/features/id"] = file["matrix/features/name"] = np.array(NAMES, "S9")
        file["matrix/features/keep"] = np.isin(np.arange(N_GENES), MARKED)
    assert open_source(tmp_path / "v3.h5", genes="keep").feature_names == tuple(np.array(NAMES)[list(MARKED)])


def test_refusals(path, tmp_path):
    def refused(error, match, X=path, **options):
        with pytest.raises(error, match=match):
            open_source(X, **options)

    refused(InvalidParameterError, r"has no column 'nmae', which genes= names", dataset="X", genes="nmae")
    refused(InvalidParameterError, r"has no column 'nmae', which genes= names", cells(), genes="nmae")
    refused(
        InvalidInputError, r"symbol has 'sGENE0' in row 0; genes= names a column of true", dataset="X", genes="symbol"
    )
    refused(InvalidInputError, r"var\['symbol'\] of the AnnData object has 'sGENE0'", cells(), genes="symbol")
    refused(InvalidParameterError, r"genes=61; needed: a column of var, or a list of names", dataset="X", genes=61)
    refused(
        InvalidInputError, r"has no gene 'GENE99' \(did you mean 'GENE9'\?\)", dataset="X", genes=["GENE1", "GENE99"]
    )
    refused(InvalidParameterError, r"genes= has 'GENE1' 2 times", dataset="X", genes=["GENE1", "GENE1"])
    refused(InvalidParameterError, r"genes=True; needed", dataset="X", genes=True)
    refused(InvalidParameterError, r"genes=2.5; needed", dataset="X", genes=2.5)
    refused(InvalidParameterError, r"needed: cells whose genes have names", np.eye(3), genes=["a"])
    refused(InvalidParameterError, r"genes= does not apply to an array", np.eye(3), genes="highly_variable")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    refused(InvalidParameterError, r"Columns of tables are chosen by columns=", tmp_path / "x.csv", genes=["a"])
    none = cells()
    none.var["highly_variable"] = False
    refused(InvalidInputError, r"is true for none of 60 genes", none, genes="highly_variable")


def test_a_mask_of_the_wrong_length(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        write_csr(file.create_group("X"), counts())
        file.create_group("var").attrs["_index"] = "_index"
        file["var/_index"] = list(NAMES)
        file["var/keep"] = np.ones(59, bool)
    with pytest.raises(SourceError, match=r"/var/keep has 59 values for the 60 columns of /X"):
        open_source(tmp_path / "x.h5ad", genes="keep")


class TestLaterFiles:
    @pytest.fixture
    def model(self, path):
        source = open_source(path, dataset="X", genes=list(CHOSEN))
        return StreamKMeans(3, preprocess=["total", "log1p"], random_state=0, progress=False).fit(source)

    def test_the_same_genes_are_taken_by_name(self, model, path, tmp_path):
        assert model.n_features_in_ == 12
        np.testing.assert_array_equal(model.predict(f"{path}:/X"), model.labels_)
        np.testing.assert_array_equal(model.predict(cells()), model.labels_)
        order = np.random.default_rng(0).permutation(N_GENES)
        other = cells(counts()[:, order], [NAMES[number] for number in order])
        np.testing.assert_array_equal(model.predict(other), model.labels_)
        model.save(tmp_path / "model.npz")
        loaded = StreamKMeans.load(tmp_path / "model.npz")
        np.testing.assert_array_equal(loaded.predict(other), model.labels_)

    def test_files_without_a_gene_are_refused(self, model):
        name = model.feature_names_in_[0]
        with pytest.raises(InvalidInputError, match=f"has no gene {name!r}"):
            model.predict(cells()[:, [each for each in NAMES if each != name]])

    def test_names_of_another_column_are_kept(self, path):
        source = open_source(path, dataset="X", var_column="symbol", genes=[f"s{name}" for name in CHOSEN])
        model = StreamKMeans(3, random_state=0, progress=False).fit(source)
        assert model.feature_names_in_[0].startswith("sGENE")
        np.testing.assert_array_equal(model.predict(f"{path}:/X"), model.labels_)

    def test_on_the_command_line(self, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        options = ["--genes", "highly_variable", "--set", "data.var_column=symbol", "--seed", "0"]
        run("fit", f"{path}:/X", "-k", "3", *options, "-o", "out", "-q")
        other = cells(counts()[:, ::-1], NAMES[::-1])
        other.write_h5ad("other.h5ad")
        run("assign", "out/model.npz", "other.h5ad", "-o", "labels.npy", "-q")
        np.testing.assert_array_equal(np.load("labels.npy"), np.load("out/labels.npy"))
        assert "sGENE" in (tmp_path / "out" / "report.html").read_text("utf-8")
