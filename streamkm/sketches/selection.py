"""Keeping some features as they are: drawn by leverage scores of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix, as_working
from streamkm.kernels.sketch.subspace import select_csr
from streamkm.sketches.base import SketchAnswers, SketchFit
from streamkm.sketches.subspace import POWER_STEPS, Subspace, subspace_fit


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSelection(SketchAnswers):
    """``apply(X) = X[:, indices] * scales``.

    Attributes
    ----------
    indices : int64 (m,)
        Features kept, rising.
    scales : float64 (m,)
        Positive.
    """

    indices: NDArray[np.int64]
    scales: NDArray[np.float64]
    kind: ClassVar[str] = "selection"
    passes_to_fit: ClassVar[int] = 0
    moves_with_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        typed = self.indices.dtype == np.int64 and self.scales.dtype == np.float64
        if not typed or self.indices.ndim != 1 or self.indices.shape != self.scales.shape or not len(self.indices):
            given = f"{self.indices.dtype} {self.indices.shape} and {self.scales.dtype} {self.scales.shape}"
            raise InvalidParameterError(f"indices and scales are {given}; needed: int64 (m,) and float64 (m,)")
        if self.indices[0] < 0 or self.indices[-1] >= 1 << 31 or (np.diff(self.indices) <= 0).any():
            raise InvalidParameterError("indices are to rise, from 0 to below 2^31")
        if not (np.isfinite(self.scales) & (self.scales > 0)).all():
            raise InvalidParameterError("scales are to be finite and positive")

    @property
    def n_components(self) -> int:
        """Features kept, m."""
        return len(self.indices)

    def apply(self, X: Matrix) -> Matrix:
        """Select features.

        O(n * m) for dense rows, O(nnz) for CSR.

        Parameters
        ----------
        X : ndarray (n, d) of any real dtype, or csr_array (n, d)

        Returns
        -------
        ndarray or csr_array (n, m), as X is
            float64 where float32 cannot hold the input, else float32.

        Raises
        ------
        InvalidInputError
            If dense rows lack a feature that is kept.
        """
        n_read = int(self.indices[-1]) + 1
        if isinstance(X, np.ndarray):
            if X.shape[1] < n_read:
                raise InvalidInputError(f"rows with {X.shape[1]:,} features; needed: at least {n_read:,}")
            kept = as_working(X[:, self.indices])
            return np.ascontiguousarray(kept * self.scales.astype(kept.dtype))
        places = np.full(min(n_read, X.shape[1]), -1, np.int32)
        within = self.indices[self.indices < len(places)]
        places[within] = np.arange(len(within))
        data = as_working(X.data)
        indptr, indices, values = np.empty(X.shape[0] + 1, np.int64), np.empty(X.nnz, np.int32), np.empty_like(data)
        n_kept = select_csr(X.indptr, X.indices, data, places, self.scales, indptr, indices, values)
        if n_kept <= np.iinfo(np.int32).max:  # scipy wants one index type for both arrays
            indptr = indptr.astype(np.int32)
        return sp.csr_array((values[:n_kept], indices[:n_kept], indptr), shape=(X.shape[0], self.n_components))

    @classmethod
    def leaves_zeros(cls, n_components: int) -> bool:  # noqa: ARG003
        return True

    def fits_features(self, n_features: int) -> bool:
        return int(self.indices[-1]) < n_features

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"indices": self.indices, "scales": self.scales}


@dataclass(frozen=True, slots=True)
class LeverageSampling:
    """Features drawn by their leverage scores: squared lengths of the rows of the leading right singular vectors.

    m draws with replacement, feature j with probability p_j = |V_j|^2 / k; each feature drawn is scaled by
    1 / sqrt(m p_j), so that squared lengths are right on average. Draws of one feature are kept as one, of the same
    length: the sketch may have fewer than m components.

    Attributes
    ----------
    n_components : int
        Draws, m.
    seed : int
        Of the draws.

    References
    ----------
    Boutsidis, Mahoney and Drineas, "Unsupervised feature selection for the k-means clustering problem", NIPS 2009,
    algorithm 1; Boutsidis, Zouzias, Mahoney and Drineas, "Randomized dimensionality reduction for k-means clustering",
    IEEE Trans. Inf. Theory 61 (2015): O(k log(k) / eps^2) draws, for a factor 3 + eps.
    """

    n_components: int
    seed: int

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise InvalidParameterError(f"n_components={self.n_components}; needed: an integer from 1")

    def first_round(self, n_clusters: int, *, n_features: int, seed: int, power_steps: int = POWER_STEPS) -> SketchFit:
        """Begin to find the leading k singular vectors of all rows, as `subspace.subspace_fit` does."""
        return subspace_fit(n_clusters, self, n_features=n_features, seed=seed, power_steps=power_steps)

    def __call__(self, subspace: Subspace) -> FeatureSelection:
        """Draw features."""
        leverages = np.einsum("ij,ij->i", subspace.vectors, subspace.vectors)
        shares = leverages / leverages.sum()
        counts = np.random.default_rng(self.seed).multinomial(self.n_components, shares)
        kept = np.flatnonzero(counts)
        return FeatureSelection(kept.astype(np.int64), np.sqrt(counts[kept] / (self.n_components * shares[kept])))
