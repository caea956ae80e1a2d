"""Starts that are searched in portions of the rows, with the memory of a plan; LS++ against a twin in loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding import init as starting
from streamkm.cluster.seeding.init import Streams, start_centers
from streamkm.cluster.seeding.kmeans_plusplus import TRIALS, ls_plusplus, random_rows
from streamkm.cluster.seeding.search_set import SearchRows
from streamkm.cluster.seeding.two_level import SAMPLED, portions_of, search_portions
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.process import ONE_BLAS_THREAD
from streamkm.engine import open_executor
from tests import naive
from tests.cluster.test_many_clusters import embeddings, objective
from tests.planning.test_plan import UnreadSource, plan
from tests.tables import cases

K = FEWEST_CENTERS + 88


@pytest.fixture(autouse=True)
def one_thread():
    """BLAS as it is in a fit."""
    with ONE_BLAS_THREAD:
        yield


def in_blocks(executor, X, weights=NO_WEIGHTS, n_blocks=7):
    cuts = np.linspace(0, len(X), n_blocks + 1).astype(int)
    parts = [slice(*cut) for cut in pairwise(cuts)]
    held = tuple(Block(X[part], row_d2norms(X[part]), weights[part]) for part in parts)
    whole = Block(X, row_d2norms(X), weights)
    totals = whole.total_weight(), whole.total_d2norm(), whole.largest_d2norm()
    return Blocks(executor, held, len(X), X.shape[1], X.dtype, *totals, True)


def started(X, n_portions, *, weights=NO_WEIGHTS, n_threads=1, most=None):
    with open_executor(n_threads) as executor:
        some = Block(X[:3000], row_d2norms(X[:3000]), weights[:3000])
        pool = SearchRows(in_blocks(executor, X, weights), most, n_portions)
        streams = Streams(np.random.default_rng(0), np.random.default_rng(1))
        return start_centers(executor, some, K, init="k-means++", n_init=1, streams=streams, pool=pool)


@pytest.mark.slow
def test_starts_in_portions_lead_where_others_do_whatever_the_threads():
    X = embeddings(24_000) + np.float32(0.2)
    starts = [started(X, 1), started(X, 4)]
    assert starts[1].shape == (K, X.shape[1])
    with open_executor(2) as executor:
        ends = [lloyd(in_blocks(executor, X), start, accelerated=True, max_iter=12, tol=1e-9) for start in starts]
    whole, parts = (objective(X, end.centers) for end in ends)
    assert parts < 1.01 * whole
    np.testing.assert_array_equal(started(X, 4, n_threads=2), starts[1])


def test_rows_without_weight_are_not_drawn():
    X = embeddings(24_000)
    weights = np.where(np.arange(len(X)) % 3, 1.0, 0.0)
    X[weights == 0] += 100
    found = started(X, 3, weights=weights)
    assert len(found) == K
    assert np.abs(found).max() < 2


def test_rows_and_centers_of_a_portion_are_no_more_than_there_is_room_for():
    X, seen = embeddings(60_000), []

    def found(rows, n_wanted):
        seen.append((rows.n_rows, n_wanted))
        return rows.X[:n_wanted].astype(np.float64)

    with open_executor(1) as executor:
        some = Block(X[:3000], row_d2norms(X[:3000]), NO_WEIGHTS)
        pool = SearchRows(in_blocks(executor, X), 32 * K, 4)
        centers = search_portions(some, K, pool, found, np.random.default_rng(0))
    assert len(centers) == K
    (n_rows, n_coarse), *drawn = seen
    assert n_rows == 3000
    assert n_coarse <= 3000 // SAMPLED
    assert len(drawn) >= 4
    most = -(-K // 4)
    for n_rows, n_wanted in drawn:
        assert n_wanted <= most
        assert n_rows <= 32 * most + 6 * np.sqrt(32 * most) + 1
    assert 0.8 * 32 * K < sum(n_rows for n_rows, _ in drawn) <= 1.05 * 32 * K


def test_what_makes_a_portion():
    quotas = np.array([3, 0, 4, 9, 1, 1, 5])
    found = [portion.tolist() for portion in portions_of(quotas, 7)]
    assert found == [[0, 2], [3], [4, 5, 6]]  # one that gets more is alone


def test_many_clusters_out_of_core_are_planned():
    """10,000,000 x 128 and 65,536 clusters, of which one copy takes 64 MiB: at least 32 rows a cluster are searched."""
    source = UnreadSource(10_000_000, 128)
    found = plan(source, n_clusters=65_536, memory_limit="2 GiB", n_threads=1)
    assert found.cluster_on == "spilled"
    assert found.peak_bytes <= found.limit_bytes
    assert found.memory_model.n_portions > 1
    assert found.memory_model.chosen.searched_rows >= 32 * 65_536
    with pytest.raises(MemoryLimitError) as caught:
        plan(source, n_clusters=65_536, memory_limit="700 MiB", n_threads=1)
    needed = str(caught.value).rpartition("raise memory_limit to ")[2].split(" MiB")[0].replace(",", "")
    assert int(needed) <= 2048
    assert plan(source, n_clusters=65_536, memory_limit=f"{needed} MiB", n_threads=1).drawn_rows
    roomy = plan(source, n_clusters=65_536, memory_limit="64 GiB", n_threads=1)
    assert roomy.memory_model.n_portions == 1


def block_of(X, weights=NO_WEIGHTS):
    return Block(X, row_d2norms(X), weights)


def cost(X, centers, weights=None):
    d2 = naive.nearest(X, centers)[1]
    return float(d2.sum() if weights is None else weights @ d2)


def naive_search(X, centers, n_steps, rng, weights):
    """The same draws; every exchange tried by itself."""
    centers, waiting = centers.copy(), []
    for _ in range(n_steps):
        mass = np.cumsum(weights * naive.nearest(X, centers)[1])
        if not waiting:
            waiting = [min(int(np.searchsorted(mass, u * mass[-1])), len(X) - 1) for u in rng.random(TRIALS)]
        row = waiting.pop(0)
        exchanged = []
        for out in range(len(centers)):
            trial = centers.copy()
            trial[out] = X[row]
            exchanged.append((cost(X, trial, weights), out))
        best, out = min(exchanged)
        if best < mass[-1]:
            centers[out] = X[row]
            waiting = []
    return centers


@cases("weighted", [False, True])
@cases("sparse", [False, True])
def test_makes_the_exchanges_of_the_definition(weighted, sparse):
    X, _ = make_blobs(150, centers=8, n_features=3, random_state=0)
    X = (X - X.mean(axis=0)).astype(np.float32)
    weights = np.random.default_rng(1).random(150) + 0.1 if weighted else np.ones(150)
    block = block_of(sp.csr_array(X) if sparse else X, weights if weighted else NO_WEIGHTS)
    start = X[:8].astype(np.float64)
    got = ls_plusplus(block, start, n_steps=40, rng=np.random.default_rng(5))
    wanted = naive_search(X.astype(np.float64), start, 40, np.random.default_rng(5), weights)
    np.testing.assert_allclose(got, wanted)
    assert cost(X, got) < 0.7 * cost(X, start)


@given(seed=st.integers(0, 2**32 - 1), n_clusters=st.integers(1, 6), n_steps=st.integers(0, 20))
def test_never_makes_it_worse(seed, n_clusters, n_steps):
    rng = np.random.default_rng(seed)
    X = rng.integers(-3, 4, (30, 2)).astype(np.float32)
    block = block_of(X)
    start = random_rows(block, n_clusters, rng=rng)
    found = ls_plusplus(block, start, n_steps=n_steps, rng=rng)
    assert found.shape == start.shape
    assert cost(X, found) <= cost(X, start)


def test_equal_rows_end_the_search():
    X = np.ones((20, 2), np.float32)
    found = ls_plusplus(block_of(X), np.ones((3, 2)), n_steps=10, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(found, np.ones((3, 2)))


@pytest.mark.parametrize(("estimator", "sparse"), [(StreamKMeans, False), (StreamKernelKMeans, True)])
def test_every_estimator_has_it(estimator, sparse, monkeypatch):
    X, y = make_blobs(900, centers=30, n_features=5, cluster_std=0.3, random_state=2)
    X = (X - X.min(axis=0)).astype(np.float32)
    steps, search = [], starting.ls_plusplus

    def watched(block, centers, *, n_steps, rng):
        steps.append(n_steps)
        return search(block, centers, n_steps=n_steps, rng=rng)

    monkeypatch.setattr(starting, "ls_plusplus", watched)
    fitted = estimator(30, init="ls++", n_init=1, random_state=0, progress=False)
    labels = fitted.fit_predict(sp.csr_array(X) if sparse else X)
    assert steps == [4 * 30]
    assert adjusted_rand_score(y, labels) > 0.9
