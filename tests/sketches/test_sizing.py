"""Numbers of components: the formulas, what is refused, and promises held against all partitions of small matrices."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from threadpoolctl import threadpool_limits

from streamkm import SketchOptions, StreamKMeans
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import InvalidParameterError
from streamkm.sketches import LeverageSampling, TruncatedSVDSketch, make_sketch
from streamkm.sketches.sizing import FORMULAS, kernel_columns, nystroem_columns, sizing
from streamkm.sketches.subspace import Subspace, fit_rows, subspace_fit
from tests import naive
from tests.tables import cases

DELTA = 0.1
N_ROWS, N_FEATURES = 7, 300
N_SEEDS = 60
OBLIVIOUS = ("countsketch", "signs", "gaussian", "sparse")


def size(sketch, **given):
    return sizing(sketch, **given).n_components


def matrices():
    """Rows that are hard for one sketch or another: (7, 300) each."""
    rng = np.random.default_rng(0)
    line = rng.normal(size=N_ROWS)
    pairs = np.repeat(10 * rng.normal(size=(4, N_FEATURES)), 2, axis=0)[:N_ROWS]
    words = 1 / np.arange(1, N_FEATURES + 1)
    return {
        "random": rng.normal(size=(N_ROWS, N_FEATURES)),
        "line": np.outer(line, rng.normal(size=N_FEATURES)),
        "plane": rng.normal(size=(N_ROWS, 2)) @ rng.normal(size=(2, N_FEATURES)),
        "one-feature": np.outer(line, np.eye(N_FEATURES)[5]),
        "feature-each": np.eye(N_ROWS, N_FEATURES),
        "two-features-each": np.kron(np.eye(N_ROWS, N_FEATURES // 2), np.ones(2)),
        "pairs": pairs + 0.01 * rng.normal(size=(N_ROWS, N_FEATURES)),
        "zipf-text": rng.multinomial(60, words / words.sum(), size=N_ROWS).astype(float),
        "heavy": rng.normal(size=(N_ROWS, N_FEATURES)) * np.where(np.arange(N_FEATURES) % 50 == 0, 50.0, 1.0),
    }


def costs_as_forms(n_clusters):
    """Matrices Q with cost = trace(X' Q X), one for each partition."""
    forms = []
    for labels in naive.partitions(N_ROWS, n_clusters):
        same = labels[:, None] == labels[None, :]
        forms.append(np.eye(N_ROWS) - same / same.sum(axis=1))
    return np.array(forms)


def shares_of_failures(sketch, m, n_clusters, eps):
    """For each matrix, how many of the maps change the cost of some partition by more than eps."""
    forms, hard = costs_as_forms(n_clusters).reshape(-1, N_ROWS**2), matrices()
    failed = dict.fromkeys(hard, 0)
    wanted = {name: forms @ (X @ X.T).ravel() for name, X in hard.items()}
    with threadpool_limits(1, user_api="blas"):  # products too small to share
        for seed in range(N_SEEDS):
            stacked = make_sketch(sketch, m, seed, N_FEATURES).apply(np.vstack(list(hard.values())))
            stacked = stacked.astype(float)
            for (name, X), Y in zip(hard.items(), np.split(stacked, len(hard)), strict=True):
                got, counted = forms @ (Y @ Y.T).ravel(), wanted[name] > 1e-9 * (X**2).sum()
                failed[name] += bool((np.abs(got[counted] / wanted[name][counted] - 1) > eps).any())
    return {name: count / N_SEEDS for name, count in failed.items()}


def interval(share, n_seeds=N_SEEDS):
    """Where the probability of failing lies, with 95 % confidence (Clopper and Pearson)."""
    found = binomtest(round(share * n_seeds), n_seeds).proportion_ci(0.95, method="exact")
    return found.low, found.high


@cases("n_clusters, eps", [(1, 0.5), (3, 0.4)])
@cases("sketch", OBLIVIOUS)
def test_costs_of_all_partitions_are_kept(sketch, n_clusters, eps):
    bound = sizing(sketch, n_clusters=n_clusters, eps=eps, delta=DELTA)
    assert bound.sketch == sketch
    failed = shares_of_failures(sketch, bound.n_components, n_clusters, eps)
    assert interval(max(failed.values()))[1] < DELTA, failed


@pytest.mark.slow
def test_a_quarter_of_the_components_is_not_enough():
    # so that the test above can fail
    m = size("gaussian", n_clusters=3, eps=0.4) // 4
    assert interval(shares_of_failures("gaussian", m, 3, 0.4)["pairs"])[0] > DELTA


@cases("n_clusters, eps", [(1, 0.5), (3, 0.75)])
def test_singular_vectors_keep_all_costs_but_for_a_constant(n_clusters, eps):
    m = size("svd", n_clusters=n_clusters, eps=eps)
    forms = costs_as_forms(n_clusters).reshape(-1, N_ROWS**2)
    for name, X in matrices().items():
        fit = subspace_fit(m, TruncatedSVDSketch.of_subspace, n_features=N_FEATURES, seed=0)
        Y = fit_rows(fit, X, NO_WEIGHTS).apply(X).astype(float)
        constant = (X**2).sum() - (Y**2).sum()
        wanted, got = (forms @ (rows @ rows.T).ravel() for rows in (X, Y))
        assert (np.abs(got + constant - wanted) <= eps * wanted + 1e-9 * (X**2).sum()).all(), name


@pytest.mark.slow
@cases("n_clusters, eps", [(3, 0.6)])
def test_the_best_partition_by_leverage_costs_at_most_three_plus_eps(n_clusters, eps):
    m = size("leverage", n_clusters=n_clusters, eps=eps, delta=DELTA, n_features=N_FEATURES)
    assert m < N_FEATURES
    forms = costs_as_forms(n_clusters).reshape(-1, N_ROWS**2)
    for name, X in matrices().items():
        costs, n_failed = forms @ (X @ X.T).ravel(), 0
        _, s, vt = np.linalg.svd(X, full_matrices=False)
        leading = Subspace(vt[:n_clusters].T, s[:n_clusters] ** 2, None, np.dtype(float))
        for seed in range(N_SEEDS):
            Y = LeverageSampling(m, seed)(leading).apply(X)
            n_failed += costs[(forms @ (Y @ Y.T).ravel()).argmin()] > (3 + eps) * costs.min() + 1e-9 * (X**2).sum()
        assert interval(n_failed / N_SEEDS)[1] < DELTA, name


N_WIDE, N_WIDE_SEEDS = 10**6, 400


@cases(
    "sketch, options, wanted",
    [
        ("countsketch", {"n_clusters": 3, "eps": 0.5}, 480),
        ("countsketch", {"n_clusters": 100, "eps": 0.5}, 404_000),
        ("countsketch", {"n_clusters": 100, "eps": 0.01, "delta": 0.5}, 202_000_000),
        ("signs", {"n_clusters": 2, "eps": 0.5}, 80),
        ("gaussian", {"n_clusters": 50, "eps": 0.5}, 332),
        ("gaussian", {"n_clusters": 50, "eps": 0.5, "n_rows": 60}, 252),
        ("svd", {"n_clusters": 10, "eps": 0.3}, 34),
        ("pca", {"n_clusters": 10, "eps": 0.3, "n_rows": 20}, 20),
        ("leverage", {"n_clusters": 10, "eps": 0.5}, 848),
        ("hadamard", {"n_clusters": 2, "eps": 0.9, "n_features": 60_000}, 4_501),
    ],
)
def test_formulas(sketch, options, wanted):
    assert size(sketch, **options) == wanted


def test_columns_of_the_kernel_matrix():
    assert kernel_columns(n_rows=10_000, eps=0.5, delta=0.1) == 439
    assert kernel_columns(n_rows=10_000, eps=0.05) * 0.05**2 / 8 == pytest.approx(
        math.log(10_000) + math.log(10) / 2, 0.04
    )
    with pytest.raises(InvalidParameterError, match="eps=1"):
        kernel_columns(n_rows=100, eps=1)


def test_columns_of_nystroem_features():
    given = {"rank": 20, "eps": 0.1, "n_rows": 10_000}
    sizes = {name: nystroem_columns(name, **given) for name in ("gaussian", "leverage", "srht", "countsketch")}
    assert sizes == {"gaussian": 200, "leverage": 260, "srht": 380, "countsketch": 600}


def test_logarithm_of_many_clusters_is_less_than_their_number():
    few, many = (sizing("gaussian", n_clusters=k, eps=0.2) for k in (2, 1000))
    assert few.formula.startswith("4 (k + ")
    assert many.formula.startswith("4 ln(k / ")
    assert "Makarychev" in many.theorem


@cases("sketch", ["countsketch", "hadamard", "leverage", "svd"])
def test_sub_gaussian_bounds_are_for_sub_gaussian_maps_alone(sketch):
    bound = sizing(sketch, n_clusters=10**6, eps=0.5, n_features=10**15)
    assert "Makarychev" not in bound.theorem
    assert bound.n_components >= 10**6


@cases("sketch", FORMULAS)
def test_never_more_than_the_features(sketch):
    bound = sizing(sketch, n_clusters=20, eps=0.05, n_features=64)
    assert (bound.n_components, bound.formula, bound.sketch) == (64, "d", "identity")
    assert "no sketch at all" in bound.theorem
    plan = StreamKMeans(20, sketch=SketchOptions(sketch, eps=0.05), progress=False).plan(np.eye(640, 64))
    assert (plan.sketch, plan.n_components) == ("identity", 64)


@cases("sketch", FORMULAS)
def test_more_for_less_error(sketch):
    many = {"n_features": 10**15}
    usual = size(sketch, n_clusters=20, eps=0.2, **many)
    assert size(sketch, n_clusters=20, eps=0.1, **many) >= usual
    assert size(sketch, n_clusters=21, eps=0.2, **many) > usual
    assert size(sketch, n_clusters=20, eps=0.2, delta=0.01, **many) >= usual


@cases(
    "options, message",
    [
        ({"sketch": "countsketsh"}, "did you mean 'countsketch'"),
        ({"sketch": "sampling"}, "else pass n_components"),
        ({"sketch": "hadamard"}, "needs n_features"),
        ({"eps": 0.0}, "eps=0.0; needed"),
        ({"eps": 1.0}, "eps=1.0; needed"),
        ({"eps": math.nan}, "eps=nan; needed"),
        ({"delta": 1.5}, "delta=1.5; needed"),
        ({"n_clusters": 0}, "n_clusters=0; needed"),
        ({"n_features": 0}, "n_features=0; needed"),
        ({"n_rows": 4}, "n_clusters=5 and n_rows=4"),
    ],
)
def test_refuses_nonsense(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        size(**{"sketch": "signs", "n_clusters": 5, "eps": 0.5, **options})


def test_the_guide_has_the_numbers():
    guide = (Path(__file__).parents[2] / "examples" / "README.md").read_text()
    section = guide.partition("## Which sketch")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    kinds = {kind: row for row in rows for kind in row[0].strip("| `").split("`, `")}
    assert set(FORMULAS) <= set(kinds)
    for kind in set(FORMULAS) - {"hadamard"}:
        assert kinds[kind][2] == f"{size(kind, n_clusters=10, eps=0.3):,}"
