"""What sketches do to the objective of sampled rows: against loops, for all inputs, in one pass."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.model_selection.distortion import distortion
from streamkm.sketches import FeatureSelection
from tests import naive
from tests.passes.test_passes import CountingSource, groups
from tests.tables import cases


def wide_groups(n=240, d=60, seed=0):
    """Three groups in few of many features."""
    X, y = groups(n, d, seed)
    X[:, 5:] *= 2.0 ** -np.arange(d - 5)
    return X, y


def measured(X, clusters, sketch, m, **options):
    (row,) = distortion(X, clusters, sketches=[sketch], n_components=[m], random_state=0, executor=2, **options).rows
    return row


@pytest.mark.parametrize("sparse", [False, True])
def test_no_sketch_changes_nothing(sparse):
    X, y = wide_groups()
    row = measured(sp.csr_array(X) if sparse else X, y, "identity", 3)
    assert (row.sketch, row.n_components) == ("identity", 60)
    np.testing.assert_allclose([row.eps, row.ratio - 1, row.drss], 0, atol=1e-5)
    assert row.loss <= 1 + 1e-6


@cases("sparse", [False, True])
@cases("m", [1, 4, 70])
def test_singular_vectors_lose_a_constant(sparse, m):
    X, y = wide_groups()
    row = measured(sp.csr_array(X) if sparse else X, y, "svd", m)
    _, _, vectors = np.linalg.svd(X, full_matrices=False)
    Y = X @ vectors[:m].T
    lost = (X**2).sum() - (Y**2).sum()
    cost, sketched = naive.within(X, y), naive.within(Y, y)
    assert row.n_components == min(m, 60)
    assert row.ratio == pytest.approx((sketched + lost) / cost, rel=1e-5)
    assert row.drss == pytest.approx(abs(sketched - cost), rel=1e-4, abs=1e-5)
    assert row.eps >= abs(row.ratio - 1) - 1e-9
    assert row.ratio >= 1 - 1e-5
    if m >= 3:  # Cohen et al.: eps = k / m
        assert row.ratio <= 1 + 3 / m + 1e-5


def test_principal_directions_lose_a_constant_around_the_mean():
    X, y = wide_groups()
    row = measured(X + 50, y, "pca", 8)
    centered = X - X.mean(axis=0)
    _, _, vectors = np.linalg.svd(centered, full_matrices=False)
    Y = centered @ vectors[:8].T
    wanted = (naive.within(Y, y) + (centered**2).sum() - (Y**2).sum()) / naive.within(X, y)
    assert row.ratio == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("sparse", [False, True])
def test_selections_have_no_constant(sparse):
    X, y = wide_groups()
    row = measured(sp.csr_array(X) if sparse else X, y, "laplacian", 6)
    Y = FeatureSelection.by_laplacian_scores(X, 6).apply(X)
    assert row.ratio == pytest.approx(naive.within(Y, y) / naive.within(X, y), rel=1e-6)
    assert row.loss >= 1 - 1e-6


@pytest.mark.parametrize("sparse", [False, True])
def test_countsketch_is_right_on_average(sparse):
    X, y = wide_groups(60)
    X = sp.csr_array(X) if sparse else X
    ratios = []
    for seed in range(40):
        (row,) = distortion(X, y, sketches=["countsketch"], n_components=[40], random_state=seed, executor=1).rows
        ratios.append(row.ratio)
        assert row.eps >= abs(row.ratio - 1) - 1e-12
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios) / np.sqrt(40)
    assert np.std(ratios) > 0


def test_very_many_draws_are_all_features():
    X, y = wide_groups(60)
    assert measured(X, y, "leverage", 10**8).eps < 0.01
    assert measured(X, y, "leverage", 2).eps > 0.1


def test_more_components_keep_more(small_topics):
    table = distortion(
        small_topics.X, 10, sketches=["countsketch", "svd"], n_components=[8, 64, 512], random_state=0, executor=2
    )
    for sketch in ("countsketch", "svd"):
        few, some, many = [row for row in table.rows if row.sketch == sketch]
        assert few.eps > some.eps > many.eps
        assert few.loss > many.loss - 1e-9
    assert [row.n_components for row in table.rows] == [8, 64, 512] * 2
    assert all(row.seconds > 0 and row.fit_seconds > 0 for row in table.rows)
    assert json.loads(json.dumps(table.to_dict()))["rows"][0]["n_components"] == 8


def test_a_verdict_is_given():
    X, y = wide_groups(300)
    wide = distortion(X, y, sketches=["svd"], n_components=[1, 8], random_state=0, executor=1)
    assert re.search(r"verdict: svd with 8 components will do; it costs [\d.e-]+ % of the objective", wide.lines()[-1])
    assert str(wide).splitlines() == wide.lines()
    page = wide._repr_html_()
    assert page.count("<tr>") == 3
    assert "<td>svd</td><td>8</td>" in page
    assert page.endswith(f"<p>{wide.verdict()}</p>")
    narrow = distortion(X, y, sketches=["countsketch"], n_components=[1], random_state=0, executor=1)
    assert narrow.rows[0].loss > 1.01
    assert "too few components; the best, countsketch with 1, costs" in narrow.lines()[-1]


def test_labels_centers_and_numbers_of_clusters_agree():
    X, y = wide_groups()
    centers = np.array([X[y == group].mean(axis=0) for group in range(3)])
    tables = [distortion(X, given, n_components=[16], random_state=3, executor=2) for given in (y, centers, 3)]
    for table in tables:
        assert (table.n_rows, table.n_features, table.n_clusters) == (240, 60, 3)
        assert table.objective == pytest.approx(naive.within(X, y), rel=1e-9)
        assert [row.ratio for row in table.rows] == pytest.approx([row.ratio for row in tables[0].rows], rel=1e-9)
    assert [row.sketch for row in tables[0].rows] == ["countsketch", "svd", "pca"]


def test_rows_without_label_are_left_out():
    X, y = wide_groups()
    y = np.where(y == 1, 7, y)
    y[::3] = -1
    kept = y >= 0
    table = distortion(X, y, sketches=["identity"], executor=2, random_state=0)
    assert (table.n_rows, table.n_clusters) == (160, 3)
    assert table.objective == pytest.approx(naive.within(X[kept], np.unique(y[kept], return_inverse=True)[1]))


def test_a_sample_stands_for_the_rows():
    X, y = wide_groups(6000)
    table = distortion(X, y, sketches=["svd"], n_components=[4, 4, 5], sample_rows=500, random_state=0, executor=2)
    assert table.n_rows == 500
    assert [row.n_components for row in table.rows] == [4, 5]
    assert table.objective / 500 == pytest.approx(naive.within(X, y) / 6000, rel=0.1)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_read_once(sparse):
    X, y = wide_groups()
    source = CountingSource(sp.csr_array(X) if sparse else X)
    distortion(source, y, n_components=[4, 8], random_state=0, executor=2)
    assert set(source.read_rows.values()) == {1}


def test_files(tmp_path):
    X, y = wide_groups()
    np.save(tmp_path / "x.npy", X)
    row, wanted = (measured(rows, y, "countsketch", 8) for rows in (tmp_path / "x.npy", X))
    assert (row.eps, row.ratio, row.loss) == (wanted.eps, wanted.ratio, wanted.loss)


def test_cosine_is_euclidean_on_normalized_rows():
    X, y = wide_groups()
    unit = X / np.linalg.norm(X, axis=1)[:, None]
    row, wanted = measured(X, y, "countsketch", 8, metric="cosine"), measured(unit, y, "countsketch", 8)
    assert row.ratio == pytest.approx(wanted.ratio, rel=1e-9)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("sparse", [False, True])
def test_threads_give_the_same_bits(sparse):
    X, _ = wide_groups()
    X = sp.csr_array(X) if sparse else X
    tables = [distortion(X, 4, n_components=[4, 16], random_state=1, executor=executor) for executor in (1, 3)]
    first, second = ([(row.eps, row.ratio, row.loss, row.drss) for row in table.rows] for table in tables)
    assert first == second


def test_equal_rows():
    row = measured(np.ones((20, 5)), np.zeros(20, int), "countsketch", 2)
    assert (row.eps, row.ratio, row.loss, row.drss) == (0, 1, 1, 0)


@cases(
    "clusters, options, error, message",
    [
        (3, {"sketches": ["nystroem"]}, InvalidParameterError, "'nystroem'; needed: one of 'countsketch'"),
        (3, {"n_components": [4, 0]}, InvalidParameterError, "n_components=0"),
        (3, {"sample_rows": 0}, InvalidParameterError, "sample_rows=0"),
        (0, {}, InvalidParameterError, "clusters=0; needed: 1 to 240"),
        (241, {}, InvalidParameterError, "clusters=241; needed: 1 to 240"),
        (2.5, {}, InvalidParameterError, r"clusters of float64 \(\)"),
        (["a"], {}, InvalidParameterError, "clusters of <U1"),
        (np.zeros((2, 9)), {}, InvalidInputError, "centers have 9 features; the data have 60"),
        (np.zeros(7, int), {}, InvalidInputError, "7 labels; the data have 240 rows"),
        (np.full(240, -1), {}, InvalidInputError, "no sampled row has a label"),
    ],
)
def test_refuses_what_does_not_fit(clusters, options, error, message):
    X, _ = wide_groups()
    with pytest.raises(error, match=message):
        distortion(X, clusters, executor=1, random_state=0, **options)


@cases("clusters", [0, 241, 2.5, np.zeros(7, int)])
def test_what_cannot_be_is_refused_before_rows_are_read(clusters):
    source = CountingSource(wide_groups()[0])
    source.n_rows = 240
    with pytest.raises(ValueError, match=r"clusters|labels"):
        distortion(source, clusters, executor=1)
    assert not source.read_rows


def test_principal_directions_are_for_dense_rows():
    with pytest.raises(InvalidParameterError, match="takes dense rows"):
        distortion(sp.csr_array(np.eye(5)), 2, sketches=["pca"], executor=1)
