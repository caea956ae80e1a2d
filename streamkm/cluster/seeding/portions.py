"""Starts for many clusters where memory does not hold all rows that they are searched on: in portions of the rows.

Coarse clusters of all rows that are held get centers by their share of the objective. Portions of coarse clusters are
worked on one after the other: rows are drawn from each, and as many centers as it gets are searched on them.
"""

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
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding.search_set import BATCH_ROWS, Pool, centered, search_rows
from streamkm.cluster.seeding.two_level import quotas_of
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map, outputs
from streamkm.kernels.intrinsics.hashing import hash_places

COARSE_CENTERS, COARSE_ROWS = 4, 32  # centers for each coarse cluster, at least, and rows that it is found on
MOST_COARSE = 1 << 16  # coarse clusters: labels of all rows that are held take two bytes each
SPARE_DEVIATIONS = 6  # standard deviations of the number of drawn rows that there is room for beyond its mean

logger = logging.getLogger(__name__)

Search = Callable[[Block, int], NDArray[np.float64]]
"""Finds so many centers (at most k, m) on rows around the origin."""


def search_portions(
    sampled: Block, n_clusters: int, pool: Pool, search: Search, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Find centers to start from. A pass over all rows that are held with sqrt(k) centers, and one for each portion.

    Parameters
    ----------
    sampled : Block of s dense rows
        In random order.
    n_clusters : int
    pool : Pool
        With blocks, and a number of portions.
    search : callable
        Gets at most ``ceil(k / portions)`` centers to find on the rows of a portion.
    rng : Generator

    Returns
    -------
    centers : float64 (at most k, m)
    """
    assert pool.blocks is not None
    some, shift = centered(pool.blocks.executor, sampled)
    coarse = search(some, max(1, min(n_clusters // COARSE_CENTERS, sampled.n_rows // COARSE_ROWS, MOST_COARSE))) + shift
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
    """Coarse clusters in portions of at most `most` centers, but for single ones that get more; those without left out.

    Parameters
    ----------
    quotas : int64 (c,)
        Centers that each gets.
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
        labels, scores = self.table.lowest(block.X)
        d2 = np.maximum(scores + block.d2norms, 0.0)
        counted = block.weights > 0 if len(block.weights) else np.ones(block.n_rows, np.bool_)
        weighted = d2 * block.weights if len(block.weights) else d2
        shares = np.bincount(labels, weighted, minlength=n_coarse).astype(np.float64)
        sizes = np.bincount(labels[counted], minlength=n_coarse).astype(np.int64)
        return labels.astype(np.uint16), shares, sizes


@dataclass(frozen=True, slots=True)
class PortionRows(Map[tuple[NDArray[Any], NDArray[np.float64]]]):
    """Rows of each block, drawn with the chances of their coarse clusters, and weights that keep sums unbiased.

    Attributes
    ----------
    chances : float64 (c,)
    seed : int
        Of the hash of places; below 2^64.
    """

    chances: NDArray[np.float64]
    seed: int

    def output(self, rows: HeldBlock) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Draw from one block, whose labels are coarse clusters."""
        block, labels = rows.block, rows.labels
        assert labels is not None
        hashes, own = np.empty(len(labels), np.int64), self.chances[labels]
        hash_places(np.uint64(self.seed), rows.place + np.arange(len(labels)), hashes)
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
