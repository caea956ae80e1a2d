"""A pass that gathers rows of chosen clusters, drawn evenly within each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model, Space
from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map
from streamkm.kernels.intrinsics.hashing import hash_places
from streamkm.passes.assign import LABEL_BYTES
from streamkm.passes.context import PassContext
from streamkm.passes.reader import ValidRows
from streamkm.passes.sizes import FitSizes

GATHERED_COPIES = 3  # of the rows: those of each chunk, all in order, and those of clusters as their parts are found
Members = tuple[Matrix, NDArray[np.int32], NDArray[np.float64]]
"""Rows, their clusters, and their weights (0,) or (r,)."""


@dataclass(frozen=True, slots=True)
class Gather(Map[Members]):
    """Gather a share of the rows of some clusters, chosen by a hash of their places.

    Attributes
    ----------
    model : Model
    table : NearestCenters
        The model's.
    shares : float64 (k,)
        Share of each cluster's rows; 0: none.
    seed : int
    """

    model: Model
    table: NearestCenters
    shares: NDArray[np.float64]
    seed: int

    @staticmethod
    def memory(sizes: FitSizes, space: Space) -> PassMemory:
        """Memory of the gathered rows, half as many as are sampled at most, beside labels of all rows and centers."""
        gathered = GATHERED_COPIES * (sizes.kept_rows // 2) * sizes.rows.float_bytes(space)
        labels = LABEL_BYTES * sizes.rows.n_rows * sizes.labels
        return PassMemory(kept=gathered + labels + sizes.centers(sizes.width(space)).table_bytes)

    def output(self, rows: ValidRows) -> Members:
        """The gathered rows of a chunk, in the model's space."""
        X = self.model.place(rows.X)
        return members_of(X, rows.places, self.table.labels(X), rows.weights, self.shares, self.seed)


def gather_pass(
    context: PassContext,
    model: Model,
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    *,
    shares: NDArray[np.float64],
    seed: int,
) -> Members:
    """Read all rows once more; return the rows of `Gather` in order. At least one share is above 0."""
    gather = Gather(model, model.table(), shares, seed)
    parts = [part for part in context.outputs(gather, stage, chunk_rows) if len(part[1])]
    return joined_members(parts, len(model.centers[0]))


def members_of(
    X: Matrix,
    places: NDArray[np.int64],
    labels: NDArray[np.int32],
    weights: NDArray[np.float64],
    shares: NDArray[np.float64],
    seed: int,
) -> Members:
    """The same share of rows in memory (n,) as `gather_pass` gathers."""
    hashes = np.empty(len(places), np.int64)
    hash_places(np.uint64(seed), places, hashes)
    rows = np.flatnonzero((hashes + 0.5) * 2.0**-63 < shares[labels])
    return X[rows], labels[rows], weights[rows] if len(weights) else weights


def joined_members(parts: Sequence[Members], n_columns: int) -> Members:
    """Concatenate members."""
    if not parts:
        return np.empty((0, n_columns)), np.empty(0, np.int32), np.empty(0)
    matrices, labels, weights = zip(*parts, strict=True)
    return stacked(matrices), np.concatenate(labels), np.concatenate(weights)
