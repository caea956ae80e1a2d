"""Cells of centers of few features, each of centers that lie near each other: most are too far from a row to matter.

The labels are those that a look at all centers gives, to the bit. Sees arrays only; `table` says when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import aligned_empty
from streamkm.kernels.centers import cells
from streamkm.kernels.centers.cells import CELL
from streamkm.kernels.centers.nearby import balanced_groups
from streamkm.kernels.intrinsics.products import block_room

MOST_FEATURES = 3  # of rows that cells serve
FEWEST_CENTERS = 8192  # that cells are worth it for, measured


@dataclass(frozen=True, slots=True)
class CenterCells:
    """Columns of a table of centers, in cells.

    Attributes
    ----------
    origin : float64 (m,)
        Scores are squared distances, less those from here, of rows as they are multiplied.
    cells : tuple of arrays
        As `cells.nearest_in_cells` takes them.
    """

    origin: NDArray[np.float64]
    cells: tuple[NDArray[Any], ...]

    @classmethod
    def of(cls, columns: NDArray[np.float32], bias: NDArray[np.float32], origin: NDArray[np.float64]) -> CenterCells:
        """Find cells. O(k * m * log(k)).

        Parameters
        ----------
        columns : float32 (k, m)
            Columns of the table: the scores of rows z are ``z @ columns.T + bias``.
        bias : float32 (k,)
        origin : float64 (m,)
        """
        (n_clusters, n_features), n_cells = columns.shape, -(-len(columns) // CELL)
        points = -0.5 * columns.astype(np.float64)
        order, starts = np.empty(n_clusters, np.int64), np.empty(n_cells + 1, np.int64)
        balanced_groups(points, n_cells, order, starts)
        sizes = np.diff(starts)
        cell_of = np.repeat(np.arange(n_cells), sizes)
        means = (np.add.reduceat(points[order], starts[:-1]) / sizes[:, None]).astype(np.float32)
        away = np.sqrt(np.square(points[order] - means[cell_of]).sum(axis=1))
        radii = np.maximum.reduceat(away, starts[:-1]) * (1 + (n_features + 16) * 2.0**-22)
        places = np.arange(n_clusters) + np.arange(n_cells).repeat(sizes) * CELL - starts[:-1].repeat(sizes)
        table = aligned_empty((n_cells, n_features, CELL), np.float32)
        table[:] = 0
        table[cell_of, :, places % CELL] = columns[order]
        filled, at = np.full(n_cells * CELL, np.inf, np.float32), np.zeros(n_cells * CELL, np.int32)
        filled[places], at[places] = bias[order], order
        own = np.empty(n_clusters, np.int32)
        own[order] = cell_of
        given = np.ascontiguousarray(means.T), radii.astype(np.float32), table.reshape(-1), filled, at, own
        return cls(origin, given)

    def nearest(
        self,
        X: NDArray[np.float32],
        slopes: tuple[float, float],
        slack: float,
        found: tuple[NDArray[Any], ...],
        likely: NDArray[np.int32] | None = None,
        *,
        seconds: bool = False,
    ) -> NDArray[np.bool_]:
        """As `CenterIndex.nearest`."""
        block, totals = block_room(self.cells[2], X.shape[1], CELL)
        block[:] = 0
        left = np.empty(len(X), np.bool_)
        begin = np.empty(0, np.int32) if likely is None else likely
        room = block, totals[0]
        cells.nearest_in_cells(X, self.origin, self.cells, slopes, slack, begin, room, seconds, *found, left)
        return left


def cells_bytes(n_clusters: int, width: int) -> int:
    """Memory that cells take, and finding them; 0 where there are none."""
    return 32 * n_clusters * (width + 1) if n_clusters >= FEWEST_CENTERS and width <= MOST_FEATURES else 0
