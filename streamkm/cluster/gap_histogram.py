"""Histograms of rows by their distance to their center and by their gap to the second nearest, for each cluster.

Gathered while rows are assigned, at O(1) a row. Weights are added in the order of rows and states are joined in a fixed
tree, so that they have the same bits for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.kernels.cluster import gaps as kernels

FINE_BYTES = 4 << 20  # of a histogram with fine bins, at most
CELL_BYTES = 24
LEAST_SCALE, LARGEST_SCALE = 1e-100, 1e100  # whose squares and their inverses a float64 holds


@dataclass(frozen=True, slots=True)
class Bins:
    """Geometric bins of squared distances, or of gaps, in units of a squared scale.

    Attributes
    ----------
    n_bins : int
        The first holds what is below the first edge, the last what is beyond the last one.
    first : int
        The first edge is ``2^first``.
    split_bits : int
        There are ``2^split_bits`` bins, equally wide, between two powers of two.
    """

    n_bins: int
    first: int
    split_bits: int

    def edges(self) -> NDArray[np.float64]:
        """Edges between the bins (n_bins - 1,)."""
        octave, part = np.divmod(np.arange(self.n_bins - 1), 1 << self.split_bits)
        return np.ldexp(1.0 + part / (1 << self.split_bits), self.first + octave)


FINE = Bins(10, -2, 1), Bins(8, -3, 0)  # of squared distances, of gaps
COARSE = Bins(5, -2, 0), Bins(6, -3, 0)


@dataclass(frozen=True, slots=True)
class GapHistogram:
    """Cells of rows by cluster, squared distance to the nearest center, and gap.

    The gap of a row is the difference of its squared distances to the second nearest center and to the nearest. Each
    cell keeps its largest squared distance and its least gap. So it bounds both for all its rows, whatever its edges.

    Attributes
    ----------
    scales : float64 (k,)
        Units of the clusters' distances, fixed before the first row; see `histogram_scales`.
    weights : float64 (k, r, g)
        Weight of the rows of each cell.
    farthest : float64 (k, r, g)
        Largest squared distance of the rows of each cell; 0 without rows.
    least_gaps : float64 (k, r, g)
        Least gap of the rows of each cell; infinite without rows, or without a second center.
    """

    scales: NDArray[np.float64]
    weights: NDArray[np.float64]
    farthest: NDArray[np.float64]
    least_gaps: NDArray[np.float64]

    @classmethod
    def empty(cls, scales: NDArray[np.float64]) -> Self:
        """Of no rows; scales (k,) are those of `histogram_scales`."""
        distances, gaps = bins_of(len(scales))
        shape = (len(scales), distances.n_bins, gaps.n_bins)
        return cls(scales, np.zeros(shape), np.zeros(shape), np.full(shape, np.inf))

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return histogram_bytes(len(self.scales))

    def add(
        self,
        labels: NDArray[np.int32],
        d2: NDArray[np.float64],
        gaps: NDArray[np.float64],
        weights: NDArray[np.float64] = NO_WEIGHTS,
    ) -> None:
        """Add rows, in place. O(n).

        Parameters
        ----------
        labels : int32 (n,)
        d2 : float64 (n,)
            Squared distances to the centers of the labels.
        gaps : float64 (n,)
            How much larger those to the second nearest centers are; infinite where there are none. NaN, where it is not
            known, counts as 0.
        weights : float64 (n,) or (0,)
            Rows of weight 0 are left out.
        """
        kernels.add_gaps(labels, d2, gaps, weights, self.units(), self.grid(), *self.cells())

    def absorb(self, other: Self) -> Self:
        """With the rows of another histogram of the same clusters and scales, in the memory of this one."""
        first = self
        if not all(array.flags.writeable for array in self.cells()):  # as they came from a worker
            first = type(self)(self.scales, *(array.copy() for array in self.cells()))
        np.add(first.weights, other.weights, out=first.weights)
        np.maximum(first.farthest, other.farthest, out=first.farthest)
        np.minimum(first.least_gaps, other.least_gaps, out=first.least_gaps)
        return first

    def distances(self) -> NDArray[np.float64]:
        """Weight of the rows by cluster and bin of distance (k, r)."""
        return self.weights.sum(axis=2)

    def cells(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Weights, largest squared distances and least gaps, as kernels take them."""
        return self.weights, self.farthest, self.least_gaps

    def units(self) -> NDArray[np.float64]:
        """By which squared distances and gaps of each cluster are multiplied before their bins are found (k,)."""
        return self.scales**-2

    def grid(self) -> NDArray[np.int64]:
        """First edges and splits of both kinds of bins (2, 2), as kernels take them."""
        return np.array([(bins.first, bins.split_bits) for bins in bins_of(len(self.scales))], np.int64)


def histogram_scales(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half the distance of each center to the nearest other one (k,). O(k^2 * d), once before a pass.

    No other center can take over a row that is nearer than this to its center (Elkan 2003, lemma 1). A center without
    another one, or with one at the same place, gets the mean of the others' scales, or 1.

    References
    ----------
    Elkan, "Using the triangle inequality to accelerate k-means", ICML 2003.
    """
    halves = np.empty(len(centers))
    kernels.nearest_halves(np.ascontiguousarray(centers, np.float64), halves)
    usable = (halves >= LEAST_SCALE) & (halves <= LARGEST_SCALE)
    halves[~usable] = halves[usable].mean() if usable.any() else 1.0
    return halves


def bins_of(n_clusters: int) -> tuple[Bins, Bins]:
    """Bins of squared distances and of gaps: fewer where clusters are very many."""
    distances, gaps = FINE
    return FINE if n_clusters * distances.n_bins * gaps.n_bins * CELL_BYTES <= FINE_BYTES else COARSE


def histogram_bytes(n_clusters: int) -> int:
    """Bytes of a histogram."""
    distances, gaps = bins_of(n_clusters)
    return n_clusters * (8 + distances.n_bins * gaps.n_bins * CELL_BYTES)
