"""How sketches keep the cost of partitions: all partitions of a few rows, with the components that a bound asks for.

The cost of a partition into clusters is its sum of squared distances to the means. Liu et al.'s definition 2 asks for
the largest relative change over all partitions; here all 1,093 partitions of 8 rows into 2 or 3 clusters are looked at.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from streamkm.sketches import (
    CountSketch,
    GaussianProjection,
    HadamardCountSketch,
    SignProjection,
    SparseProjection,
    SubsampledHadamard,
)
from tests import naive
from tests.tables import cases

N_ROWS, N_FEATURES, N_SEEDS = 8, 200, 200


def partitions(n, k):
    """Labels of all partitions of n rows into exactly k clusters, each once."""

    def grow(labels, used):
        if len(labels) == n:
            if used == k:
                yield tuple(labels)
            return
        for label in range(min(used + 1, k)):
            yield from grow([*labels, label], max(used, label + 1))

    return list(grow([0], 1))


def cost_operator(labelled):
    """Matrix that gives the costs (p,) of partitions from the squared distances (n * n,) of rows."""
    labels = np.array(labelled)
    same = labels[:, :, None] == labels[:, None, :]
    return (same / (2.0 * same.sum(axis=2)[:, :, None])).reshape(len(labels), -1)


TWO, THREE = partitions(N_ROWS, 2), partitions(N_ROWS, 3)
COSTS = cost_operator(TWO + THREE)


def costs(X):
    return COSTS @ naive.d2_matrix(X, X).ravel()


def heavy_rows(n_directions=None):
    """Rows whose norm is in few of their features; their differences span `n_directions`, or all they can."""
    rng = np.random.default_rng(4)
    scales = np.where(np.arange(N_FEATURES) % 50 == 0, 20.0, 1.0)
    if n_directions is None:
        return rng.normal(size=(N_ROWS, N_FEATURES)) * scales
    return rng.normal(size=(N_ROWS, n_directions)) @ rng.normal(size=(n_directions, N_FEATURES)) * scales


def worst_changes(make, X):
    """Liu's eps, for many seeds."""
    wanted = costs(X)
    return np.array([np.abs(costs(make(seed).apply(X)) / wanted - 1).max() for seed in range(N_SEEDS)])


def test_partitions_are_enumerated():
    assert (len(TWO), len(THREE)) == (127, 966)  # Stirling numbers of the second kind
    assert len(set(TWO + THREE)) == 1093
    X = heavy_rows()
    for labels in (TWO[5], TWO[100], THREE[3], THREE[900]):
        index = (TWO + THREE).index(labels)
        assert costs(X)[index] == pytest.approx(naive.within(X, labels))


@pytest.mark.parametrize("make", [SignProjection, SparseProjection])
def test_independent_signs_keep_all_costs(make):
    # Achlioptas (2003), with beta = 1: distances, and so costs, are within 1 +- eps for a share 1 - 1 / n
    eps, delta = 0.5, 1 / N_ROWS
    m = math.ceil((4 + 2) * math.log(N_ROWS) / (eps**2 / 2 - eps**3 / 3))
    assert m == 150
    changes = worst_changes(lambda seed: make(m, seed), heavy_rows())
    assert (changes <= eps).mean() >= 1 - delta
    # and it is a bound about something: half of the seeds move some cost by an eighth of it
    assert np.median(changes) > eps / 8


@cases(
    "make",
    [
        CountSketch,
        lambda m, seed: CountSketch(m, seed, 4),
        SignProjection,
        lambda m, seed: SubsampledHadamard(m, N_FEATURES, seed),
        lambda m, seed: HadamardCountSketch(m, N_FEATURES, seed),
    ],
)
@cases("n_directions", [2, 3])
def test_costs_of_rows_in_few_directions_are_kept(make, n_directions):
    # the second moment of a sketched orthonormal basis: m >= (r^2 + r) / (delta eps^2), a multiple of 4
    eps, delta = 0.5, 0.2
    m = 4 * math.ceil((n_directions**2 + n_directions) / (delta * eps**2) / 4)
    X = heavy_rows(n_directions)
    assert (worst_changes(lambda seed: make(m, seed), X) <= eps).mean() >= 1 - delta
    assert (worst_changes(lambda seed: make(4, seed), X) <= eps).mean() < 1 - delta


@cases("make", [SignProjection, GaussianProjection])
@cases("labelled, k", [(TWO, 2), (THREE, 3)])
def test_the_best_partition_of_the_sketch_is_good(make, labelled, k):
    # Boutsidis et al.: m of the order k / eps^2, here equal to it, gives cost <= (2 + eps) optimum
    eps, delta = 1 / 3, 0.1
    X = heavy_rows()
    operator = cost_operator(labelled)
    wanted = operator @ naive.d2_matrix(X, X).ravel()
    m = math.ceil(k / eps**2)
    ratios = []
    for seed in range(N_SEEDS):
        Y = make(m, seed).apply(X)
        ratios.append(wanted[(operator @ naive.d2_matrix(Y, Y).ravel()).argmin()] / wanted.min())
    ratios = np.array(ratios)
    assert (ratios <= 2 + eps).mean() >= 1 - delta
    assert (ratios > 1).any()
