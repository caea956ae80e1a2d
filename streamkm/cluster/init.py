"""Centers to start from, found on the sampled rows: seeding, Lloyd there, local search there.

Quality is lost in seeding, not in iterations: the best of a few cheap starts, improved by swaps on a sample, beats many
full starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.blocks import Block, row_d2norms
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.kmeans_plusplus import kmeans_plusplus, random_rows
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.ls_plusplus import ls_plusplus
from streamkm.cluster.split_merge import split_merge
from streamkm.compute import Executor
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, rows_between

SEED_ROWS_PER_CLUSTER = 20  # k-means++ itself sees that many; Lloyd and the search see all rows they are given
SMALLEST_SEED_ROWS = 5000
SEARCH_ROWS_PER_CLUSTER = 200  # with fewer, halves of clusters are noise; more make rounds slow, not better
SMALLEST_SEARCH_ROWS, LARGEST_SEARCH_ROWS = 10_000, 50_000
START_STEPS = 10  # of Lloyd after seeding
START_TOL = 1e-3
SEARCH_ROUNDS = 40
SWAPS_PER_CLUSTER = 4  # rows that LS++ draws, for each cluster


@dataclass(frozen=True, slots=True)
class Streams:
    """The named random streams of one run."""

    seeding: np.random.Generator
    search: np.random.Generator


Draw = Callable[[np.random.Generator], NDArray[np.float64]]
"""Gives centers to start from in the space of a block (k, m)."""


def start_centers(
    executor: Executor, sampled: Block, n_clusters: int, *, init: str | Draw, n_init: int, streams: Streams
) -> NDArray[np.float64]:
    """Find centers on sampled rows.

    Parameters
    ----------
    executor : Executor
        Of this process.
    sampled : Block of s rows
        In random order: every prefix is a sample too.
    n_clusters : int
        At most s.
    init : "k-means++", "ls++", "random", or a function that draws centers
        "k-means++": the best of `n_init` greedy seedings, each with a few Lloyd steps, then split-and-merge search.
        "ls++": the best of `n_init` greedy seedings, each improved by LS++ and a few Lloyd steps.
        "random" or a function: the best of `n_init` drawings, each with a few Lloyd steps.
    n_init : int

    Returns
    -------
    centers : float64 (at most k, m)
    """
    block, shift = _centered(sampled)
    pieces = LocalBlocks.of(executor, block)
    n_seeds = max(SMALLEST_SEED_ROWS, SEED_ROWS_PER_CLUSTER * n_clusters)
    seeds = prefix(block, n_seeds)
    best, best_inertia = None, np.inf
    for _ in range(n_init):
        if not isinstance(init, str):
            centers = init(streams.seeding) - shift
        elif init == "random":
            centers = random_rows(seeds, n_clusters, rng=streams.seeding)
        else:
            centers = kmeans_plusplus(seeds, n_clusters, rng=streams.seeding, executor=executor)
        if init == "ls++":
            centers = ls_plusplus(block, centers, n_steps=SWAPS_PER_CLUSTER * n_clusters, rng=streams.search)
        result = lloyd(pieces, centers, max_iter=START_STEPS, tol=START_TOL, accelerated=True)
        if init == "k-means++":
            result = split_merge(block, pieces, result, max_rounds=SEARCH_ROUNDS, rng=streams.search)
        if best is None or result.inertia < best_inertia:
            best, best_inertia = result.centers, result.inertia
    if best is None:
        raise ValueError(f"n_init={n_init}; needed: at least 1")
    return best + shift


def drawn_by(
    function: Callable[..., Any],
    rows: Matrix,
    n_clusters: int,
    placed: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Draw:
    """Draw centers by a user's function, as scikit-learn calls it: ``function(X, n_clusters, random_state=...)``.

    Parameters
    ----------
    rows : ndarray or csr_array (s, d)
        Sampled rows, which the function is given.
    placed : callable
        Brings its centers (k, d) to where clusters are looked for (k, m).
    """

    def draw(rng: np.random.Generator) -> NDArray[np.float64]:
        state = np.random.RandomState(int(rng.integers(2**32)))  # what such functions expect
        given = function(rows, n_clusters, random_state=state)
        centers = np.array(given.toarray() if sp.issparse(given) else given, np.float64, order="C")
        check_centers(centers, n_clusters, rows.shape[1])
        return placed(centers)

    return draw


def check_centers(centers: NDArray[np.float64], n_clusters: int, n_features: int | None = None) -> None:
    """Refuse centers to start from that are not k of d finite features.

    Raises
    ------
    InvalidParameterError
    """
    width = "features" if n_features is None else f"features={n_features:,}"
    fits = centers.ndim == 2 and len(centers) == n_clusters and n_features in (None, centers.shape[1])
    if not fits:
        raise InvalidParameterError(f"init has shape {centers.shape}; needed: (n_clusters={n_clusters}, {width})")
    if not np.isfinite(centers).all():
        raise InvalidParameterError("init holds NaN or infinity; needed: finite centers")


def search_rows(n_clusters: int) -> int:
    """How many sampled rows `start_centers` should be given."""
    wanted = min(LARGEST_SEARCH_ROWS, max(SMALLEST_SEARCH_ROWS, SEARCH_ROWS_PER_CLUSTER * n_clusters))
    return max(wanted, n_clusters)


def prefix(block: Block, n_rows: int) -> Block:
    """The first rows of a block, all if it has no more."""
    return Block(rows_between(block.X, 0, n_rows), block.d2norms[:n_rows], block.weights[:n_rows])


def _centered(block: Block) -> tuple[Block, NDArray[np.float64]]:
    """Dense rows less their mean, and the mean: float32 distances between rows far from the origin would be noise."""
    if sp.issparse(block.X):
        return block, np.zeros(block.X.shape[1])
    shift = block.X.mean(axis=0, dtype=np.float64)
    X = (block.X - shift).astype(block.X.dtype)
    return Block(X, row_d2norms(X), block.weights), shift
