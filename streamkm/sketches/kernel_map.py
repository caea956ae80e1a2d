"""Nystroem features: a row's kernel values against landmarks, projected on few directions.

With C the values of all rows against c landmarks (or combinations of them) and W the landmarks' own, ``K ~ C W^+ C'``.
The features are ``C P``, with P the root of W^+ cut to `rank` directions: k-means on them is kernel k-means on the
rank-restricted approximation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import blas, eigh, lapack

from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.core.matrix import Matrix
from streamkm.kernels.intrinsics.panels import Panels, add_outer_products
from streamkm.sketches.base_sketch import SketchAnswers, SketchFitBytes, check_fits
from streamkm.sketches.kernel_columns import Kernel, KernelColumns, KernelFunction
from streamkm.sketches.subspace import oriented

PROJECTED_SQUARES = 9  # of c x c numbers while directions are found: root, sums, products, vectors, the map; measured


def gram_bytes(n_columns: int) -> SketchFitBytes:
    """Memory of a `GramFit` of `n_columns` columns, beside the map's own batches."""
    square = 8 * n_columns**2
    return SketchFitBytes(square, 0, PROJECTED_SQUARES * square)


class Projected(SketchAnswers):
    """Features that are projected on few directions."""

    __slots__ = ()

    projection: NDArray[np.float32]  # (c, m)
    scales_with_rows: ClassVar[bool] = False
    moves_with_rows: ClassVar[bool] = False

    @property
    def n_components(self) -> int:
        """Features, m."""
        return int(self.projection.shape[1])

    @property
    def n_columns(self) -> int:
        """Features of a row before the projection, c."""
        return len(self.projection)


@dataclass(frozen=True, eq=False)
class KernelMap(Projected):
    """``apply(X) = k(X, landmarks) @ projection``.

    References: Wang, Gittens and Mahoney, "Scalable kernel k-means clustering with Nystroem approximation:
    relative-error bounds", JMLR 20 (2019), algorithms 2 and 3.
    """

    kernel: str | KernelFunction
    gamma: float
    degree: int
    coef0: float
    n_features: int  # d
    projection: NDArray[np.float32]  # (c, m)
    landmarks: NDArray[Any]  # float32 or float64 (c, d), or the entries of sparse landmarks (nnz,), together with
    indices: NDArray[Any] | None = None  # ndarray, or None for dense landmarks
    indptr: NDArray[Any] | None = None
    unit: bool = False  # whether features are brought to unit length, for directions of a normalized cut
    kind: ClassVar[str] = "kernel"
    is_nystroem: ClassVar[bool] = True  # but for `unit`

    def __post_init__(self) -> None:
        sparse = self.indices is not None and self.indptr is not None
        n_columns = len(self.indptr) - 1 if self.indptr is not None else len(self.landmarks)
        fits = self.projection.ndim == 2 and self.projection.dtype == np.float32
        fits = fits and len(self.projection) == n_columns > 0
        fits = fits and self.landmarks.dtype in (np.float32, np.float64)
        if sparse:
            fits = fits and self.landmarks.ndim == 1 and self._lists_fit()
        else:
            fits = fits and self.landmarks.shape == (n_columns, self.n_features)
        check_fits(self, fits, f"landmarks of floats (c, d={self.n_features}) or CSR arrays, projection float32 (c, m)")
        Kernel(self.kernel, self.gamma, self.degree, self.coef0)

    @classmethod
    def of(cls, kernel: Kernel, landmarks: Matrix, projection: NDArray[Any]) -> KernelMap:
        """A map from a kernel, landmarks as of `working_landmarks` (c, d), and a projection (c, m)."""
        parts = (
            (landmarks,) if isinstance(landmarks, np.ndarray) else (landmarks.data, landmarks.indices, landmarks.indptr)
        )
        described = (kernel.name, kernel.gamma, kernel.degree, kernel.coef0, int(landmarks.shape[1]))
        return cls(*described, np.ascontiguousarray(projection, np.float32), *parts)

    def apply(self, X: Matrix) -> Matrix:
        out = projected(self.columns.batches(X), X.shape[0], self.projection)
        if self.unit:
            out /= np.maximum(np.sqrt(np.einsum("ij,ij->i", out, out)), np.finfo(np.float32).tiny)[:, None]
        return out

    def batches(self, X: Matrix) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Kernel values before the projection: see `KernelColumns.batches`."""
        return self.columns.batches(X)

    @cached_property
    def columns(self) -> KernelColumns:
        """The kernel's values against the landmarks."""
        landmarks: Matrix = self.landmarks
        if self.indices is not None:
            shape = (len(self.projection), self.n_features)
            landmarks = sp.csr_array((self.landmarks, self.indices, self.indptr), shape=shape)
        return KernelColumns(Kernel(self.kernel, self.gamma, self.degree, self.coef0), landmarks)

    def fits_features(self, n_features: int) -> bool:
        return self.n_features == n_features

    def to_dict(self) -> dict[str, Any]:
        if not isinstance(self.kernel, str):
            raise ModelFileError("a kernel that is a Python function cannot be saved; use one of the named kernels")
        return {name: value for name, value in super().to_dict().items() if value is not None}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "columns"}

    def _lists_fit(self) -> bool:
        """Whether the CSR arrays are safe for kernels."""
        indices, indptr = self.indices, self.indptr
        if indices is None or indptr is None or indices.dtype.kind != "i" or indptr.dtype.kind != "i":
            return False
        if indices.ndim != 1 or indptr.ndim != 1 or len(indices) != len(self.landmarks) or len(indptr) < 2:
            return False
        in_range = not len(indices) or (indices.min() >= 0 and indices.max() < self.n_features)
        return bool(in_range and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all())


def projected(
    batches: Iterator[tuple[int, NDArray[np.float32]]], n_rows: int, projection: NDArray[Any]
) -> NDArray[Any]:
    """Products of all batches with a projection (n, m), in its dtype."""
    out, panels = np.empty((n_rows, projection.shape[1]), projection.dtype), Panels.of(projection)
    for start, values in batches:
        panels.product(values, out=out[start : start + len(values)])
    return out


@dataclass(frozen=True, slots=True)
class GramFit:
    """The round that finds a projection: ``C' C`` over all rows, from which the truncated SVD of C R follows.

    With ``R R' = W^+``, the features before the cut are ``B = C R``; the right singular vectors of B are the
    eigenvectors of ``R' C' C R``, so that neither C nor B is ever held.

    References: Wang, Gittens and Mahoney, JMLR 20 (2019), algorithm 3.
    """

    map: Any  # whose projection is replaced
    root: NDArray[np.float64]  # (c, r): R
    rank: int  # directions to keep

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> Any:
        n_columns = self.map.n_columns
        total = np.zeros((n_columns, n_columns)) if state is None else state
        for start, values in self.map.batches(X):
            rows = values[: X.shape[0] - start].astype(np.float64)
            if len(weights):
                rows *= np.sqrt(weights[start : start + len(rows)])[:, None]
            add_outer_products(rows, total)
        return total

    def join(self, states: Sequence[Any]) -> Any:
        total = states[0].copy()
        for state in states[1:]:
            total += state
        return total

    def finish(self, state: Any) -> Any:
        """The map with the projection ``R U``, U the leading eigenvectors of ``R' C' C R``."""
        inner = _congruent(self.root, np.tril(state) + np.tril(state, -1).T)
        n_inner, rank = len(inner), min(self.rank, len(inner))
        _, directions = eigh(inner, subset_by_index=[n_inner - rank, n_inner - 1], overwrite_a=True)
        return replace(self.map, projection=oriented(self.root @ directions[:, ::-1]).astype(np.float32))


def inverse_root(W: NDArray[Any], rank: int | None = None) -> NDArray[np.float64]:
    """R (c, r) with ``R R' = W^+``, of the `rank` largest positive eigenvalues that float32 values determine.

    Eigenvalues below 1.2e-7 of the largest (float32's resolution) are rounding: their directions would be noise. Raises
    InvalidParameterError: if no eigenvalue is positive.
    """
    W = (W + W.T).astype(np.float64) / 2
    if rank is None or rank >= len(W):
        root = _whole_root(W)
        if root is not None:
            return root
    values, vectors = eigh(W)
    kept = np.flatnonzero(values > np.finfo(np.float32).eps * max(values[-1], np.finfo(float).tiny))[::-1]
    if not len(kept):
        raise InvalidParameterError(
            "the kernel's values at the landmarks have no positive eigenvalue; use another kernel"
        )
    kept = kept[:rank]
    return vectors[:, kept] / np.sqrt(values[kept])


def _whole_root(W: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The transposed inverse of W's Cholesky factor if no eigenvalue is below float32's resolution; else None.

    One is if ``W - t I`` has no factor, with t the resolution of a bound on all eigenvalues. Ten times as fast as
    eigenvectors.
    """
    least = np.finfo(np.float32).eps * np.abs(W).sum(axis=0).max()
    _, failed = lapack.dpotrf(W - least * np.eye(len(W)), lower=1)
    if failed:
        return None
    factor, _ = lapack.dpotrf(W, lower=1)
    inverse, _ = lapack.dtrtri(factor, lower=1)
    return np.asarray(inverse.T)


def _congruent(root: NDArray[np.float64], gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute ``root.T @ gram @ root``, with half the work for a `_whole_root`, which is upper triangular."""
    if root.shape[0] != root.shape[1] or np.tril(root, -1).any():
        return np.asarray(root.T @ gram @ root)
    factor = np.asfortranarray(root)
    half = blas.dtrmm(1.0, factor, gram, side=1)
    return np.asarray(blas.dtrmm(1.0, factor, half, trans_a=1, overwrite_b=1))
