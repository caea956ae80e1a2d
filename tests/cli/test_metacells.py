"""Metacells: sums of counts by cluster against a naive sum, as AnnData reads them, within a memory limit."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError, MemoryLimitError
from streamkm.fitting.cluster_sums import NEIGHBOURS, SumsPlan, nearest_centers, sum_clusters
from streamkm.sources import open_source
from tests.cli.test_cli import run

anndata = pytest.importorskip("anndata", reason="writes and reads the files")

N_CELLS, N_GENES, K = 400, 60, 7
NAMES = [f"GENE{number}" for number in range(N_GENES)]


def counts(dtype="f4"):
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.4, 2.0, (K, N_GENES))
    return rng.poisson(rates[np.arange(N_CELLS) % K] * rng.uniform(0.5, 2, (N_CELLS, 1))).astype(dtype)


def naive(X, labels, n_clusters):
    """As ``scanpy.get.aggregate(adata, by, "sum")`` does: a row a category, of the rows that have it."""
    sums = np.zeros((n_clusters, X.shape[1]))
    for row, label in zip(X, labels, strict=True):
        if label >= 0:
            sums[label] += row
    return sums


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = sp.csr_matrix(counts())
    anndata.AnnData(X, var=pd.DataFrame(index=NAMES), layers={"dense": counts("i4")}).write_h5ad("cells.h5ad")
    return tmp_path


@pytest.mark.parametrize("inner", ["", ":/layers/dense"])
def test_sums_sizes_and_names(folder, inner):
    told = run("metacells", f"cells.h5ad{inner}", "-k", K, "-o", "metacells.h5ad", "--labels", "labels.npy")
    assert "metacells.h5ad" in told
    labels = np.load("labels.npy")
    found = anndata.read_h5ad("metacells.h5ad")
    np.testing.assert_array_equal(found.X.toarray(), naive(counts(), labels, K))
    assert found.X.has_canonical_format
    np.testing.assert_array_equal(found.obs["size"], np.bincount(labels, minlength=K))
    assert found.obs_names.tolist() == [str(number) for number in range(K)]
    assert found.var_names.tolist() == NAMES
    wanted = StreamKMeans(K, preprocess=["total", "log1p"], metric="cosine", random_state=0, progress=False)
    np.testing.assert_array_equal(labels, wanted.fit(f"cells.h5ad{inner}").labels_)
    assert open_source("metacells.h5ad").feature_names == tuple(NAMES)
    apart = np.linalg.norm(wanted.cluster_centers_[:, None] - wanted.cluster_centers_, axis=2)
    assert (np.diff(found.obsp["distances"].indptr) == K - 1).all()
    np.testing.assert_allclose(found.obsp["distances"].toarray(), apart, rtol=1e-5, atol=1e-6)


def test_neighbours_of_metacells_are_the_nearest():
    centers = np.random.default_rng(0).normal(size=(40, 3))
    found = nearest_centers(centers, 42)
    assert found.shape == (42, 42)
    np.testing.assert_array_equal(np.diff(found.indptr), [NEIGHBOURS] * 40 + [0, 0])
    apart = np.linalg.norm(centers[:, None] - centers, axis=2)
    for center in range(40):
        assert set(found[[center]].indices) == set(np.argsort(apart[center])[1 : NEIGHBOURS + 1])
    assert nearest_centers(centers[:1], 1).nnz == 0


def test_labels_into_the_file_and_other_steps(folder):
    run(
        "metacells",
        "cells.h5ad",
        "-k",
        5,
        "-o",
        "m.h5ad",
        "--labels",
        "cells.h5ad",
        "--preprocess",
        "log1p",
        "--seed",
        3,
    )
    cells, found = anndata.read_h5ad("cells.h5ad"), anndata.read_h5ad("m.h5ad")
    np.testing.assert_array_equal(found.X.toarray(), naive(counts(), cells.obs["cluster"].astype(int), 5))


def test_files_are_replaced_only_if_asked(folder):
    run("metacells", "cells.h5ad", "-k", 3, "-o", "m.h5ad", "-q")
    before = Path("m.h5ad").read_bytes()
    assert "exists" in run("metacells", "cells.h5ad", "-k", 4, "-o", "m.h5ad", "-q", code=2)
    assert Path("m.h5ad").read_bytes() == before
    run("metacells", "cells.h5ad", "-k", 4, "-o", "m.h5ad", "-q", "--overwrite")
    assert anndata.read_h5ad("m.h5ad").n_obs == 4
    mine = Path("cells.h5ad").read_bytes()
    assert "no file of sums" in run("metacells", "cells.h5ad", "-k", 4, "-o", "cells.h5ad", "--overwrite", code=2)
    assert Path("cells.h5ad").read_bytes() == mine
    assert "as .h5ad" in run("metacells", "cells.h5ad", "-k", 4, "-o", "m.zarr", code=2)


def test_negative_values_are_told_from_counts(folder):
    np.save("scaled.npy", np.random.default_rng(0).normal(size=(50, 6)) - 5)
    told = run("metacells", "scaled.npy", "-k", 4, "-o", "m.h5ad", code=2)
    assert "pass --skip-invalid" in told
    assert "total takes values of 0 and more" in told


def test_cells_that_are_skipped_are_in_no_sum(folder):
    X = counts()
    X[[3, 77]] = np.nan
    np.save("x.npy", X)
    run("metacells", "x.npy", "-k", 3, "-o", "m.h5ad", "--labels", "labels.npy", "--skip-invalid", "-q")
    labels = np.load("labels.npy")
    assert labels[[3, 77]].tolist() == [-1, -1]
    found = anndata.read_h5ad("m.h5ad")
    np.testing.assert_array_equal(found.X.toarray(), naive(np.nan_to_num(X), labels, 3))
    assert found.obs["size"].sum() == N_CELLS - 2


def test_without_room_it_is_refused_before_the_fit(folder):
    np.save("wide.npy", np.zeros((4_000, 5_000), np.uint8))
    told = run("metacells", "wide.npy", "-k", 4_000, "-o", "m.h5ad", "--memory-limit", "300 MiB", code=2)
    assert "sums of 4,000 clusters with 5,000 features need about" in told
    assert "or make fewer clusters" in told


class TestSums:
    @pytest.mark.parametrize("kind", ["sparse", "dense"])
    @pytest.mark.parametrize("n_threads", [1, 3])
    def test_against_a_naive_sum_in_any_cut(self, kind, n_threads):
        X = np.random.default_rng(0).normal(size=(500, 9)) * np.random.default_rng(1).integers(0, 2, (500, 9))
        labels = np.random.default_rng(2).integers(-1, 6, 500).astype(np.int32)
        source = open_source(sp.csr_array(X) if kind == "sparse" else X)
        plan = SumsPlan.of(source, 6, executor=n_threads)
        found = sum_clusters(plan, labels, executor=n_threads)
        np.testing.assert_allclose(found.sums, naive(X, labels, 6), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(found.counts, np.bincount(labels[labels >= 0], minlength=6))
        again = SumsPlan(source, 6, 1000, 1, 0)
        np.testing.assert_allclose(sum_clusters(again, labels, executor=1).sums, found.sums, rtol=1e-12, atol=1e-12)

    def test_threads_and_workers_give_the_same_bits(self, client):
        X = np.random.default_rng(0).normal(size=(3_000, 5))
        labels = np.random.default_rng(1).integers(0, 4, 3_000).astype(np.int32)
        plan = SumsPlan(open_source(X), 4, 4_000, 2, 0)
        wanted = sum_clusters(plan, labels, executor=1).sums
        np.testing.assert_array_equal(sum_clusters(plan, labels, executor=2).sums, wanted)
        np.testing.assert_array_equal(sum_clusters(plan, labels, executor=client).sums, wanted)

    def test_refusals(self, tmp_path):
        source = open_source(np.ones((5, 2)))
        with pytest.raises(InvalidInputError, match="4 labels for array, which has 5 rows"):
            sum_clusters(SumsPlan.of(source, 2), np.zeros(4, np.int32))
        (tmp_path / "x.svm").write_text("1 0:1\n")
        with pytest.raises(InvalidInputError, match="does not tell how many rows"):
            SumsPlan.of(open_source(tmp_path / "x.svm"), 2)
        with pytest.raises(MemoryLimitError, match="raise memory_limit to"):
            SumsPlan.of(source, 10**9)

    def test_a_million_cells_have_room_in_2_gib(self, tmp_path):
        n_cells, n_genes, n_each = 1_000_000, 2_000, 200
        with h5py.File(tmp_path / "x.h5ad", "w") as file:  # values are not stored: all have the fill value
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "shape": (n_cells, n_genes)})
            group["indptr"] = np.arange(n_cells + 1) * n_each
            for name, dtype in (("data", "f4"), ("indices", "i4")):
                group.create_dataset(name, (n_cells * n_each,), dtype, chunks=(1 << 16,))
        plan = SumsPlan.of(open_source(tmp_path / "x.h5ad"), 5_000, memory_limit="2 GiB")
        assert 8 * 5_000 * n_genes < plan.peak_bytes <= 2 << 30
