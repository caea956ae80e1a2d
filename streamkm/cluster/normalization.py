"""Rows brought near the origin and near size 1 before the search for clusters.

Squares of numbers far from the origin, or tiny, lose the differences between clusters. A normalization subtracts an
offset in float64 and multiplies by a power of two, so that moved or scaled data give the same clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.centers.packed import FAR, moved_csr
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.rows import NO_WEIGHTS, add_rows, normalized, row_d2, row_d2norms, safe_scale
from streamkm.core.matrix import Matrix, rows_between, working_dtype
from streamkm.sketches.base_sketch import Sketch

MOST_FEATURES = 1 << 20  # of sparse rows that are moved: beyond, features are hashes of words, which most rows lack
LOOKED_AT = 1000  # rows that tell where data lie: far is far by any of them


@dataclass(frozen=True, slots=True)
class Normalization:
    """An offset and a scale for the data."""

    origin: NDArray[np.float64]  # (d,) or (0,), taken from rows; empty: nothing is
    scale: float  # a power of two that rows are multiplied with afterwards

    @classmethod
    def of(cls, X: Matrix, *, moves: bool) -> Normalization:
        """The normalization of rows, by the first of them. O(rows looked at * d).

        `X`: (s, d) in random order, with distinct indices in a row. `moves`: whether to subtract an offset: the mean of
        dense rows if it is far from the origin; for sparse rows, that of the features in which it is.
        """
        X = rows_between(X, 0, LOOKED_AT)
        n_rows, n_features = X.shape
        largest = float(np.abs(X if isinstance(X, np.ndarray) else X.data).max(initial=0))
        if not isinstance(X, np.ndarray) and n_features > MOST_FEATURES:
            return cls(np.zeros(0), safe_scale(largest))
        sums, counts, everyone = np.zeros((1, n_features)), np.zeros(1), np.zeros(n_rows, np.int32)
        add_rows(X, NO_WEIGHTS, everyone, sums, counts)
        mean = sums[0] / max(1, n_rows)
        # measured where squares of anything can be held
        unit = safe_scale(largest)
        rows = X if unit == 1 else X.astype(np.float64) * unit
        d2 = row_d2(rows, everyone, NearestCenters.build(mean[None] * unit, np.float64))
        spread = float(np.sqrt(d2.mean())) / unit if n_rows else 0.0
        origin = np.zeros(0)
        if moves and isinstance(X, np.ndarray):
            if float(np.sqrt(row_d2norms(mean[None] * unit)[0])) / unit > FAR * spread:
                origin = mean
        elif moves:
            far = np.abs(mean) > FAR * spread
            if far.any():
                origin = np.where(far, mean, 0.0)
        return cls(origin, safe_scale(spread if len(origin) and spread > 0 else largest))

    @property
    def is_whole(self) -> bool:
        """Whether rows stay as they are."""
        return not len(self.origin) and self.scale == 1

    def rows(self, X: Matrix) -> Matrix:
        """Normalized rows; the same object if they stay as they are."""
        if self.is_whole:
            return X
        dtype = working_dtype(X.dtype)
        if isinstance(X, np.ndarray):
            moved = X.astype(np.float64) - self.origin if len(self.origin) else X.astype(np.float64)
            return (moved * self.scale).astype(dtype, copy=False)
        columns = np.flatnonzero(self.origin)
        offsets = self.origin if len(columns) else np.zeros(X.shape[1])
        indptr, indices, data = moved_csr(X, columns, offsets, self.scale, dtype)
        return sp.csr_array((data, indices, indptr), shape=X.shape)

    def original_rows(self, X: Matrix) -> Matrix:
        """Undo the normalization of rows, but for rounding."""
        if self.is_whole:
            return X
        return Normalization(-self.origin * self.scale, 1 / self.scale).rows(X)

    def points(self, centers: NDArray[Any]) -> NDArray[np.float64]:
        """Original points (k, d), normalized."""
        return (centers - self.origin if len(self.origin) else centers) * self.scale

    def originals(self, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Undo the normalization of points (k, d); the same array if rows stay as they are."""
        if self.is_whole:
            return centers
        return centers / self.scale + self.origin if len(self.origin) else centers / self.scale

    def on_sphere(self, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move normalized points (k, d) so that those of the original rows have unit length."""
        return self.points(on_sphere(self.originals(centers)))

    def sketch(self, sketch: Sketch) -> Sketch:
        """The sketch of original rows that equals one of normalized rows, but for an offset and the scale."""
        if self.is_whole or sketch.center is None:
            return sketch
        return sketch.with_center(self.originals(sketch.center))

    def sketched(self, sketch: Sketch, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert centers (k, m) from `sketch`'s sketches of original rows to those of normalized rows."""
        if self.is_whole or sketch.center is not None or not len(self.origin):
            return centers / self.scale
        return centers / self.scale + np.asarray(sketch.apply(self.origin[None]), np.float64)

    def result(self, result: LloydResult, centers: NDArray[np.float64]) -> LloydResult:
        """Convert a result on normalized rows to original centers and inertias."""
        if self.is_whole:
            return result
        history = tuple(inertia / self.scale / self.scale for inertia in result.history)
        return replace(result, centers=centers, inertia=result.inertia / self.scale / self.scale, history=history)


WHOLE = Normalization(np.zeros(0), 1.0)
"""Rows stay as they are."""


def on_sphere(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale centers (k, d) to unit length; one of zeros stays: it has no direction."""
    return np.asarray(normalized(centers), np.float64)
