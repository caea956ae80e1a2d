"""Genes that are chosen: by a mark in the file, by name, and the most variable ones."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from streamkm import StreamKMeans, dedupe, open_source, sweep
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError, SourceError
from streamkm.core.progress import Progress, Stage
from streamkm.engine import open_executor
from streamkm.fitting.genes import find_genes
from streamkm.passes.context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.passes.variable_genes import VariableGenes
from streamkm.preparation.dispersion import N_BINS, largest, normalized_dispersions
from streamkm.sources import open_source as open_unread
from streamkm.sources.chosen_columns import columns_of
from streamkm.sources.dense import DenseSource
from tests.cli.test_cli import run
from tests.contracts import Opened, SourceContract
from tests.sources.counting import CountingArray
from tests.sources.matrices import sparse_matrices, write_csr

anndata = pytest.importorskip("anndata", reason="writes and opens the files")

N_GENES = 60
NAMES = tuple(f"GENE{number}" for number in range(N_GENES))
MARKED = tuple(range(3, N_GENES, 4))


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


def naive_dispersions(X):
    """Normalized dispersions as scanpy's flavor "seurat" has them, in pandas, of dense counts."""
    totals = X.sum(axis=1, keepdims=True)
    X = np.divide(X * 1e4, totals, out=np.zeros_like(X), where=totals > 0)
    mean, variance = X.mean(axis=0), X.var(axis=0, ddof=1)
    mean[mean == 0] = 1e-12
    dispersion = variance / mean
    dispersion[dispersion == 0] = np.nan
    table = pd.DataFrame({"mean": np.log1p(mean), "dispersion": np.log(dispersion)})
    table["bin"] = pd.cut(table["mean"], bins=20)
    groups = table.groupby("bin", observed=True)["dispersion"]
    centers, widths = groups.mean().to_dict(), groups.std(ddof=1).to_dict()
    out = []
    for value, place in zip(table["dispersion"], table["bin"], strict=True):
        alone = np.isnan(widths[place])
        out.append((value - (0 if alone else centers[place])) / (centers[place] if alone else widths[place]))
    return np.array(out)


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


class TestTheMostVariable(SourceContract):
    @pytest.fixture
    def opened(self, path):
        chosen = np.sort(np.argsort(-np.nan_to_num(naive_dispersions(counts().toarray().astype(float)), nan=-9.0))[:9])
        source = open_source(path, dataset="X", genes=9)
        assert source.feature_names == tuple(np.array(NAMES)[chosen])
        return Opened(source, counts().toarray()[:, chosen])


@given(sparse_matrices(), st.randoms(use_true_random=False))
def test_columns_of_sparse_and_dense_rows_are_the_same(X, random):
    numbers = np.array(random.sample(range(X.shape[1]), random.randint(1, X.shape[1])))
    found = columns_of(X, numbers)
    assert found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), X.toarray()[:, numbers])
    np.testing.assert_array_equal(columns_of(X.toarray(), numbers), X.toarray()[:, numbers])


@given(st.integers(0, 999), st.integers(2, 40), st.integers(1, 30))
def test_dispersions_are_those_of_the_formula(seed, n_cells, n_genes):
    rng = np.random.default_rng(seed)
    X = rng.poisson(rng.gamma(0.5, 2.0, n_genes), (n_cells, n_genes)).astype(float)
    scaled = X / np.maximum(X.sum(axis=1, keepdims=True), 1) * 1e4
    found = normalized_dispersions(scaled.mean(axis=0), scaled.var(axis=0, ddof=1))
    wanted = naive_dispersions(X)
    bad = ~np.isfinite(wanted) | (np.abs(wanted) > 1e6)  # bins of one dispersion, repeated: rounding decides
    np.testing.assert_allclose(found[~bad], wanted[~bad], rtol=1e-6, atol=1e-6)


def test_genes_without_variance_come_last():
    means, variances = np.array([1.0, 0.0, 2.0, 2.0]), np.array([1.0, 0.0, 9.0, 0.0])
    scores = normalized_dispersions(means, variances)
    assert np.isnan(scores).tolist() == [False, True, False, True]
    assert largest(scores, 2).tolist() == [0, 2]
    assert largest(scores, 3).tolist() == [0, 1, 2]
    assert N_BINS == 20


def test_the_same_genes_of_sparse_dense_and_divided_cells(path, tmp_path):
    names = open_source(path, dataset="X", genes=12).feature_names
    assert open_source(anndata.AnnData(counts().toarray(), var=cells().var), genes=12).feature_names == names
    cells(counts()[:100]).write_h5ad(tmp_path / "a.h5ad")
    cells(counts()[100:]).write_h5ad(tmp_path / "b.h5ad")
    parts = open_source([tmp_path / "a.h5ad", tmp_path / "b.h5ad"], genes=12)
    assert parts.feature_names == names
    assert parts.n_rows == 240
    assert [stage.name for stage in parts.stages_before] == ["genes"]
    planted = {NAMES[number] for number in range(10, 22)}
    assert len(planted & set(names)) >= 6


def test_the_most_variable_take_one_pass():
    array = CountingArray(counts().toarray(), 50, "cells")
    source = DenseSource(array)
    source.feature_names = NAMES
    open_source(source, genes=12)
    assert dict(array.touched) == dict.fromkeys(range(5), 1)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    place = tmp_path_factory.mktemp("large") / "x.h5ad"
    cells(counts(12_000)).write_h5ad(place)
    return place


class KeptSums(VariableGenes):
    """The pass with the sums as its result."""

    def finish(self, state):
        return state.sums


class TestAnyExecutor:
    @pytest.fixture(params=["1 thread", "2 threads", "workers"])
    def executor(self, request):
        return request.getfixturevalue("client") if request.param == "workers" else int(request.param[0])

    def test_the_same_bits(self, large, executor):
        source = open_unread(large)

        def sums(executor):
            reader = RowReader(source, 1 << 16, "euclidean", "raise")
            with open_executor(executor) as workers:
                return PassContext(executor=workers, reader=reader).run(KeptSums(9, N_GENES, "cells"), Stage("genes"))

        assert len(source.chunks(1 << 16)) > 16
        np.testing.assert_array_equal(sums(executor), sums(1))

    def test_the_same_genes_in_a_fit(self, large, executor):
        model = StreamKMeans(3, executor=executor, random_state=0, progress=False)
        model.fit({"path": str(large), "genes": 12})
        assert tuple(model.feature_names_in_) == open_source(large, genes=12).feature_names
        stage = model.stages_[0]
        assert (stage.name, stage.rows) == ("genes", 12_000)
        assert stage.read_bytes

    @pytest.mark.parametrize("row", [5, 11_990])
    @pytest.mark.parametrize("kind", ["file", "object"])
    def test_an_invalid_cell_is_named(self, kind, row, executor, tmp_path):
        X = counts(12_000)
        X.data[X.indptr[row]] = -1
        adata, given = cells(X), tmp_path / "x.h5ad"
        adata.write_h5ad(given)
        source = open_unread(given if kind == "file" else adata, genes=5)
        with pytest.raises(InvalidInputError, match=rf"a negative value, NaN or infinity in row {row:,} of .*raw"):
            find_genes(source, executor=executor, progress=Progress(show=False))


def test_functions_without_an_estimator_find_the_genes(path):
    given = {"path": f"{path}:/X", "genes": 12}
    names = open_source(path, dataset="X", genes=12).feature_names
    chosen = counts().toarray()[:, [NAMES.index(name) for name in names]]
    found, wanted = (sweep(rows, [3], executor=2, random_state=0, progress=False) for rows in (given, chosen))
    assert found.rows[0].inertia == pytest.approx(wanted.rows[0].inertia, rel=1e-6)
    assert dedupe(given, 0.99, executor=2, random_state=0, progress=False).n_rows == 240


def test_a_limit_without_room_for_the_pass(path):
    with pytest.raises(MemoryLimitError, match=r"finds the most variable genes of .* raise memory_limit to [\d,]+ MiB"):
        find_genes(open_unread(path, dataset="X", genes=5), memory_limit="100 MiB")


def test_no_rows_before_the_genes_are_found(path):
    source = open_unread(path, dataset="X", genes=5)
    assert source.n_features == 5
    assert source.details()["columns"] == "the 5 most variable of 60"
    with pytest.raises(InvalidInputError, match=r"5 most variable genes of .* are not found yet; pass"):
        next(source.stream(1 << 20))
    found = open_source(path, dataset="X", genes=5)
    for each in (source, {"path": path, "dataset": "X", "genes": 5}):
        assert open_source(each).feature_names == found.feature_names


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
    assert open_source(tmp_path / "v3.h5", genes=4).n_features == 4


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
    refused(InvalidInputError, r"genes=61; .* has 60 genes", dataset="X", genes=61)
    refused(
        InvalidInputError, r"has no gene 'GENE99' \(did you mean 'GENE9'\?\)", dataset="X", genes=["GENE1", "GENE99"]
    )
    refused(InvalidParameterError, r"genes= has 'GENE1' 2 times", dataset="X", genes=["GENE1", "GENE1"])
    refused(InvalidParameterError, r"genes=True; needed", dataset="X", genes=True)
    refused(InvalidParameterError, r"genes=2.5; needed", dataset="X", genes=2.5)
    refused(InvalidParameterError, r"needed: cells whose genes have names", np.eye(3), genes=2)
    refused(InvalidParameterError, r"genes= does not apply to an array", np.eye(3), genes="highly_variable")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    refused(InvalidParameterError, r"Columns of tables are chosen by columns=", tmp_path / "x.csv", genes=1)
    none = cells()
    none.var["highly_variable"] = False
    refused(InvalidInputError, r"is true for none of 60 genes", none, genes="highly_variable")
    negative = counts().toarray()
    negative[5, 3] = -1
    refused(InvalidInputError, r"a negative value, NaN or infinity in row 5 .*raw counts", cells(negative), genes=5)


def test_logarithms_are_told_from_counts():
    with pytest.warns(UserWarning, match="values that are not whole numbers"):
        open_source(cells(counts().log1p()), genes=5)


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
        source = open_source(path, dataset="X", genes=12)
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
        model.with_labels(other, "cluster")
        assert other.obs["cluster"].astype(int).tolist() == model.labels_.tolist()

    def test_files_without_a_gene_are_refused(self, model):
        name = model.feature_names_in_[0]
        with pytest.raises(InvalidInputError, match=f"has no gene {name!r}"):
            model.predict(cells()[:, [each for each in NAMES if each != name]])

    def test_names_of_another_column_are_kept(self, path):
        source = open_source(path, dataset="X", var_column="symbol", genes=12)
        model = StreamKMeans(3, random_state=0, progress=False).fit(source)
        assert model.feature_names_in_[0].startswith("sGENE")
        np.testing.assert_array_equal(model.predict(f"{path}:/X"), model.labels_)

    @pytest.mark.parametrize("genes", ["12", "highly_variable"])
    def test_on_the_command_line(self, path, tmp_path, monkeypatch, genes):
        monkeypatch.chdir(tmp_path)
        options = ["--genes", genes, "--set", "data.var_column=symbol", "--seed", "0"]
        run("fit", f"{path}:/X", "-k", "3", *options, "-o", "out", "-q")
        other = cells(counts()[:, ::-1], NAMES[::-1])
        other.write_h5ad("other.h5ad")
        run("assign", "out/model.npz", "other.h5ad", "-o", "labels.npy", "-q")
        np.testing.assert_array_equal(np.load("labels.npy"), np.load("out/labels.npy"))
        assert "sGENE" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_workers_of_a_cluster_give_the_same_bits(client):
    source, settings = open_source(cells(), genes=12), {"random_state": 0, "chunk_bytes": 2000, "progress": False}
    threads, workers = (StreamKMeans(3, executor=executor, **settings).fit(source) for executor in (2, client))
    np.testing.assert_array_equal(threads.cluster_centers_, workers.cluster_centers_)
    np.testing.assert_array_equal(threads.labels_, workers.labels_)
