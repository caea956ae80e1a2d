"""`max_cluster_size`: no cluster larger, labels still those of the nearest centers, the same everywhere."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from streamkm import StreamKMeans
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.size_cap import most_clusters, n_parts, parts_of
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.fitting.labelling import assign_all
from tests.cli.test_tables_commands import run
from tests.tables import cases


def capped(cap, n_clusters=15, **parameters):
    settings = {"random_state": 0, "executor": 2, "progress": False, "n_init": 1, "max_cluster_size": cap}
    return StreamKMeans(n_clusters, **{**settings, **parameters})


def uneven(n=4000, d=8, seed=0):
    """Three quarters of the rows are one cluster."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(size=(3 * n // 4, d)) * 0.3, rng.normal(size=(n - 3 * n // 4, d)) * 2 + 4])
    return np.abs(X[rng.permutation(n)])


KINDS = {
    "in memory": lambda X, path: X,
    "float32": lambda X, path: X.astype("f4"),
    "csr": lambda X, path: sp.csr_array(np.where(X > 0.05, X, 0)),
    "file": lambda X, path: np.save(path / "x.npy", X) or path / "x.npy",
    "chunks": lambda X, path: [X[:900], X[900:]],
}


@cases("kind", KINDS)
@cases(
    "cap, options",
    [(1.3, {}), (250, {}), (250, {"metric": "spherical"}), (250, {"refine": 1, "chunk_bytes": 9000})],
)
def test_no_cluster_is_larger_and_labels_are_the_nearest(tmp_path, kind, cap, options):
    X = KINDS[kind](uneven(), tmp_path)
    fitted = capped(cap, **options).fit(X)
    allowed = cap if isinstance(cap, int) else cap * 4000 / 15
    counts = Counter(fitted.labels_.tolist())
    assert max(counts.values()) <= allowed
    assert [counts[j] for j in range(len(fitted.counts_))] == fitted.counts_.tolist()
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    np.testing.assert_allclose(-fitted.score(X), fitted.inertia_, rtol=1e-6)
    told = fitted.size_cap_
    assert (told.rows, told.n_clusters_before, told.largest) == (allowed, 15, max(counts.values()))
    assert told.largest_before > allowed
    assert 15 < len(fitted.cluster_centers_) <= most_clusters(cap, 4000, 15)
    assert fitted.inertia_ < told.inertia_before
    if options.get("metric") == "spherical":
        np.testing.assert_allclose(np.linalg.norm(fitted.model_.centers, axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("kind", ["file", "csr"])
def test_the_same_bits_with_any_workers_and_labels_on_disk(tmp_path, kind):
    X = KINDS[kind](uneven(), tmp_path)
    one, three = (capped(200, executor=n, chunk_bytes=20_000).fit(X) for n in (1, 3))
    np.testing.assert_array_equal(one.model_.centers, three.model_.centers)
    written = capped(200, chunk_bytes=20_000).fit(X, labels_to=tmp_path / "labels.zarr")
    np.testing.assert_array_equal(written.labels_[:], one.labels_)
    np.testing.assert_array_equal(written.model_.centers, one.model_.centers)


def test_nothing_changes_where_no_cluster_is_too_large():
    X = uneven()
    plain, loose = capped(None).fit(X), capped(4000).fit(X)
    np.testing.assert_array_equal(loose.labels_, plain.labels_)
    assert plain.size_cap_ is None
    assert loose.size_cap_.largest == loose.size_cap_.largest_before == plain.counts_.max()


def test_weights_count():
    X = uneven(1000)
    weights = np.random.default_rng(0).integers(1, 4, 1000)
    fitted = capped(150, 8).fit(X, sample_weight=weights)
    sums = np.bincount(fitted.labels_, weights)
    np.testing.assert_array_equal(sums, fitted.counts_)
    assert sums.max() <= 150


def test_rows_that_are_equal_stay_together_with_a_warning():
    X = np.concatenate([np.ones((500, 3)), uneven(500, 3)])
    with pytest.warns(ConvergenceWarning, match=r"1 clusters stay larger than max_cluster_size=100 .* has 500;"):
        fitted = capped(100, 5).fit(X)
    assert sorted(fitted.counts_)[-1] == 500
    assert sorted(fitted.counts_)[-2] <= 100
    assert len(set(fitted.labels_[:500].tolist())) == 1


def test_memory_is_planned_for_the_clusters_that_splitting_adds():
    X = np.zeros((100_000, 64), np.float32)
    assert most_clusters(2.0, 100_000, 3000) == 5000
    assert most_clusters(50, 100_000, 1000) == 1000 + 2667
    assert most_clusters(1, 100, 50) == 100
    plain, more, most = capped(None, 3000).plan(X), capped(2.0, 3000).plan(X), capped(None, 5000).plan(X)
    assert more.peak_bytes == max(plain.peak_bytes, most.peak_bytes)
    assert most.memory["assign"] > plain.memory["assign"]


@pytest.mark.parametrize("wanted", [2, 3, 7])
def test_parts_have_about_equal_sizes(wanted):
    X = np.random.default_rng(0).normal(size=(700, 5))
    centers = parts_of(X, NO_WEIGHTS, wanted, lambda points: points)
    assert len(centers) == wanted
    sizes = np.bincount(((X[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1), minlength=wanted)
    assert sizes.max() <= 700 / wanted * 2
    assert n_parts(101, 100) == 2
    assert n_parts(1000, 100) == 14
    assert len(parts_of(np.ones((9, 5)), NO_WEIGHTS, wanted, lambda points: points)) == 1


def test_a_fit_that_was_killed_between_rounds_goes_on(tmp_path, monkeypatch):
    path = KINDS["file"](uneven(), tmp_path)
    wanted = capped(150, 10, chunk_bytes=20_000).fit(path)
    assert wanted.n_passes_ >= 4
    label_again, calls = assign_all._again, []

    def killed(*given):
        calls.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(assign_all, "_again", killed)
    with pytest.raises(KeyboardInterrupt):
        capped(150, 10, chunk_bytes=20_000).fit(path, checkpoint=tmp_path / "c")
    monkeypatch.setattr(assign_all, "_again", label_again)
    passes = []
    monkeypatch.setattr(assign_all, "assign_found", lambda *given: passes.append(given))
    resumed = capped(150, 10, chunk_bytes=20_000).fit(path, checkpoint=tmp_path / "c")
    assert passes == []  # what was found is not looked for again
    np.testing.assert_array_equal(resumed.labels_, wanted.labels_)
    np.testing.assert_array_equal(resumed.model_.centers, wanted.model_.centers)
    assert (resumed.inertia_, resumed.size_cap_) == (wanted.inertia_, wanted.size_cap_)
    assert not (tmp_path / "c").exists()


@cases("cap", [0, -3, True, 1.0, 0.5, np.inf, "small"])
def test_caps_out_of_range_are_refused(cap):
    with pytest.raises(InvalidParameterError, match=r"max_cluster_size=.*; needed: rows, a whole number from 1, or"):
        capped(cap).fit(uneven(100))


def test_streams_are_refused():
    with pytest.raises(InvalidParameterError, match="max_cluster_size=50 is for fit"):
        capped(50).fit(uneven(100)).incremental()
    with pytest.raises(InvalidInputError, match="can be walked once only, and max_cluster_size needs further passes"):
        capped(50).fit(iter([uneven(100)]))


def test_the_command_says_what_it_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", uneven(1000))
    said = run("fit", "x.npy", "-k", 5, "-o", "out", "--no-report", "--set", "estimator.max_cluster_size=150")
    assert "150 allowed" in said
    assert "clusters more by splits (5 clusters with" in said
    result = json.loads((tmp_path / "out/summary.json").read_text())["result"]
    assert result["size_cap"]["n_clusters_before"] == 5
    assert max(result["counts"]) <= 150
