"""Centers laid out so that a product of a row with a table scores all of them; shifted and scaled against rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import safe_scale
from streamkm.core.matrix import aligned_empty, as_working
from streamkm.kernels.centers import nearest
from streamkm.kernels.centers.layout import count_moved, lay_out, move_csr
from streamkm.kernels.cluster import distances
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.products import load_rows, panel_stop

TILED_BYTES = 1 << 23  # of a table: larger ones lie in tiles for sparse rows, which each fit the third-level cache
TILE_COLUMNS = 64
FAR = 8.0  # times as far from the origin as from each other: rows are moved before they are rounded


@dataclass(frozen=True, slots=True)
class PackedCenters:
    """Centers laid out for one kind of rows and one dtype of products.

    With s the mean of the centers (0 around the origin) and a the part of it that rows are moved by, a row x becomes
    ``z = (x - a) * scale``, and ``z @ table + bias`` is ``scale^2 (||x - c||^2 - ||x - s||^2)`` for every c; the term
    in s is common to all centers. Subtracting s keeps products small for data far from the origin; moving rows too
    keeps the rounding small if they lie farther out than centers lie apart.
    """

    # float32 or float64 (m * p,), ``-2 scale (C - s)^T``, of p columns: k, padded to whole vectors with columns ``-2
    # scale s``. For sparse rows in tiles of `width` columns, (m, width) one after the other, the last of what is left;
    # for dense rows in the panels of `products`
    table: NDArray[Any]
    width: int
    bias: NDArray[Any]  # same dtype (p,), infinite where padded
    moved: NDArray[np.float64]  # (m,) or (0,), a; empty where it is 0
    columns: NDArray[np.int64]  # (u,): features that sparse rows are moved in
    scale: float  # a power of two, 1 unless squares of the numbers would leave the range of the dtype
    slope: float  # a score is wrong by at most ``slope * |z| + slack`` for each rounding of a product's sum
    slack: float

    @classmethod
    def of(
        cls,
        centers: NDArray[np.float64],
        dtype: np.dtype[Any],
        prices: NDArray[np.float64],
        *,
        around_origin: bool,
        sparse: bool,
    ) -> PackedCenters:
        """Lay out centers (k, m); prices (k,) or (0,) are added to squared distances."""
        n_clusters, n_components = centers.shape
        padded = -(-n_clusters // LANES) * LANES
        shift, moved, columns = np.zeros(n_components), np.zeros(0), np.zeros(0, np.int64)
        if not around_origin:
            shift = centers.mean(axis=0)
        spread, far = center_spread(centers, shift)
        if not around_origin and sparse:
            columns = np.flatnonzero(np.abs(shift) > FAR * spread)
            if len(columns):
                moved = np.zeros(n_components)
                moved[columns] = shift[columns]
        elif far > FAR * spread:
            moved = shift
        scale = safe_scale(max(spread, 0.0 if len(moved) else far, np.sqrt(prices.max(initial=0.0))))
        table = aligned_empty((n_components * padded,), dtype)
        width = TILE_COLUMNS if sparse and table.nbytes > TILED_BYTES else padded
        exact = np.empty(n_clusters)
        bias = np.full(padded, np.inf, dtype)
        first = 0
        while first < padded:
            stop = min(first + width, padded) if sparse else panel_stop(first, padded, dtype.itemsize)
            tile = table[first * n_components : stop * n_components].reshape(n_components, stop - first)
            lay_out(centers, shift, moved if len(moved) else shift * 0.0, scale, first, tile, exact)
            first = stop
        if len(prices):
            exact += prices * scale**2
        bias[:n_clusters] = exact
        rounding = float(np.finfo(dtype).eps) / 2
        slack = nearest.ROUNDINGS * rounding * float(np.abs(exact).max(initial=0.0))
        return cls(table, width, bias, moved, columns, scale, 2 * rounding * spread * scale, slack)

    def columns_of(self, n_clusters: int, n_components: int) -> NDArray[Any]:
        """The first columns of a table for dense rows, as rows (k, m)."""
        padded, first = len(self.bias), 0
        out = np.empty((n_clusters, n_components), self.table.dtype)
        while first < n_clusters:
            stop = panel_stop(first, padded, self.table.itemsize)
            panel = self.table[first * n_components : stop * n_components].reshape(n_components, stop - first)
            out[first:stop] = panel.T[: n_clusters - first]
            first = stop
        return out

    def ready(self, X: NDArray[Any]) -> NDArray[Any]:
        """Rows as they are multiplied: moved, scaled, of the table's dtype."""
        dtype = self.table.dtype
        if X.dtype == dtype and not len(self.moved) and self.scale == 1:
            return X
        out = np.empty(X.shape, dtype)
        load_rows(X, 0, len(X), 0, self.moved, self.scale, out)
        return out


def moved_rows(X: Any, layout: PackedCenters, dtype: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """CSR rows as a layout wants them (`indptr`, `indices`, values of a dtype); copies only what changes."""
    if len(layout.columns):
        return moved_csr(X, layout.columns, layout.moved, layout.scale, dtype)
    data = X.data if layout.scale == 1 else X.data.astype(np.float64) * layout.scale
    return X.indptr, X.indices, data.astype(dtype, copy=False)


def moved_csr(
    X: Any, columns: NDArray[np.int64], moved: NDArray[np.float64], scale: float, dtype: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """CSR rows less an offset in a few features, which all rows then store; times `scale`.

    `X`: csr_array (n, at most m) with distinct indices in a row. `columns`: int64 (u,), the features, ascending.
    `moved`: float64 (m,), the offset. Returns indptr (n + 1,), indices, data.
    """
    places = np.full(len(moved), -1, np.int32)
    places[columns] = np.arange(len(columns))
    indptr = np.empty(X.shape[0] + 1, np.int64)
    count_moved(X.indptr, X.indices, places, len(columns), indptr)
    indices, data = np.empty(indptr[-1], X.indices.dtype), np.empty(indptr[-1], dtype)
    offsets = moved[columns]
    move_csr(X.indptr, X.indices, as_working(X.data), places, columns, offsets, scale, indptr, indices, data)
    fits = indptr[-1] <= np.iinfo(indices.dtype).max  # then kernels need not be compiled for another pair of dtypes
    return indptr.astype(indices.dtype if fits else np.int64, copy=False), indices, data


def center_spread(centers: NDArray[np.float64], shift: NDArray[np.float64]) -> tuple[float, float]:
    """The largest distance of a center to a point, and that point's distance to the origin."""
    largest = max(float(centers.max(initial=0.0)), -float(centers.min(initial=0.0)))  # without a copy of them
    unit = safe_scale(largest)  # squares of tiny numbers would be 0
    point, d2, norm = shift[None] * unit, np.empty(len(centers)), np.empty(1)
    distances.d2_dense(centers if unit == 1 else centers * unit, np.zeros(len(centers), np.int32), point, d2)
    distances.d2norms_dense(point, norm)
    return float(np.sqrt(d2.max(initial=0.0))) / unit, float(np.sqrt(norm[0])) / unit
