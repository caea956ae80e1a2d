"""Numbers of components: the formulas, what is refused, and promises held against all partitions of small matrices."""

from __future__ import annotations

import logging
import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom
from threadpoolctl import threadpool_limits

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sketches import CountSketch
from streamkm.sketches.bounds import (
    ALL_PARTITIONS,
    BEST_PARTITION,
    FORMULAS,
    UP_TO_A_CONSTANT,
    n_components,
    nnz_per_feature,
    sizing,
)
from tests import naive

DELTA = 0.1
N_ROWS, N_FEATURES = 7, 300
N_SEEDS = 100
OBLIVIOUS = ("countsketch", "signs", "gaussian", "sparse", "sparse-jl")


def matrices():
    """Rows that are hard for one sketch or another: (7, 300) each."""
    rng = np.random.default_rng(0)
    line = rng.normal(size=N_ROWS)
    pairs = np.repeat(10 * rng.normal(size=(4, N_FEATURES)), 2, axis=0)[:N_ROWS]
    return {
        "random": rng.normal(size=(N_ROWS, N_FEATURES)),
        "line": np.outer(line, rng.normal(size=N_FEATURES)),
        "plane": rng.normal(size=(N_ROWS, 2)) @ rng.normal(size=(2, N_FEATURES)),
        "one-feature": np.outer(line, np.eye(N_FEATURES)[5]),
        "feature-each": np.eye(N_ROWS, N_FEATURES),
        "pairs": pairs + 0.01 * rng.normal(size=(N_ROWS, N_FEATURES)),
    }


def explicit_map(sketch, m, n_clusters, eps, seed):
    """The map as a matrix (300, m), as the papers define it."""
    rng = np.random.default_rng(seed)
    if sketch == "countsketch":
        return CountSketch(m, seed).apply(np.eye(N_FEATURES))
    if sketch == "signs":
        return rng.choice([-1.0, 1.0], (N_FEATURES, m)) / math.sqrt(m)
    if sketch == "gaussian":
        return rng.normal(size=(N_FEATURES, m)) / math.sqrt(m)
    if sketch == "sparse":
        return rng.choice([-1.0, 0.0, 1.0], (N_FEATURES, m), p=[1 / 6, 2 / 3, 1 / 6]) * math.sqrt(3 / m)
    s = nnz_per_feature(n_clusters=n_clusters, eps=eps, delta=DELTA)
    cuts = np.linspace(0, m, s + 1).astype(int)
    out = np.zeros((N_FEATURES, m))
    for start, stop in pairwise(cuts):
        out[np.arange(N_FEATURES), rng.integers(start, stop, N_FEATURES)] = rng.choice([-1.0, 1.0], N_FEATURES)
    return out / math.sqrt(s)


def costs_as_forms(n_clusters):
    """Matrices Q with cost = trace(X' Q X), one for each partition."""
    forms = []
    for labels in naive.partitions(N_ROWS, n_clusters):
        same = labels[:, None] == labels[None, :]
        forms.append(np.eye(N_ROWS) - same / same.sum(axis=1))
    return np.array(forms)


def test_the_forms_are_the_costs():
    X = matrices()["random"]
    costs = [naive.within(X, labels) for labels in naive.partitions(N_ROWS, 3)]
    np.testing.assert_allclose(np.einsum("pij,ij->p", costs_as_forms(3), X @ X.T), costs)


def shares_of_failures(sketch, m, n_clusters, eps):
    """For each matrix, how many of the maps change the cost of some partition by more than eps."""
    forms, hard = costs_as_forms(n_clusters).reshape(-1, N_ROWS**2), matrices()
    failed = dict.fromkeys(hard, 0)
    with threadpool_limits(1, user_api="blas"):  # products too small to share
        for seed in range(N_SEEDS):
            stacked = np.vstack(list(hard.values())) @ explicit_map(sketch, m, n_clusters, eps, seed)
            for (name, X), Y in zip(hard.items(), np.split(stacked, len(hard)), strict=True):
                wanted, got = (forms @ (rows @ rows.T).ravel() for rows in (X, Y))
                counted = wanted > 1e-9 * (X**2).sum()
                failed[name] += bool((np.abs(got[counted] / wanted[counted] - 1) > eps).any())
    return {name: count / N_SEEDS for name, count in failed.items()}


@pytest.mark.parametrize(("n_clusters", "eps"), [(1, 0.5), (2, 0.5), (3, 0.4), (6, 0.5)])
@pytest.mark.parametrize("sketch", OBLIVIOUS)
def test_costs_of_all_partitions_are_kept(sketch, n_clusters, eps):
    bound = sizing(sketch, n_clusters=n_clusters, eps=eps, delta=DELTA)
    assert bound.keeps == ALL_PARTITIONS
    failed = shares_of_failures(sketch, bound.n_components, n_clusters, eps)
    # more are too many: maps that fail with probability delta show them once in a hundred times
    assert max(failed.values()) <= binom.ppf(0.99, N_SEEDS, DELTA) / N_SEEDS, failed


def test_a_quarter_of_the_components_is_not_enough():
    # so that the test above can fail
    m = n_components("gaussian", n_clusters=3, eps=0.4) // 4
    assert shares_of_failures("gaussian", m, 3, 0.4)["pairs"] > 2 * DELTA


def test_two_terms_are_not_enough_for_countsketch():
    # 31 rows of one feature each, 30 clusters: a pair that meets is lost, and there are 465 pairs
    k, eps = 30, 0.5
    two_terms = math.ceil(max((k + math.log(1 / DELTA)) / eps**2, 6 / (eps**2 * DELTA)))
    collided = dict.fromkeys((two_terms, n_components("countsketch", n_clusters=k, eps=eps)), 0)
    for m in collided:
        for seed in range(200):
            buckets, _ = CountSketch(m, seed).hash(0, k + 1)
            collided[m] += len(np.unique(buckets)) <= k
    few, enough = collided.values()
    assert few > 0.5 * 200
    assert enough <= DELTA * 200


@pytest.mark.parametrize(
    ("sketch", "options", "wanted"),
    [
        ("countsketch", {"n_clusters": 3, "eps": 0.5}, 240),
        ("countsketch", {"n_clusters": 100, "eps": 0.5}, 50_500),
        ("countsketch", {"n_clusters": 100, "eps": 0.01, "delta": 0.5}, 1_006_932),
        ("hadamard-countsketch", {"n_clusters": 3, "eps": 0.5}, 240),
        ("signs", {"n_clusters": 2, "eps": 0.5}, 80),
        ("gaussian", {"n_clusters": 50, "eps": 0.5}, 332),
        ("gaussian", {"n_clusters": 50, "eps": 0.5, "n_rows": 60}, 252),
        ("sparse-jl", {"n_clusters": 10, "eps": 0.5}, 848),
        ("svd", {"n_clusters": 10, "eps": 0.3}, 34),
        ("pca", {"n_clusters": 10, "eps": 0.3, "n_rows": 20}, 20),
        ("leverage", {"n_clusters": 10, "eps": 0.5}, 848),
        ("hadamard", {"n_clusters": 2, "eps": 0.9, "n_features": 60_000}, 4_501),
    ],
)
def test_formulas(sketch, options, wanted):
    assert n_components(sketch, **options) == wanted


def test_logarithm_of_many_clusters_is_less_than_their_number():
    few, many = (sizing("gaussian", n_clusters=k, eps=0.2) for k in (2, 1000))
    assert few.formula.startswith("4 (k + ")
    assert many.formula.startswith("4 ln(k / ")
    assert "Makarychev" in many.source


@pytest.mark.parametrize("sketch", ["countsketch", "hadamard-countsketch", "sparse-jl", "hadamard", "leverage", "svd"])
def test_sub_gaussian_bounds_are_for_sub_gaussian_maps_alone(sketch):
    bound = sizing(sketch, n_clusters=10**6, eps=0.5, n_features=10**15)
    assert "Makarychev" not in bound.source
    assert bound.n_components >= 10**6


def test_other_promises_are_said():
    assert sizing("svd", n_clusters=3, eps=0.1).keeps == UP_TO_A_CONSTANT
    assert sizing("leverage", n_clusters=3, eps=0.1).keeps == BEST_PARTITION


@pytest.mark.parametrize("sketch", FORMULAS)
def test_never_more_than_the_features(sketch, caplog):
    with caplog.at_level(logging.INFO, "streamkm"):
        bound = sizing(sketch, n_clusters=20, eps=0.05, n_features=64)
    assert (bound.n_components, bound.formula) == (64, "d")
    assert "take them all" in caplog.text
    assert "no sketch at all" in bound.source


@pytest.mark.parametrize("sketch", FORMULAS)
def test_more_for_less_error(sketch):
    many = {"n_features": 10**15}
    usual = n_components(sketch, n_clusters=20, eps=0.2, **many)
    assert n_components(sketch, n_clusters=20, eps=0.1, **many) >= usual
    assert n_components(sketch, n_clusters=21, eps=0.2, **many) > usual
    assert n_components(sketch, n_clusters=20, eps=0.2, delta=0.01, **many) >= usual


@pytest.mark.parametrize(
    ("options", "message"),
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
        n_components(**{"sketch": "signs", "n_clusters": 5, "eps": 0.5, **options})
