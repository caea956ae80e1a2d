"""Products of matrices by the kernel of `products`: the same bits whatever other rows, threads or BLAS there are.

Maps of rows (projections, directions, kernel values, random features) and sums of outer products use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkm.core.matrix import aligned_empty
from streamkm.kernels.intrinsics.forms import LINE_BYTES
from streamkm.kernels.intrinsics.products import BLOCK_ROWS, multiply, panel_stop

NONE = np.empty(0)
BATCH_ENTRIES = 1 << 18  # of rows that are turned to floats at a time


@dataclass(frozen=True, slots=True)
class Panels:
    """A matrix (m, c) laid out for products with rows."""

    table: Any  # float32 or float64 (m * p,), see `products`; p is c padded to whole vectors
    n_features: int  # m
    n_columns: int  # c

    @classmethod
    def of(cls, matrix: Any) -> Panels:
        """Lay out a matrix (m, c) of float32 or float64. O(m * c)."""
        n_features, n_columns = matrix.shape
        lanes = LINE_BYTES // matrix.itemsize
        padded = -(-n_columns // lanes) * lanes
        table = aligned_empty((n_features * padded,), matrix.dtype)
        first = 0
        while first < padded:
            stop = panel_stop(first, padded, matrix.itemsize)
            panel = table[first * n_features : stop * n_features].reshape(n_features, stop - first)
            columns = matrix[:, first:stop]
            panel[:, : columns.shape[1]] = columns
            panel[:, columns.shape[1] :] = 0
            first = stop
        return cls(table, n_features, n_columns)

    def product(self, X: Any, *, shift: Any = NONE, out: Any = None, add: bool = False, n_columns: int = 0) -> Any:
        """Multiply rows: ``out (+)= (X - shift) @ matrix``. O(n * m * c).

        Parameters
        ----------
        X : ndarray (n, m) of any real dtype; rows are turned to the matrix's dtype block by block
        shift : float64 (m,), optional; taken from the rows, in float64, before they are rounded
        out : ndarray (n, at least c) of the matrix's dtype, C-contiguous, optional; where to write
        add : bool; whether to add to what is there
        n_columns : int, optional; the first so many columns only

        Returns
        -------
        ndarray (n, c)
        """
        wanted = n_columns or self.n_columns
        if out is None:
            out = np.empty((len(X), wanted), self.table.dtype)
        if X.dtype in (np.float32, np.float64):
            multiply(X, shift, self.table, wanted, add, out)
            return out
        n_batch = max(1, BATCH_ENTRIES // max(1, self.n_features))
        for start in range(0, len(X), n_batch):
            rows = X[start : start + n_batch]
            rows = rows.astype(np.float32 if np.can_cast(X.dtype, np.float32) else np.float64)
            multiply(rows, shift, self.table, wanted, add, out[start : start + n_batch])
        return out


def add_outer_products(X: Any, sums: Any) -> None:
    """Add outer products of rows on and below the diagonal: ``sums += X.T @ X``. O(n * c^2).

    Parameters
    ----------
    X : float64 (n, c)
    sums : float64 (c, c); added to; above the diagonal it holds anything
    """
    panels, columns = Panels.of(X), X.T
    for first in range(0, len(columns), BLOCK_ROWS):
        stop = min(first + BLOCK_ROWS, len(columns))
        panels.product(columns[first:stop], out=sums[first:stop], add=True, n_columns=stop)
