"""k-means++ for many clusters: on two levels, and in portions of centers that fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms, rows_by_label
from streamkm.cluster.seeding.kmeans_plusplus import Draws, kmeans_plusplus, seeded
from streamkm.cluster.seeding.search_set import BATCH_ROWS, SearchRows, centered, prefix, search_rows
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.passes import Map, outputs
from streamkm.kernels.intrinsics.hashing import hash_integers

COARSE_CENTERS, SAMPLED = 4, 32  # centers for each coarse cluster, at least, and rows that it is found on
MOST_COARSE = 1 << 16  # coarse clusters: labels of all rows that are held take two bytes each
SPARE_DEVIATIONS = 6  # standard deviations of the number of drawn rows that there is room for beyond its mean

logger = logging.getLogger(__name__)

Search = Callable[[Block, int], NDArray[np.float64]]
"""Finds up to k centers (at most k, m) on rows around the origin."""


def search_portions(
    sampled: Block, n_clusters: int, pool: SearchRows, search: Search, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Find initial centers (at most k, m) by a pass over all held rows with sqrt(k) centers, and one for each portion.

    `sampled`: in random order. `pool`: with blocks and a number of portions. `search`: finds at most ``ceil(k /
    portions)`` centers on a portion.
    """
    assert pool.blocks is not None
    some, shift = centered(pool.blocks.executor, sampled)
    coarse = search(some, max(1, min(n_clusters // COARSE_CENTERS, sampled.n_rows // SAMPLED, MOST_COARSE))) + shift
    del some
    labels, shares, sizes = _measured(pool.blocks, coarse)
    most = -(-n_clusters // pool.n_portions)
    room = np.minimum(sizes, most)
    quotas = quotas_of(shares, sizes if room.sum() < n_clusters else room, n_clusters)
    rows_each = min(search_rows(n_clusters, many=True), pool.most or pool.blocks.n_rows) / n_clusters
    chances = np.minimum(1.0, rows_each * quotas / np.maximum(1, sizes))
    found = []
    for clusters in portions_of(quotas, most):
        chosen = np.zeros(len(coarse))
        chosen[clusters] = chances[clusters]
        chosen *= min(1.0, rows_each * most / max(1.0, float(sizes @ chosen)))  # of one that gets more
        rows, offset = _drawn(pool.blocks, labels, chosen, float(sizes @ chosen), rng)
        n_wanted = int(quotas[clusters].sum())
        logger.debug("%d centers are searched on %d rows of %d coarse clusters", n_wanted, rows.n_rows, len(clusters))
        found.append(search(rows, min(n_wanted, rows.n_rows)) + offset)
        del rows
    return np.concatenate(found)


def portions_of(quotas: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """Group coarse clusters into portions of at most `most` centers by `quotas` (c,); larger single ones stand alone.

    Clusters without centers are left out.
    """
    portions: list[list[int]] = []
    filled = most
    for cluster in np.flatnonzero(quotas).tolist():
        if filled + quotas[cluster] > most:
            portions.append([])
            filled = 0
        portions[-1].append(cluster)
        filled += quotas[cluster]
    return [np.array(portion) for portion in portions]


@dataclass(frozen=True, slots=True)
class CoarseClusters(Map[tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.int64]]]):
    """Coarse clusters of the rows of each block, and their objectives and rows (c,) in it."""

    table: NearestCenters

    def output(self, rows: HeldBlock) -> tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.int64]]:
        """Those of one block."""
        block, n_coarse = rows.block, self.table.n_clusters
        labels, weighted = _nearest(block, self.table)
        counted = block.weights > 0 if len(block.weights) else np.ones(block.n_rows, np.bool_)
        shares = np.bincount(labels, weighted, minlength=n_coarse).astype(np.float64)
        sizes = np.bincount(labels[counted], minlength=n_coarse).astype(np.int64)
        return labels.astype(np.uint16), shares, sizes


@dataclass(frozen=True, slots=True)
class PortionRows(Map[tuple[NDArray[Any], NDArray[np.float64]]]):
    """Rows of each block, drawn with the chances of their coarse clusters, and weights that keep sums unbiased."""

    chances: NDArray[np.float64]  # (c,)
    seed: int  # of the hash of places; below 2^64

    def output(self, rows: HeldBlock) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Draw from one block, whose labels are coarse clusters."""
        block, labels = rows.block, rows.labels
        assert labels is not None
        hashes, own = np.empty(len(labels), np.int64), self.chances[labels]
        hash_integers(np.uint64(self.seed), rows.place + np.arange(len(labels)), hashes)
        picked = np.flatnonzero(hashes / 2.0**63 < own)
        if len(block.weights):
            picked = picked[block.weights[picked] > 0]
        weights = block.weights[picked] if len(block.weights) else np.ones(len(picked))
        return np.asarray(block.X)[picked], weights / own[picked]


def _measured(
    blocks: Blocks, coarse: NDArray[np.float64]
) -> tuple[list[NDArray[np.uint16]], NDArray[np.float64], NDArray[np.int64]]:
    """Coarse clusters of the rows of each block, and their objectives and rows (c,)."""
    labels, shares, sizes = [], np.zeros(len(coarse)), np.zeros(len(coarse), np.int64)
    clusters = CoarseClusters(NearestCenters.build(coarse, blocks.dtype, around_origin=True))
    for part, share, size in outputs(clusters, blocks.placed(), blocks.executor, Stage("seed")):
        labels.append(part)
        shares += share
        sizes += size
    return labels, shares, sizes


def _drawn(
    blocks: Blocks,
    labels: Sequence[NDArray[np.uint16]],
    chances: NDArray[np.float64],
    expected: float,
    rng: np.random.Generator,
) -> tuple[Block, NDArray[np.float64]]:
    """Rows in random order less their mean, and the mean; each drawn with the chance of its coarse cluster."""
    most = int(expected + SPARE_DEVIATIONS * np.sqrt(expected)) + 1
    X, weights = np.empty((most, blocks.n_components), blocks.dtype), np.zeros(most)
    places, n_rows = rng.permutation(most), 0
    draw = PortionRows(chances, int(rng.integers(2**63)))
    for part, own in outputs(draw, blocks.placed(labels), blocks.executor, Stage("draw")):
        here = places[n_rows : n_rows + len(own)]
        X[here], weights[here] = part[: len(here)], own[: len(here)]
        n_rows += len(here)
    empty = np.sort(places[n_rows:])
    last = np.setdiff1d(np.arange(n_rows, most), empty)
    empty = empty[empty < n_rows]
    X[empty], weights[empty] = X[last], weights[last]  # what lies behind goes where nothing came
    X, weights = X[:n_rows], weights[:n_rows]
    mean = X.mean(axis=0, dtype=np.float64)
    for start in range(0, n_rows, BATCH_ROWS):
        X[start : start + BATCH_ROWS] = X[start : start + BATCH_ROWS] - mean
    alike = n_rows > 0 and bool((weights == weights[0]).all())
    return Block(X, row_d2norms(X), NO_WEIGHTS if alike else weights), mean


COARSE_ROWS = 200  # for each coarse cluster, that they are found on
COARSE_STEPS = 5  # of Lloyd's algorithm


def two_level_plusplus(
    block: Block, n_clusters: int, *, rng: np.random.Generator, executor: Executor
) -> NDArray[np.float64]:
    """Choose rows as initial centers by k-means++ in coarse clusters. O(n * m * sqrt(k) * log(k)).

    `n_clusters`: at most the number of rows. If coarse clusters have fewer distinct rows than their quota, the first
    center is repeated, and Lloyd's algorithm moves the copies; at most k come back.
    """
    coarse = coarse_centers(block, int(np.sqrt(n_clusters)), rng=rng, executor=executor)
    pieces = LocalBlocks.of(executor, block)
    found = executor.each(
        "seed", _nearest, pieces.handles, NearestCenters.build(coarse, block.X.dtype, around_origin=True)
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
    """Centers of coarse clusters (at most n_coarse, m), on the first of some rows around the origin."""
    some = prefix(block, COARSE_ROWS * n_coarse)
    coarse = kmeans_plusplus(some, min(n_coarse, some.n_rows), rng=rng, executor=executor)
    return lloyd(LocalBlocks.of(executor, some), coarse, max_iter=COARSE_STEPS, tol=0).centers


def quotas_of(shares: NDArray[np.float64], sizes: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
    """Number of centers of each part (p,): by its share, at least 1 if it has rows, at most its rows.

    `shares`: float64 (p,), not negative. `sizes`: int64 (p,), rows; `n_clusters` is between the number of parts with
    rows and the sum of sizes.
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


def _nearest(piece: Block, table: NearestCenters) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
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
