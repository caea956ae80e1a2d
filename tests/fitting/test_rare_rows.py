"""Rare rows and heavy tails: fewer than k centers only for fewer distinct rows; gains as shares of the objective."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import SketchOptions, StreamKMeans, open_source
from streamkm.core.exceptions import MemoryLimitError, StreamkmWarning
from streamkm.core.memory import with_process_memory
from streamkm.estimators.labelling import FewClustersWarning
from streamkm.fitting.gain import GainEstimate
from tests.tables import slow_but

K = 12


def rare(n_rows, n_features, *, n_rare=60, copies=1):
    """Rows of zeros, and a few others at the end."""
    X = np.zeros((n_rows, n_features))
    X[-n_rare * copies :] = np.repeat(np.random.default_rng(0).normal(size=(n_rare, n_features)), copies, axis=0)
    return X


def fitted(X, n_clusters=K, *, weights=None, seed=1, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FewClustersWarning)
        return StreamKMeans(n_clusters, random_state=seed, **options).fit(X, sample_weight=weights)


def objective_apart(X, n_clusters=K):
    """The objective where all rows of zeros have one cluster of their own."""
    others = X[np.any(X != 0, axis=1)]
    return StreamKMeans(n_clusters - 1, random_state=0).fit(others).inertia_


@pytest.mark.parametrize(
    "kind", slow_but(["sparse"], ["dense", "sparse", "one feature", "weights", "far", "float32"], full=True)
)
def test_rare_rows_of_each_kind(kind):
    X = rare(40_000, 1 if kind == "one feature" else 5)
    weights = np.where(np.arange(len(X)) % 2, 1.0, 3.0) if kind == "weights" else None
    rows = {"sparse": sp.csr_array(X), "far": X + 1e6, "float32": X.astype(np.float32)}.get(kind, X)
    found = fitted(rows, weights=weights)
    assert len(found.cluster_centers_) == K
    if weights is None:
        assert found.inertia_ <= 1.03 * objective_apart(X)


@pytest.mark.parametrize(
    ("coreset", "refine"), slow_but([("uniform", "auto")], [("uniform", 0), ("uniform", "auto"), ("sensitivity", 0)])
)
def test_a_coreset_that_missed_them_is_made_up_for_by_all_rows(coreset, refine):
    X = rare(200_000, 3, n_rare=20)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The last pass estimates")  # rows that were added last were not searched
        found = fitted(X, refine=refine, coreset=coreset)
    assert len(found.cluster_centers_) == K
    assert np.bincount(found.labels_, minlength=K).min() > 0
    assert found.inertia_ <= 1.5 * objective_apart(X)


def test_rows_that_a_sketch_maps_to_one_are_told_apart():
    X = sp.csr_array(np.repeat(np.eye(40), 50, axis=0))
    found = fitted(X, 40, sketch=SketchOptions("countsketch", n_components=8))
    assert len(found.cluster_centers_) == 40
    assert found.inertia_ <= 1e-12


def test_fewer_centers_are_told_where_no_other_row_is_distinct(client, tmp_path):
    X = np.zeros((50_000, 5))
    X[7] = 1
    np.save(tmp_path / "one.npy", X)
    for executor in (2, client):
        kmeans = StreamKMeans(5, random_state=0, executor=executor)
        with pytest.warns(FewClustersWarning, match="2 clusters instead of 5: the data have only 2 distinct rows"):
            kmeans.fit(tmp_path / "one.npy")
        assert kmeans.inertia_ == 0


N_GROUPS, PROCESS = 23, 256 << 20


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """Groups of very different sizes, of rare flags and of log-normal values; one row in 200 is far away."""
    rng = np.random.default_rng(2)
    n_rows, width = 60_000, 10
    sizes = np.arange(1, N_GROUPS + 1) ** -2.5
    groups = rng.choice(N_GROUPS, n_rows, p=sizes / sizes.sum())
    chances = np.exp(rng.uniform(np.log(1e-4), np.log(0.9), (N_GROUPS, width))) * (rng.random((N_GROUPS, width)) < 0.4)
    flags = rng.random((n_rows, width)) < chances[groups]
    means, spread = rng.normal(0, 2, (N_GROUPS, width)), rng.uniform(0, 1.5, (N_GROUPS, width))
    values = np.exp(means[groups] + spread[groups] * rng.standard_normal((n_rows, width)))
    far = rng.random(n_rows) < 0.005
    values[far] *= np.exp(rng.uniform(0, 4, (far.sum(), 1)))
    X = np.hstack([flags, values])
    X = X[:, X.std(axis=0) > 0]
    path = tmp_path_factory.mktemp("heavy") / "x.npy"
    np.save(path, ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32))
    return str(path)


def smallest_limit(path):
    with pytest.raises(MemoryLimitError) as refused:
        StreamKMeans(N_GROUPS, memory_limit=with_process_memory(1, PROCESS)).plan_for(open_source(path))
    return with_process_memory(refused.value.needed_bytes, PROCESS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_groups_that_a_small_sample_missed_are_found_at_the_smallest_limit(heavy, seed):
    free = StreamKMeans(N_GROUPS, random_state=seed, executor=2).fit(heavy)
    small = StreamKMeans(N_GROUPS, random_state=seed, executor=2, memory_limit=smallest_limit(heavy)).fit(heavy)
    assert small.plan_.few_sampled
    assert small.inertia_ <= 1.01 * free.inertia_


NANOSECONDS = 1_704_067_200_000_000_000  # of 2024


@pytest.mark.parametrize(
    ("n_each", "width"), [(250, 500), pytest.param(20_000, 4000, marks=(pytest.mark.slow, pytest.mark.full))]
)
def test_times_in_nanoseconds_gain_nothing_by_the_rounding_of_means(n_each, width):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), n_each)
    times = NANOSECONDS + groups * 4 * width + rng.integers(0, width, len(groups))
    with pytest.warns(StreamkmWarning, match=r"integers of 64 bits from 2\^53 on") as told:
        found = StreamKMeans(4, random_state=0).fit(times[:, None])
    assert len(told) == 1
    assert found.possible_gain_ == 0
    assert found.n_passes_ == 2
    assert len(set(zip(groups.tolist(), found.labels_.tolist(), strict=True))) == 4


def test_no_gain_is_above_all():
    assert GainEstimate(311.6).gain == 1
    assert GainEstimate(0.0, 0.2).gain == 0.2


@pytest.mark.parametrize(("offset", "metric"), [(10_000, "euclidean"), (100, "cosine"), (10_000, "cosine")])
def test_repeated_float32_rows_gain_nothing_by_their_own_rounding(offset, metric):
    rows = np.repeat(np.random.default_rng(0).normal(size=(4, 5)) + offset, 300, axis=0).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamkmWarning)
        found = StreamKMeans(4, random_state=0, metric=metric).fit(rows)
    assert found.possible_gain_ == 0
    assert found.n_passes_ == 2
