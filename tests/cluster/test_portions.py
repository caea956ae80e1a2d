"""Starts that are searched in portions of the rows: as good as on all at once, and what a plan says of their memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding.init import Streams, start_centers
from streamkm.cluster.seeding.search_set import SearchRows
from streamkm.cluster.seeding.two_level import SAMPLED, portions_of, search_portions
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.process import ONE_BLAS_THREAD
from streamkm.engine import open_executor
from tests.cluster.test_many_clusters import embeddings, objective
from tests.planning.test_plan import UnreadSource, plan

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
