"""Sketches on principal directions: PCA, and SVD without a center."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.kernels.sketch import subspace_sums as kernels
from streamkm.sketches.base_sketch import SketchAnswers, check_fits
from streamkm.sketches.subspace import Subspace

POWER_STEPS = 2  # of a sample's directions
CENTERED_ROWS = 256  # at a time


class _Directions(SketchAnswers):
    """A projection on orthonormal columns."""

    __slots__ = ()

    directions: NDArray[Any]
    is_projection: ClassVar[bool] = True

    @property
    def n_components(self) -> int:
        """Directions, m."""
        return int(self.directions.shape[1])

    def fits_features(self, n_features: int) -> bool:
        return len(self.directions) == n_features

    @property
    def basis(self) -> NDArray[Any]:
        """The directions."""
        return self.directions


@dataclass(frozen=True, slots=True, eq=False)
class TruncatedSVDSketch(_Directions):
    """``apply(X) = X @ directions``.

    ``m = ceil(k / eps)`` directions keep the cost of every clustering into k clusters within 1 + eps, up to a constant
    common to all clusterings (Cohen et al.); O(k / eps^2) also keep it, with that constant, for every set of k centers
    (Feldman, Schmidt and Sohler). Both suppose exact singular vectors; those of `subspace.RangeFit` lose a little more.

    References: Cohen, Elder, Musco, Musco and Persu, "Dimensionality reduction for k-means clustering and low rank
    approximation", STOC 2015; Feldman, Schmidt and Sohler, "Turning big data into tiny data: constant-size coresets for
    k-means, PCA and projective clustering", SODA 2013.
    """

    directions: NDArray[Any]  # float32 or float64 (d, m), orthonormal columns
    kind: ClassVar[str] = "svd"
    moves_with_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fits = self.directions.ndim == 2 and self.directions.dtype in (np.float32, np.float64)
        check_fits(self, fits, "floats (d, m)")

    @classmethod
    def of_subspace(cls, subspace: Subspace) -> TruncatedSVDSketch:
        """Project on this subspace."""
        return cls(subspace.vectors.astype(subspace.dtype))

    def apply(self, X: Matrix) -> Matrix:
        """Project rows (n, at most d), dense of any real dtype or CSR, to (n, m) in the directions' dtype. O(nnz * m).

        Raises InvalidInputError: if the rows have other features than the directions.
        """
        d, dense = len(self.directions), isinstance(X, np.ndarray)
        if X.shape[1] > d or (dense and X.shape[1] < d):
            raise InvalidInputError(f"rows with {X.shape[1]:,} features; the directions have {d:,}")
        return Panels.of(self.directions).product(X) if dense else self._apply_csr(X)

    def _apply_csr(self, X: Any) -> NDArray[Any]:
        table, m = self.directions, self.n_components
        if m % LANES or not table.flags.c_contiguous:
            table = np.zeros((len(table), -(-m // LANES) * LANES), table.dtype)
            table[:, :m] = self.directions
        out = np.empty((X.shape[0], table.shape[1]), table.dtype)
        kernels.project_csr(X.indptr, X.indices, X.data.astype(table.dtype, copy=False), table, out)
        return np.ascontiguousarray(out[:, :m])


@dataclass(frozen=True, slots=True, eq=False)
class PCASketch(_Directions):
    """``apply(X) = (X - mean) @ directions``.

    References: Drineas, Frieze, Kannan, Vempala and Vinay, "Clustering large graphs via the singular value
    decomposition", Machine Learning 56 (2004); Cohen, Elder, Musco, Musco and Persu, "Dimensionality reduction for
    k-means clustering and low rank approximation", STOC 2015: k / eps directions keep every clustering's cost within 1
    + eps, up to a constant that is the same for all clusterings.
    """

    mean: NDArray[np.float64]  # (d,)
    directions: NDArray[Any]  # float32 or float64 (d, m), orthonormal columns
    kind: ClassVar[str] = "pca"
    takes_sparse: ClassVar[bool] = False
    needs_polishing: ClassVar[bool] = False
    found_on_few: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fits = self.mean.ndim == 1 and self.directions.ndim == 2 and len(self.mean) == len(self.directions)
        fits = fits and self.mean.dtype == np.float64 and self.directions.dtype in (np.float32, np.float64)
        check_fits(self, fits, "float64 (d,) and floats (d, m)")

    @classmethod
    def fit(cls, X: NDArray[Any], n_components: int, *, random_state: int) -> PCASketch:
        """Find at most min(s, d) directions of sampled rows (s, d). O(s * d * m)."""
        from sklearn.utils.extmath import randomized_svd

        if not 1 <= n_components <= min(X.shape):
            raise InvalidParameterError(f"n_components={n_components}; needed: 1 to {min(X.shape)} for {X.shape} rows")
        mean = X.mean(axis=0, dtype=np.float64)
        centered = np.empty(X.shape, working_dtype(X.dtype))
        for start in range(0, len(X), CENTERED_ROWS):
            centered[start : start + CENTERED_ROWS] = X[start : start + CENTERED_ROWS] - mean
        _, _, rows = randomized_svd(centered, n_components, n_iter=POWER_STEPS, random_state=random_state)
        return cls(mean, np.ascontiguousarray(rows.T.astype(centered.dtype, copy=False)))

    @classmethod
    def of_subspace(cls, subspace: Subspace) -> PCASketch:
        """Project on this subspace, around its mean."""
        mean = np.zeros(len(subspace.vectors)) if subspace.mean is None else subspace.mean
        return cls(mean, subspace.vectors.astype(subspace.dtype))

    def apply(self, X: Matrix) -> Matrix:
        if not isinstance(X, np.ndarray):
            raise InvalidParameterError("the PCA sketch takes dense rows; use CountSketch for sparse ones")
        return Panels.of(self.directions).product(X, shift=self.mean)

    @property
    def center(self) -> NDArray[np.float64]:
        """The mean."""
        return self.mean

    def with_center(self, center: NDArray[np.float64]) -> PCASketch:
        return PCASketch(center, self.directions)
