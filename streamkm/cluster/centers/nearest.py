"""Tables of centers laid out for the kernels: nearest centers for any rows, dense or CSR."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.index import LOOKED_UP_ROWS, CenterIndex, IndexParts, is_worth
from streamkm.cluster.centers.packed import PackedCenters, moved_rows
from streamkm.cluster.rows import NO_WEIGHTS, batch_rows, dense_batches
from streamkm.core.matrix import Matrix, as_working, working_dtype
from streamkm.kernels.centers import nearest
from streamkm.kernels.cluster import distances
from streamkm.kernels.intrinsics import products
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.products import BLOCK_ROWS

INDEXED_ROWS, KNOWN_ROWS = 4096, 1024  # of a call, that an index of the centers is made for, if parts of it are known
MOST_SECONDS = 4096  # centers of dense rows, of which the second nearest are told, too
MOST_SKIPPED = 16  # batches that are not looked up, where the index did not serve the one before
_LAYING_OUT = threading.Lock()

Searched: TypeAlias = tuple[NDArray[np.int32], NDArray[Any], NDArray[Any], NDArray[np.bool_]]
"""Labels, scores, second scores, and which rows are doubtful; each (n,)."""


@dataclass(frozen=True, slots=True)
class NearestCenters:
    """Centers, laid out for nearest-center kernels when rows come."""

    centers: NDArray[np.float64]  # (k, m): C-contiguous
    dtype: np.dtype[Any]  # float32 or float64, of scores
    around_origin: bool  # scores are ``||x - c||^2 - ||x||^2``: for rows that lie around the origin
    laid_out: dict[Any, Any]  # layouts, by their purpose
    known: IndexParts | None = None
    # (k,) or (0,): at least 0, added to squared distances
    prices: NDArray[np.float64] = field(default_factory=lambda: NO_WEIGHTS)

    @classmethod
    def build(
        cls,
        centers: NDArray[np.float64],
        dtype: Any,
        *,
        around_origin: bool = False,
        index: IndexParts | None = None,
        prices: NDArray[np.float64] = NO_WEIGHTS,
    ) -> NearestCenters:
        """Take centers (k, m) for scores of a dtype, and the parts of their index, if known."""
        return cls(np.ascontiguousarray(centers), np.dtype(dtype), around_origin, {}, index, prices)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.centers, self.dtype, self.around_origin, self.known, self.prices

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        names = ("centers", "dtype", "around_origin", "known", "prices", "laid_out")
        for name, value in zip(names, (*state, {}), strict=True):
            object.__setattr__(self, name, value)

    @property
    def n_clusters(self) -> int:
        """Clusters, k."""
        return self.centers.shape[0]

    def layout(self, dtype: Any, *, sparse: bool) -> PackedCenters:
        """The centers laid out for dense or CSR rows and products of a dtype."""
        key = (np.dtype(dtype), sparse)
        return self._made(
            key,
            lambda: PackedCenters.of(
                self.centers, key[0], self.prices, around_origin=self.around_origin, sparse=sparse
            ),
        )

    def center_norms(self) -> NDArray[np.float64]:
        """Squared norms of the centers (k, 2): float64 value and rounding error."""
        return self._made("norms", lambda: center_norms(self.centers))

    def index(self) -> CenterIndex:
        """The index of the centers, for dense rows and products of float32."""
        layout = self.layout(np.float32, sparse=False)

        def make() -> CenterIndex:
            columns, bias = layout.columns_of(*self.centers.shape), layout.bias[: self.n_clusters]
            return CenterIndex.of(columns, bias, self.known)

        return self._made("index", make)

    def _index_for(self, X: NDArray[Any], layout: PackedCenters, *, guessed: bool) -> CenterIndex | None:
        """The index, for products of float32, if it is there already or worth it for these rows."""
        if layout.table.dtype != np.float32 or not len(X):
            return None
        enough = len(X) >= (INDEXED_ROWS if self.known is None else KNOWN_ROWS)
        worth = enough and is_worth(*self.centers.shape, guessed=guessed)
        return self.index() if worth or "index" in self.laid_out else None

    def _made(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the object cached under a key, or make it once for all threads."""
        with _LAYING_OUT:
            if key not in self.laid_out:
                self.laid_out[key] = make()
            return self.laid_out[key]

    def nearest(self, X: Matrix) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """Find every row's nearest center, as far as products of the table's dtype tell.

        Returns labels int32 (n,); scores (n,): squared distance to the nearest center less ``||x - s||^2``, s the mean
        of the centers, or 0 around the origin; second scores (n,), infinite if k is 1.
        """
        layout = self.layout(self.dtype, sparse=not isinstance(X, np.ndarray))
        labels, scores, seconds, _ = self._search(X, layout, -1.0, all_centers=True)
        return labels, scores, seconds

    def lowest(self, X: Matrix, likely: NDArray[np.int32] | None = None) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Labels and scores of `nearest`, faster with many centers; the more of `likely` (n,) is right, the faster."""
        layout = self.layout(self.dtype, sparse=not isinstance(X, np.ndarray))
        labels, scores, _, _ = self._search(X, layout, -1.0, likely=likely)
        return labels, scores

    def labels(
        self, X: Matrix, d2norms: NDArray[np.float64] | None = None, gaps: NDArray[np.float64] | None = None
    ) -> NDArray[np.int32]:
        """Find every row's truly nearest center (n,), by float64 squared distances; ties go to the lower label.

        float32 products decide all rows but a few, and tell which; these are compared with every center by differences.
        `d2norms` (n,): squared norms of the rows, if known. `gaps` (n,), written: approximate excess, at least 0, of
        the second nearest squared distance; infinite if k is 1. NaN for dense rows and more than `MOST_SECONDS`
        centers, where second nearest centers would double the time.
        """
        layout = self.layout(np.float32, sparse=not isinstance(X, np.ndarray))
        cheap = not isinstance(X, np.ndarray) or self.n_clusters <= MOST_SECONDS or len(self.prices) > 0
        wanted = gaps is not None and cheap
        if isinstance(X, np.ndarray):
            labels, scores, seconds, doubtful = self._search(X, layout, layout.slope, seconds=wanted)
        else:
            labels, scores, seconds, doubtful = self._search_csr(X, layout, layout.slope, d2norms)
        if gaps is not None and cheap:
            np.subtract(seconds, scores, out=gaps, dtype=np.float64)
            np.maximum(gaps, 0.0, out=gaps)
            gaps *= 1.0 / layout.scale  # a power of two
            gaps *= 1.0 / layout.scale
        elif gaps is not None:
            gaps.fill(np.nan)
        rows = np.flatnonzero(doubtful)
        if len(rows) and self.n_clusters > 1:
            centers = self.centers if layout.scale == 1 else self.centers * layout.scale
            prices = (self.prices if len(self.prices) else np.zeros(self.n_clusters)) * layout.scale**2
            if isinstance(X, np.ndarray):
                n_batch = batch_rows(X.shape[1])
                for start in range(0, len(rows), n_batch):
                    part = rows[start : start + n_batch]
                    near = np.ascontiguousarray(X[part], np.float64)
                    nearest.nearest_dense_exactly(
                        near if layout.scale == 1 else near * layout.scale, centers, prices, part, labels
                    )
            else:
                data, norms = as_working(X.data), self.center_norms()
                if layout.scale != 1:
                    data, norms = data.astype(np.float64) * layout.scale, center_norms(centers)
                nearest.nearest_csr_exactly(X.indptr, X.indices, data, centers, norms, prices, rows, labels)
        return labels

    def _search(
        self,
        X: Matrix,
        layout: PackedCenters,
        slope: float,
        *,
        seconds: bool = False,
        all_centers: bool = False,
        likely: NDArray[np.int32] | None = None,
    ) -> Searched:
        """Find labels, scores, second scores, and doubtful rows (none if `slope` is negative).

        Second scores hold anything unless `seconds` or `all_centers`.
        """
        if not isinstance(X, np.ndarray):
            return self._search_csr(X, layout, slope)
        found = _room_for(X.shape[0], layout.table.dtype)
        roundings = min(products.DEPTH, X.shape[1]) + X.shape[1] // products.DEPTH + nearest.ROUNDINGS
        slope *= roundings
        index = None if all_centers else self._index_for(X, layout, guessed=likely is not None)
        room = nearest.search_room(layout.table, min(products.WIDE, X.shape[1]))
        for start, batch in dense_batches(X):
            parts = tuple(array[start : start + len(batch)] for array in found)
            if index is None:
                self._search_dense(batch, layout, slope, room, parts)
            else:
                near = None if likely is None else likely[start : start + len(batch)]
                slopes = (slope, layout.slope * roundings)
                self._search_indexed(batch, layout, slopes, (index, room, near), parts, seconds=seconds)
        return found

    def _search_csr(
        self, X: Any, layout: PackedCenters, slope: float, d2norms: NDArray[np.float64] | None = None
    ) -> Searched:
        """Run `_search` on CSR rows, whose squared norms may be known."""
        found = _room_for(X.shape[0], layout.table.dtype)
        indptr, indices, data = moved_rows(X, layout, layout.table.dtype)
        if slope < 0:
            d2norms = NO_WEIGHTS
        elif d2norms is None or len(layout.columns) or layout.scale != 1:
            d2norms = np.empty(X.shape[0])
            distances.d2norms_csr(indptr, data, d2norms)
        given = (layout.table, layout.width, layout.bias, slope, layout.slack)
        nearest.nearest_csr(indptr, indices, data, d2norms, *given, *found)
        return found

    def _search_dense(
        self, X: NDArray[Any], layout: PackedCenters, slope: float, room: tuple[Any, ...], found: tuple[Any, ...]
    ) -> None:
        """Run `_search` on a batch of rows among all centers."""
        as_it_is = X.dtype == layout.table.dtype and X.shape[1] <= products.WIDE
        search = nearest.nearest_dense if as_it_is else nearest.nearest_copied
        how = (layout.moved, layout.scale, layout.table, layout.bias, self.n_clusters, slope, layout.slack)
        search(X, *how, room, *found)

    def _search_indexed(
        self,
        X: NDArray[Any],
        layout: PackedCenters,
        slopes: tuple[float, float],
        by: tuple[CenterIndex, tuple[Any, ...], NDArray[np.int32] | None],
        found: tuple[NDArray[Any], ...],
        *,
        seconds: bool,
    ) -> None:
        """Run `_search_dense`, with the same bits, by an index that excludes most centers.

        Rows that it leaves are compared with all centers together at the end, as reading all centers for a few rows is
        slow. Where it leaves most rows, lookups pause for the next rows.
        """
        index, room, likely = by
        n_batch, start, skipped = min(LOOKED_UP_ROWS, max(BLOCK_ROWS, batch_rows(X.shape[1]))), 0, 1
        left = [np.empty(0, np.intp)]
        while start < len(X):
            stop = min(start + n_batch, len(X))
            batch, here = layout.ready(X[start:stop]), slice(start, stop)
            near = None if likely is None else likely[here]
            parts = tuple(array[here] for array in found)
            rows = np.flatnonzero(index.nearest(batch, slopes, layout.slack, parts, near, seconds=seconds))
            left.append(rows + start)
            start = stop
            if 2 * len(rows) > len(batch):
                stop = min(start + skipped * n_batch, len(X))
                self._search_dense(X[start:stop], layout, slopes[0], room, tuple(array[start:stop] for array in found))
                start, skipped = stop, min(2 * skipped, MOST_SKIPPED)
            else:
                skipped = 1
        unserved = np.concatenate(left)
        for start in range(0, len(unserved), n_batch):
            rows = unserved[start : start + n_batch]
            few = tuple(np.empty(len(rows), array.dtype) for array in found)
            self._search_dense(np.ascontiguousarray(X[rows]), layout, slopes[0], room, few)
            for array, values in zip(found, few, strict=True):
                array[rows] = values

    def scores(self, X: Matrix) -> NDArray[Any]:
        """Squared distances to all centers less ``||x - s||^2`` (n, k)."""
        out = np.empty((X.shape[0], -(-self.n_clusters // LANES) * LANES), self.dtype)
        self.score(X, out)
        return out[:, : self.n_clusters]

    def score(self, X: Matrix, out: NDArray[Any]) -> None:
        """Write `scores` into an array of the table's dtype (n, p), p at least k and a multiple of `LANES`."""
        layout = self.layout(self.dtype, sparse=not isinstance(X, np.ndarray))
        if isinstance(X, np.ndarray):
            for start, batch in dense_batches(X):
                rows = batch if layout.scale == 1 else batch * layout.scale
                shift, part = layout.moved * layout.scale, out[start : start + len(batch)]
                products.multiply(rows, shift, layout.table, self.n_clusters, False, part)
                part[:, : self.n_clusters] += layout.bias[: self.n_clusters]
        else:
            nearest.scores_csr(*moved_rows(X, layout, self.dtype), layout.table, layout.width, layout.bias, out)
        if layout.scale != 1:
            found = out[:, : self.n_clusters]
            np.divide(found / layout.scale, layout.scale, out=found)  # its square may be too small a number


def _room_for(n_rows: int, dtype: np.dtype[Any]) -> Searched:
    """Buffers for the results of a search."""
    return np.empty(n_rows, np.int32), np.empty(n_rows, dtype), np.empty(n_rows, dtype), np.empty(n_rows, np.bool_)


def step_labels(X: Matrix, table: NearestCenters, likely: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
    """Nearest centers of rows (n,) in a step of Lloyd's algorithm, as exact as the rows are stored."""
    return table.labels(X) if working_dtype(X.dtype) == np.float64 else table.lowest(X, likely)[0]


def center_norms(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared norms of centers (k, m), as of `distances.center_norms` (k, 2): float64 value and rounding error."""
    out = np.empty((len(centers), 2))
    distances.center_norms(centers, out)
    return out
