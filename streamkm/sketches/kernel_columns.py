"""Kernels, and columns of the kernel matrix: values of rows against landmarks, a batch of rows at a time.

The kernel matrix is never formed. Batches have one fixed shape, so that a row's values do not depend on its neighbours,
and stay in the cache between the product, the exponential and the projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix, aligned_empty, as_working, working_dtype
from streamkm.kernels.intrinsics.lanes import TILE, products_of_nonzeros
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.kernels.sketch import kernel_values

KERNELS = ("rbf", "laplacian", "linear", "polynomial", "cosine", "sigmoid", "chi2", "precomputed")
WITHOUT_GAMMA = ("linear", "cosine", "precomputed")
BATCH_ROWS = 256
BATCH_ENTRIES = 1 << 18  # of rows that are placed at a time
SHIFT_INVARIANT = ("rbf", "laplacian")
OVERLAPS = {"laplacian": 1, "chi2": 2}  # how `overlaps_csr` sums; 0, products, for the others
# products of dense rows are made of the entries other than 0 alone if these are at most such a share (1.4 to 2 times as
# fast there, up to 5 times with fewer) and features and landmarks so many: else there is little work, or half a tile
THIN, WIDE, MANY = 0.3, 128, 2 * TILE
FAR = 0.8  # share of a mean square that is the squared mean, above which values lie far from 0

KernelFunction = Callable[[Matrix, Matrix], Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A positive definite function of two rows.

    `name`, with g for `gamma`, which is positive: "rbf", ``exp(-g |x - y|^2)``; "laplacian", ``exp(-g |x - y|_1)``;
    "linear", ``x.y``; "polynomial", ``(g x.y + coef0)^degree``, degree from 1; "cosine", ``x.y / (|x| |y|)``, 0 for
    rows of zeros; "sigmoid", ``tanh(g x.y + coef0)``, whose negative part is dropped; "chi2", ``exp(-g sum (x - y)^2 /
    (x + y))`` of nonnegative rows; "precomputed", the values in the rows, one for each row of the fit: landmarks are
    rows of zeros with a one for their row. A callable maps rows (v, d) and landmarks (c, d) to values (v, c). Raises
    InvalidParameterError: for anything else.
    """

    name: str | KernelFunction
    gamma: float = 1.0
    degree: int = 3
    coef0: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.name) and self.name not in KERNELS:
            raise InvalidParameterError(f"kernel={self.name!r}; needed: one of {', '.join(KERNELS)}, or a callable")
        if not 0 < self.gamma < np.inf:
            raise InvalidParameterError(f"gamma={self.gamma!r}; needed: a finite number above 0")
        if not isinstance(self.degree, Integral) or self.degree < 1:
            raise InvalidParameterError(f"degree={self.degree!r}; needed: an integer from 1")
        if not np.isfinite(self.coef0):
            raise InvalidParameterError(f"coef0={self.coef0!r}; needed: a finite number")

    @property
    def unit_diagonal(self) -> bool:
        """Whether k(x, x) is 1 for every row (but for rows of zeros, under "cosine")."""
        return self.name in ("rbf", "laplacian", "cosine", "chi2")

    @property
    def scale(self) -> float:
        """The factor of rows and landmarks that makes gamma 1."""
        if self.name in OVERLAPS:
            return self.gamma
        return 1.0 if self.name in WITHOUT_GAMMA else float(np.sqrt(self.gamma))

    def diagonal(self, X: Matrix) -> NDArray[np.float64]:
        """k(x, x) of rows (v,); not for "precomputed", whose rows do not tell which they are."""
        if self.name == "precomputed":
            raise TypeError("the diagonal of a precomputed kernel needs the rows' numbers")
        if callable(self.name):
            return np.array(
                [float(np.asarray(self.name(X[i : i + 1], X[i : i + 1])).item()) for i in range(X.shape[0])]
            )
        if isinstance(X, np.ndarray):
            d2norms = np.square(X, dtype=np.float64).sum(axis=1)
        else:
            d2norms = np.asarray(X.multiply(X).sum(axis=1), np.float64).ravel()
        if self.name == "linear":
            return d2norms
        if self.name == "polynomial":
            return (self.gamma * d2norms + self.coef0) ** self.degree
        if self.name == "sigmoid":
            return np.tanh(self.gamma * d2norms + self.coef0)
        return (d2norms > 0).astype(np.float64) if self.name == "cosine" else np.ones(len(d2norms))


@dataclass(frozen=True, slots=True)
class LandmarkTable:
    """Landmarks, and the shifts of rows before they meet them.

    Far from the origin, differences of float32 products are noise, so the mean is subtracted from landmarks and rows if
    the kernel allows it. Zeros must stay zeros if most entries are: with s the mean in features far from 0, and else 0,
    ``(x - mean).(y - mean)`` is ``(x - s).(y - mean) + bias``.
    """

    shift: NDArray[np.float64]  # (d,): what is taken from rows
    center: NDArray[np.float64]  # (d,): where squared norms of rows, shifted and scaled, are taken from
    # float32 or Panels, landmarks less their mean, scaled: (c, d) where differences are taken; for products panels of
    # (d, c), or where there is a bias (tiles, d, TILE)
    values: Any
    bias: NDArray[np.float32] | None  # (tiles, TILE): None: products are made of all entries
    d2norms: NDArray[np.float32]  # (c,): squared norms of the landmarks as they are in `values`

    @classmethod
    def of(cls, landmarks: NDArray[Any], scale: float, *, centered: bool, products: bool) -> LandmarkTable:
        """Lay out landmarks, float32 or float64 (c, d), C-contiguous.

        `centered`: whether the mean may be subtracted. `products`: whether rows meet landmarks in products, not
        differences.
        """
        n_landmarks, n_features = landmarks.shape
        origin = np.zeros(n_features)
        mean = landmarks.mean(axis=0, dtype=np.float64) if centered else origin
        placed, d2norms = np.empty(landmarks.shape, np.float32), np.empty(n_landmarks, np.float32)
        kernel_values.placed_dense(landmarks, mean, scale, origin, placed, d2norms)
        if not products:
            return cls(mean, origin, placed, None, d2norms)
        d2 = np.einsum("ij,ij->j", landmarks, landmarks, dtype=np.float64)
        shift = np.where(n_landmarks * mean**2 > FAR * d2, mean, 0.0)
        small = n_features < WIDE or n_landmarks < MANY
        if small or np.count_nonzero(landmarks != shift) > THIN * landmarks.size:
            return cls(mean, origin, Panels.of(placed.T), None, d2norms)
        center = (mean - shift) * scale
        tiles = aligned_empty((-(-n_landmarks // TILE), n_features, TILE), np.float32)
        for first, tile in zip(range(0, n_landmarks, TILE), tiles, strict=True):
            tile[:, : n_landmarks - first] = placed[first : first + TILE].T
            tile[:, n_landmarks - first :] = 0
        with np.errstate(over="ignore", invalid="ignore"):  # landmarks too far away for float32 are unlike all rows
            bias = np.stack([-(center @ tile.astype(np.float64)) for tile in tiles]).astype(np.float32)
        return cls(shift, center, tiles, bias, d2norms)


@dataclass(frozen=True, eq=False)
class KernelColumns:
    """Values of rows against fixed landmarks."""

    kernel: Kernel
    # ndarray (c, d) of floats, or csr_array (c, d), against dense landmarks sparse rows are taken densely, a batch at a
    # time
    landmarks: Matrix

    @property
    def n_columns(self) -> int:
        """Landmarks, c."""
        return int(self.landmarks.shape[0])

    def batches(self, X: Matrix) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (first row, values (at most 256, c)), which the next batch overwrites; fewer at a time for wide rows.

        O(n * c * d) for dense landmarks, or nonzero entries times c if these are few (see `LandmarkTable`); for sparse
        ones, each row's entries times the landmarks' in the same feature. Raises InvalidInputError: if rows have other
        features than the landmarks, or negative values under "chi2".
        """
        width = self.landmarks.shape[1]
        if X.shape[1] > width or (isinstance(X, np.ndarray) and X.shape[1] < width):
            raise InvalidInputError(f"rows have {X.shape[1]:,} features; the landmarks have {width:,}")
        if not isinstance(X, np.ndarray):  # narrower rows lack their last features
            X = sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], width))
        entries = X if isinstance(X, np.ndarray) else X.data
        if self.kernel.name == "chi2" and entries.min(initial=0) < 0:
            raise InvalidInputError('negative values; needed: none for kernel="chi2": take "rbf" or "laplacian"')
        n_batch = BATCH_ROWS
        if not callable(self.kernel.name):
            n_batch = max(1, min(BATCH_ROWS, BATCH_ENTRIES // max(1, width)))
        values = np.zeros((n_batch, self.n_columns), np.float32)
        fill = self._called if callable(self.kernel.name) else self._dense if self._is_dense else self._sparse
        placed = np.zeros((n_batch, width if self._is_dense else 0), np.float32)
        for start in range(0, X.shape[0], n_batch):
            rows = X[start : start + n_batch]
            fill(rows, values, placed)
            yield start, values[: rows.shape[0]]

    def values(self, X: Matrix) -> NDArray[np.float32]:
        """All values (n, c) at once."""
        out = np.empty((X.shape[0], self.n_columns), np.float32)
        for start, values in self.batches(X):
            out[start : start + len(values)] = values
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "landmarks": self.landmarks}

    @property
    def _is_dense(self) -> bool:
        return isinstance(self.landmarks, np.ndarray)

    @cached_property
    def _table(self) -> LandmarkTable:
        landmarks, name = np.ascontiguousarray(as_working(self.landmarks)), self.kernel.name
        return LandmarkTable.of(
            landmarks, self.kernel.scale, centered=name in SHIFT_INVARIANT, products=name not in OVERLAPS
        )

    @cached_property
    def _lists(self) -> tuple[Any, ...]:
        """Inverted lists of sparse landmarks for `overlaps_csr`, and the landmarks' norms."""
        columns = sp.csc_array(self.landmarks)
        columns.sum_duplicates()
        counts = np.diff(columns.indptr)
        present = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[present])]).astype(np.int64)
        values = (columns.data.astype(np.float64) * self.kernel.scale).astype(np.float32)
        norms = self._norms(columns.indices, values, self.n_columns)
        return (present.astype(np.int64), starts, columns.indices.astype(np.int32), values), norms

    def _norms(self, owners: NDArray[Any], values: NDArray[np.float32], n_rows: int) -> NDArray[np.float32]:
        """Squared norms of scaled rows, or sums of absolute values where distances are sums of differences."""
        size = np.abs if self.kernel.name in OVERLAPS else np.square
        return np.bincount(owners, size(values, dtype=np.float64), minlength=n_rows).astype(np.float32)

    def _dense(self, rows: Matrix, values: NDArray[np.float32], placed: NDArray[np.float32]) -> None:
        """Fill the values of up to 256 rows by products with dense landmarks or differences; `placed` is scratch."""
        if not isinstance(rows, np.ndarray):
            rows = rows.toarray()
        table = self._table
        row_norms = np.zeros(len(placed), np.float32)
        ready = np.ascontiguousarray(as_working(rows))
        kernel_values.placed_dense(ready, table.shift, self.kernel.scale, table.center, placed, row_norms)
        if self.kernel.name in OVERLAPS:
            how = OVERLAPS[self.kernel.name]
            kernel_values.minus_differences(how, placed, table.values, values[: len(rows)])
            kernel_values.exp_rows(values[: len(rows)], np.empty(self.n_columns, np.int32))
            return
        if table.bias is not None:
            products_of_nonzeros(placed, table.values, table.bias, values[: len(rows)])
        else:
            table.values.product(placed[: len(rows)], out=values)
        self._finish(values[: len(rows)], row_norms, table.d2norms)

    def _sparse(self, rows: Matrix, values: NDArray[np.float32], _: NDArray[np.float32]) -> None:
        """Fill the values of up to 256 rows, by the features shared with sparse landmarks."""
        if isinstance(rows, np.ndarray):
            rows = sp.csr_array(as_working(rows))
        (columns, starts, owned_by, entries), norms = self._lists
        data = (rows.data * self.kernel.scale).astype(np.float32)
        n_rows = rows.shape[0]
        owners = np.repeat(np.arange(n_rows), np.diff(rows.indptr))
        values[:n_rows] = 0
        how = OVERLAPS.get(str(self.kernel.name), 0)
        kernel_values.overlaps_csr(how, rows.indptr, rows.indices, data, columns, starts, owned_by, entries, values)
        self._finish(values[:n_rows], self._norms(owners, data, n_rows), norms)

    def _finish(self, products: NDArray[np.float32], row_norms: NDArray[Any], norms: NDArray[Any]) -> None:
        """Turn products, or overlaps, into kernel values, unless they are."""
        bits = np.empty(self.n_columns, np.int32)
        coef0 = np.float32(self.kernel.coef0)
        if self.kernel.name == "cosine":
            kernel_values.cosines(products, row_norms, norms)
        elif self.kernel.name == "polynomial":
            kernel_values.powers(products, coef0, self.kernel.degree)
        elif self.kernel.name == "sigmoid":
            kernel_values.tangents(products, coef0, bits)
        elif self.kernel.name not in ("linear", "precomputed"):
            factor = np.float32(1 if self.kernel.name in OVERLAPS else 2)
            kernel_values.exp_of_distances(products, factor, row_norms, norms, bits)

    def _called(self, rows: Matrix, values: NDArray[np.float32], _: NDArray[np.float32]) -> None:
        """Fill the values of up to 256 rows by the user's function, which always gets 256 of them."""
        n_rows = rows.shape[0]
        padded = rows[np.minimum(np.arange(BATCH_ROWS), n_rows - 1)]
        if isinstance(padded, np.ndarray) != self._is_dense:
            padded = padded.toarray() if self._is_dense else sp.csr_array(padded)
        found = np.asarray(self.kernel.name(padded, self.landmarks), np.float32)  # type: ignore[operator]
        if found.shape != values.shape or not np.isfinite(found[:n_rows]).all():
            raise InvalidInputError(
                f"the kernel function gave values of shape {found.shape}; needed: finite ones of {values.shape}, "
                "one for each row and landmark"
            )
        values[:] = found


def working_landmarks(X: Matrix, *, dense: bool) -> Matrix:
    """Landmarks from rows: floats, dense or CSR without repeated entries."""
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(as_working(X))
    if dense:
        return X.toarray().astype(working_dtype(X.dtype), copy=False)
    kept = sp.csr_array((as_working(X.data), X.indices, X.indptr), shape=X.shape, copy=True)
    kept.sum_duplicates()
    return kept
