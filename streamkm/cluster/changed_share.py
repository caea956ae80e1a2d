"""A bound of the share of rows whose nearest center is another one since they were labelled, without reading them.

State of bounded size: a histogram of distances and gaps, which is moved along with the centers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.gap_histogram import GapHistogram, histogram_scales
from streamkm.kernels.centers.nearest import ROUNDINGS
from streamkm.kernels.cluster.moved_gaps import move_cells
from streamkm.kernels.intrinsics.products import DEPTH

DOUBLE_ROUNDING = 2.0**-50  # of a sum of d numbers, relative to its terms' sizes and for each of d + 16 of them


@dataclass(frozen=True, slots=True)
class GapError:
    """How far squared distances and gaps are from those of the given rows and centers: ``slope * r + slack`` at most.

    Attributes
    ----------
    slope, slack : float
        Of the distance r of a row to its center, and what is added.
    """

    slope: float = 0.0
    slack: float = 0.0

    @classmethod
    def of(cls, table: NearestCenters, *, n_entries: int | None = None) -> Self:
        """Of what `NearestCenters.labels` and `labels_and_lifted` tell of rows, by products of float32.

        A score is wrong by ``n u (2 S |x - a|)`` and 5 u of the largest bias, as `PackedCenters` says: u is 2^-24, S
        how far centers lie from their mean, n the roundings of a product's sum, and a the point that rows are moved by.
        A gap has two scores, and ``|x - a|`` is at most r plus the largest distance of a center to a.

        Parameters
        ----------
        n_entries : int, optional
            Stored entries of a row, at most, for CSR rows; None: the rows are dense.
        """
        layout = table.layout(np.float32, sparse=n_entries is not None)
        n_features = table.centers.shape[1]
        n_sums = min(DEPTH, n_features) + n_features // DEPTH if n_entries is None else n_entries + len(layout.columns)
        slope = 2 * (n_sums + ROUNDINGS) * layout.slope / layout.scale
        norms = np.linalg.norm(table.centers, axis=1)
        moved = np.linalg.norm(table.centers - layout.moved, axis=1) if len(layout.moved) else norms
        slack = 2 * layout.slack / layout.scale / layout.scale + slope * float(moved.max())
        return cls(slope, slack + double_rounding(n_features) * float(norms.max()) ** 2)


@dataclass(frozen=True, slots=True)
class ChangedShare:
    """A certified upper bound of the share of rows whose nearest center is another one since they were labelled.

    A row may keep its label if another center is equally near. What may have changed once stays counted. Each move
    replaces the distances and gaps of all cells by bounds of what they are now.

    Attributes
    ----------
    rows : GapHistogram
        The rows that are certain to have kept their center: bounds of their distances to it and of their gaps now.
    changed : float
        Weight of the others.

    References
    ----------
    Hamerly, "Making k-means even faster", SDM 2010, section 3: a bound of the gap to the second nearest center suffices
    for all centers. Elkan, "Using the triangle inequality to accelerate k-means", ICML 2003, lemma 1: a center twice as
    far away as a row cannot take it over. Instead of their triangle inequalities, `moved` uses the least gap of all
    points that have the known distance and gap, which is at least as large. On streams whose groups move the bound is
    3 to 14 times the true share, 4.3 times in the median; with all distances of every row it would be 3 to 13 times.
    """

    rows: GapHistogram
    changed: float = 0.0

    @classmethod
    def empty(cls, centers: NDArray[np.float64]) -> Self:
        """Of no rows, for centers (k, d)."""
        return cls(GapHistogram.empty(histogram_scales(centers)))

    @property
    def share(self) -> float:
        """The bound, as a share of the weight of all rows; 0 without rows."""
        total = self.changed + float(self.rows.weights.sum())
        return self.changed / total if total > 0 else 0.0

    def labelled(self, histogram: GapHistogram, error: GapError) -> Self:
        """With rows that were labelled by the present centers. O(k).

        Parameters
        ----------
        histogram : GapHistogram
            Of these rows and k clusters.
        error : GapError
            Of its squared distances and gaps.
        """
        _check_clusters(len(histogram.scales), len(self.rows.scales))
        weights, d2, gaps = histogram.cells()
        reach = error.slope / 2 + np.sqrt(d2 + error.slack + error.slope**2 / 4)  # at most r^2 = d2 + slope r + slack
        least = np.maximum(gaps - error.slope * reach - error.slack, 0.0)
        farthest = np.where(weights > 0, reach**2, 0.0)
        return replace(self, rows=_joined(self.rows, replace(histogram, farthest=farthest, least_gaps=least)))

    def moved(
        self, before: NDArray[np.float64], after: NDArray[np.float64], came_from: NDArray[np.int64]
    ) -> ChangedShare:
        """When centers have moved, some are new, and some are gone. O(k * k2 * d) and no table of their distances.

        Parameters
        ----------
        before : float64 (k, d)
            The present centers.
        after : float64 (k2, d)
            The centers from now on.
        came_from : int64 (k,)
            Position in `after` of each present center; -1 where it is gone: all its rows count as changed. Several
            centers may become one.

        Raises
        ------
        ValueError
            Shapes do not agree, or a position is not in `after`.
        """
        _check_clusters(len(before), len(self.rows.scales))
        _check_clusters(len(came_from), len(self.rows.scales))
        if before.shape[1] != after.shape[1]:
            raise ValueError(f"centers have {before.shape[1]} features before and {after.shape[1]} after they moved")
        if np.any(came_from < -1) or np.any(came_from >= len(after)):
            raise ValueError(f"positions of centers must be -1 or below {len(after)}, found {came_from.tolist()}")
        before, after = (np.ascontiguousarray(centers, np.float64) for centers in (before, after))
        came_from = np.ascontiguousarray(came_from, np.int64)
        rows = ChangedShare.empty(after).rows
        changed = move_cells(
            self.rows.cells(),
            before,
            after,
            came_from,
            _origins(before, after, came_from),
            rows.units(),
            rows.grid(),
            rows.cells(),
            double_rounding(before.shape[1]),
        )
        return ChangedShare(rows, self.changed + changed)

    def faded(self, factor: float) -> Self:
        """When each row weighs so many times as much."""
        return replace(self, rows=replace(self.rows, weights=factor * self.rows.weights), changed=factor * self.changed)

    def joined(self, other: Self) -> Self:
        """With other rows that have the same present centers."""
        _check_clusters(len(other.rows.scales), len(self.rows.scales))
        return replace(self, rows=_joined(self.rows, other.rows), changed=self.changed + other.changed)


def double_rounding(n_features: int) -> float:
    """Relative error, at most, of squared distances of centers, in float64."""
    return (n_features + 16) * DOUBLE_ROUNDING


def _joined(first: GapHistogram, second: GapHistogram) -> GapHistogram:
    """Rows of both; neither is changed."""
    return GapHistogram.empty(first.scales).absorb(first).absorb(second)


def _origins(
    before: NDArray[np.float64], after: NDArray[np.float64], came_from: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The center that each one came from: the nearest if there are several, -1 if there is none."""
    origins, kept = np.full(len(after), -1), np.flatnonzero(came_from >= 0)
    d2 = ((before[kept] - after[came_from[kept]]) ** 2).sum(axis=1)
    last_nearest = kept[np.argsort(-d2, kind="stable")]
    origins[came_from[last_nearest]] = last_nearest
    return origins


def _check_clusters(n_clusters: int, expected: int) -> None:
    if n_clusters != expected:
        raise ValueError(f"expected {expected} clusters, which the rows were labelled by, found {n_clusters}")
