"""Where clustering with many centers starts: coarse clusters, and k-means++ in each of them.

Greedy k-means++ costs O(k log k) a row. With about sqrt(k) coarse clusters, each of which gets centers by its share of
the objective, it costs O(sqrt(k) log k). Works on rows in memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import NO_WEIGHTS, Block, rows_by_label
from streamkm.cluster.seeding.kmeans_plusplus import Draws, kmeans_plusplus, seeded
from streamkm.core.matrix import rows_between
from streamkm.engine import Executor

COARSE_ROWS = 200  # for each coarse cluster, that they are found on
COARSE_STEPS = 5  # of Lloyd's algorithm


def two_level_plusplus(
    block: Block, n_clusters: int, *, rng: np.random.Generator, executor: Executor
) -> NDArray[np.float64]:
    """Choose rows as initial centers by k-means++ in coarse clusters. O(n * m * sqrt(k) * log(k)).

    Parameters
    ----------
    block : Block of n dense rows around the origin, in random order
    n_clusters : int
        At most the number of rows.
    rng : Generator
    executor : Executor
        Of this process.

    Returns
    -------
    centers : float64 (at most k, m)
        Fewer where coarse clusters have fewer distinct rows than centers they should get; their places are left to
        Lloyd's algorithm: the first center is repeated.
    """
    coarse = coarse_centers(block, int(np.sqrt(n_clusters)), rng=rng, executor=executor)
    pieces = LocalBlocks.of(executor, block)
    found = executor.each(
        "seed", _measured, pieces.handles, NearestCenters.build(coarse, block.X.dtype, around_origin=True)
    )
    labels, d2 = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order, starts = rows_by_label(labels, len(coarse))
    shares = np.bincount(labels, d2, minlength=len(coarse)).astype(np.float64)
    quotas = quotas_of(shares, np.diff(starts), n_clusters)
    tasks = [
        (order[start:stop], int(quota), int(seed))
        for start, stop, quota, seed in zip(
            starts[:-1], starts[1:], quotas, rng.integers(2**63, size=len(coarse)), strict=True
        )
        if quota
    ]
    chosen = np.concatenate(executor.each("seed", _seeded, tasks, block))
    return np.concatenate([chosen, np.repeat(chosen[:1], n_clusters - len(chosen), axis=0)])


def coarse_centers(block: Block, n_coarse: int, *, rng: np.random.Generator, executor: Executor) -> NDArray[np.float64]:
    """Centers of coarse clusters, on the first of some rows around the origin (at most n_coarse, m)."""
    n_rows = COARSE_ROWS * n_coarse
    some = Block(rows_between(block.X, 0, n_rows), block.d2norms[:n_rows], block.weights[:n_rows])
    coarse = kmeans_plusplus(some, min(n_coarse, some.n_rows), rng=rng, executor=executor)
    return lloyd(LocalBlocks.of(executor, some), coarse, max_iter=COARSE_STEPS, tol=0).centers


def quotas_of(shares: NDArray[np.float64], sizes: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
    """How many centers each part gets: by its share, at least 1 if it has rows, at most as many as rows (p,).

    Parameters
    ----------
    shares : float64 (p,)
        Not negative.
    sizes : int64 (p,)
        Rows; `n_clusters` at most in all, and not less than there are parts with rows.
    """
    quotas = np.minimum(1, sizes)
    while (left := n_clusters - int(quotas.sum())) > 0:
        room = sizes - quotas
        wanted = np.where(room > 0, np.maximum(shares, np.finfo(float).tiny), 0.0)
        exact = np.minimum(room, left * wanted / wanted.sum())
        quotas = quotas + np.floor(exact).astype(np.int64)
        if not np.floor(exact).any():
            first = np.argsort(-(exact - np.floor(exact)), kind="stable")
            first = first[room[first] > 0][:left]
            quotas[first] += 1
    return quotas


def _measured(piece: Block, table: NearestCenters) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Labels and weighted squared distances of rows."""
    labels, scores = table.lowest(piece.X)
    d2 = np.maximum(scores + piece.d2norms, 0.0)
    return labels, d2 * piece.weights if len(piece.weights) else d2


def _seeded(task: tuple[NDArray[np.int64], int, int], block: Block) -> NDArray[np.float64]:
    """Greedy k-means++ on some rows."""
    rows, n_clusters, seed = task
    rng = np.random.default_rng(seed)
    weights = block.weights[rows] if len(block.weights) else NO_WEIGHTS
    shares = rng.random((n_clusters, 2 + int(np.log(n_clusters))))
    mass = np.cumsum(weights) if len(weights) else np.arange(1.0, len(rows) + 1)
    first = int(np.searchsorted(mass, rng.random() * mass[-1]).clip(0, len(rows) - 1))
    return seeded(Draws(first, shares), Block(block.X[rows], block.d2norms[rows], weights))
