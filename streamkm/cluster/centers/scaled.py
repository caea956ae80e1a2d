"""Centers of an epoch over CSR rows: a move costs what the entries of the rows cost, not what all centers do.

Each center is a number times a vector. Never sees blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.packed import FAR, TILE_COLUMNS, TILED_BYTES, center_spread
from streamkm.cluster.rows import safe_scale
from streamkm.core.matrix import aligned_empty, as_working
from streamkm.kernels.centers.layout import lay_out
from streamkm.kernels.centers.scaled import move_scaled, nearest_scaled
from streamkm.kernels.cluster.totals import mean_row
from streamkm.kernels.intrinsics.lanes import LANES


@dataclass(frozen=True, slots=True)
class ScaledCenters:
    """Centers ``scales[:, None] * vectors``, and a table of them that follows their moves."""

    vectors: NDArray[np.float64]  # (k, m): C-contiguous
    scales: NDArray[np.float64]  # (k,)
    d2norms: NDArray[np.float64]  # (k,): squared norms of the vectors
    # float32 or float64 (m * p,), ``-2 * vectors.T``, in tiles of `width` columns; of float64 where the squares of
    # float32 would not do, or where centers lie far from the origin
    table: NDArray[Any]
    width: int

    @classmethod
    def of(cls, centers: NDArray[np.float64]) -> ScaledCenters:
        """Copy and lay out centers (k, m). O(k * m)."""
        vectors = np.array(centers, np.float64, order="C")
        (n_clusters, n_features), mean = vectors.shape, np.empty(vectors.shape[1])
        mean_row(vectors, mean)
        spread, far = center_spread(vectors, mean)
        exact = far > FAR * spread or safe_scale(max(spread, far)) != 1
        padded = -(-n_clusters // LANES) * LANES
        table = aligned_empty((n_features * padded,), np.dtype(np.float64 if exact else np.float32))
        width = TILE_COLUMNS if table.nbytes > TILED_BYTES else padded
        origin, d2norms = np.zeros(n_features), np.empty(n_clusters)
        for first in range(0, padded, width):
            stop = min(first + width, padded)
            tile = table[first * n_features : stop * n_features].reshape(n_features, stop - first)
            lay_out(vectors, origin, origin, 1.0, first, tile, d2norms)
        return cls(vectors, np.ones(n_clusters), d2norms, table, width)

    @property
    def n_clusters(self) -> int:
        """Clusters, k."""
        return len(self.vectors)

    def centers(self) -> NDArray[np.float64]:
        """The centers (k, m), in the memory of the vectors, which are lost."""
        self.vectors[:] *= self.scales[:, None]
        return self.vectors

    def labels(self, X: Any, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Nearest centers of some CSR rows (r,), as far as products of the table's dtype tell. O(nnz * k) of these."""
        dtype, n_columns = self.table.dtype, len(self.table) // self.vectors.shape[1]
        scales, bias = np.zeros(n_columns, dtype), np.full(n_columns, np.inf, dtype)
        scales[: self.n_clusters] = self.scales
        bias[: self.n_clusters] = self.scales * (self.scales * self.d2norms)
        found, scores = np.empty(len(rows), np.int32), np.empty(len(rows), dtype)
        if X.dtype != dtype:
            X, rows = X[rows].astype(dtype), np.arange(len(rows))
        nearest_scaled(X.indptr, X.indices, X.data, rows, self.table, self.width, scales, bias, found, scores)
        return found

    def move(
        self,
        X: Any,
        weights: NDArray[np.float64],
        members: tuple[NDArray[np.int64], NDArray[np.int64]],
        clusters: tuple[int, int],
        rate: float,
        crossed: NDArray[np.float64],
    ) -> None:
        """Move some clusters' centers towards the means of their CSR rows, by a share of the way. O(nnz) of these rows.

        `members`: int64 arrays, rows in the order of their clusters, and where those of each cluster start (k + 1,).
        `clusters`: (int, int), the first, and where to stop: threads may each take some. `crossed`: float64 (k,),
        written for these; see `move_scaled`.
        """
        (order, starts), (first, stop) = members, clusters
        given = (X.indptr, X.indices, as_working(X.data), weights, order, starts[first : stop + 1], first, rate)
        move_scaled(*given, self.vectors, self.scales, self.d2norms, self.table, self.width, crossed)
