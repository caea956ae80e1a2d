"""A pass that gathers rows of chosen clusters, drawn evenly within each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.table import CenterTable
from streamkm.cluster.model import Model
from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.kernels.intrinsics.hashing import hash_places
from streamkm.passes.context import PassContext
from streamkm.passes.reader import Walk, Weighed

Members = tuple[Matrix, NDArray[np.int32], NDArray[np.float64]]
"""Rows, their clusters, and their weights (0,) or (r,)."""


def gather_pass(
    context: PassContext,
    model: Model,
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    *,
    shares: NDArray[np.float64],
    seed: int,
) -> Members:
    """Read all rows once more and keep a share of those of some clusters; which, a hash of their places tells.

    Parameters
    ----------
    chunk_rows : int64 (chunks,)
        Rows of each chunk.
    shares : float64 (k,)
        Of each cluster's rows; 0: none.
    seed : int

    Returns
    -------
    Members
        In the model's space, in the order of the source. At least one cluster has a share above 0.
    """
    shared = context.share(model, model.table(), shares, seed)
    parts: list[Members] = []
    for part in context.executor.map(stage.name, _gather_item, context.items(chunk_rows), shared):
        stage.advance()
        if len(part[1]):
            parts.append(part)
    stage.rows, stage.read_bytes = int(chunk_rows.sum()), context.walk.source.take_read_bytes()
    return joined_members(parts, len(model.centers[0]))


def members_of(
    X: Matrix,
    places: NDArray[np.int64],
    labels: NDArray[np.int32],
    weights: NDArray[np.float64],
    shares: NDArray[np.float64],
    seed: int,
) -> Members:
    """The share of rows that `gather_pass` keeps, of rows in memory (n,)."""
    hashes = np.empty(len(places), np.int64)
    hash_places(np.uint64(seed), places, hashes)
    rows = np.flatnonzero((hashes + 0.5) * 2.0**-63 < shares[labels])
    return X[rows], labels[rows], weights[rows] if len(weights) else weights


def joined_members(parts: Sequence[Members], n_columns: int) -> Members:
    """All of them, one behind the other."""
    if not parts:
        return np.empty((0, n_columns)), np.empty(0, np.int32), np.empty(0)
    matrices, labels, weights = zip(*parts, strict=True)
    return stacked(matrices), np.concatenate(labels), np.concatenate(weights)


def _gather_item(item: Weighed, shared: tuple[Walk, Model, CenterTable, NDArray[np.float64], int]) -> Members:
    walk, model, table, shares, seed = shared
    rows, weights = walk.read_weighed(item)
    X = model.place(rows.X)
    return members_of(X, rows.places, table.labels(X), weights, shares, seed)
