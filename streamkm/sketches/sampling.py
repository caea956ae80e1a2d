"""Preconditioned sampling: rotate rows so that their entries are alike, then keep a part of each row's entries.

The kept entries differ between rows, so the map is not linear; it is repeatable for a row, and unbiased over seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix, as_working
from streamkm.kernels.intrinsics.hashing import stream_seed
from streamkm.kernels.sketch.walsh_hadamard import sample_entries
from streamkm.sketches.base_sketch import SketchAnswers, check_fits
from streamkm.sketches.hadamard import Rotation
from streamkm.sketches.subspace import Subspace


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSelection(SketchAnswers):
    """``apply(X) = X[:, indices] * scales``."""

    indices: NDArray[np.int64]  # (m,): features kept, rising
    scales: NDArray[np.float64]  # (m,): positive
    kind: ClassVar[str] = "selection"
    moves_with_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fits = self.indices.dtype == np.int64 and self.scales.dtype == np.float64
        fits = fits and self.indices.ndim == 1 and self.indices.shape == self.scales.shape and len(self.indices) > 0
        check_fits(self, fits, "int64 (m,) and float64 (m,)")
        if self.indices[0] < 0 or self.indices[-1] >= 1 << 31 or (np.diff(self.indices) <= 0).any():
            raise InvalidParameterError("indices are to rise, from 0 to below 2^31")
        if not (np.isfinite(self.scales) & (self.scales > 0)).all():
            raise InvalidParameterError("scales are to be finite and positive")

    @property
    def n_components(self) -> int:
        """Features kept, m."""
        return len(self.indices)

    def apply(self, X: Matrix) -> Matrix:
        """Select features of rows (n, d), dense of any real dtype or CSR. O(n * m) for dense rows, O(nnz) for CSR.

        The result is of the same kind, float32, or float64 if float32 cannot hold the input. Raises InvalidInputError:
        if dense rows lack a kept feature.
        """
        n_read = int(self.indices[-1]) + 1
        if isinstance(X, np.ndarray):
            if X.shape[1] < n_read:
                raise InvalidInputError(f"rows with {X.shape[1]:,} features; needed: at least {n_read:,}")
            kept = as_working(X[:, self.indices])
            return np.ascontiguousarray(kept * self.scales.astype(kept.dtype))
        n_read = min(n_read, X.shape[1])
        kept = X[:, :n_read][:, self.indices[self.indices < n_read]]
        data = as_working(kept.data)
        data = (data * self.scales[kept.indices]).astype(data.dtype)
        return sp.csr_array((data, kept.indices, kept.indptr), shape=(X.shape[0], self.n_components))

    @classmethod
    def leaves_zeros(cls, n_components: int) -> bool:  # noqa: ARG003
        return True

    def fits_features(self, n_features: int) -> bool:
        return int(self.indices[-1]) < n_features


@dataclass(frozen=True, slots=True)
class LeverageSampling:
    """Features drawn by their leverage scores: squared lengths of the rows of the leading right singular vectors.

    m draws with replacement, feature j with probability p_j = |V_j|^2 / k, scaled by 1 / sqrt(m p_j), so that squared
    lengths are right on average. Repeated draws become one of the same length: there may be fewer than m components.

    References: Boutsidis, Mahoney and Drineas, "Unsupervised feature selection for the k-means clustering problem",
    NIPS 2009, algorithm 1; Boutsidis, Zouzias, Mahoney and Drineas, "Randomized dimensionality reduction for k-means
    clustering", IEEE Trans. Inf. Theory 61 (2015): O(k log(k) / eps^2) draws, for a factor 3 + eps.
    """

    n_components: int  # draws, m
    seed: int  # of the draws

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise InvalidParameterError(f"n_components={self.n_components}; needed: an integer from 1")

    def __call__(self, subspace: Subspace) -> FeatureSelection:
        """Draw features."""
        leverages = np.einsum("ij,ij->i", subspace.vectors, subspace.vectors)
        shares = leverages / leverages.sum()
        counts = np.random.default_rng(self.seed).multinomial(self.n_components, shares)
        kept = np.flatnonzero(counts)
        return FeatureSelection(kept.astype(np.int64), np.sqrt(counts[kept] / (self.n_components * shares[kept])))


@dataclass(frozen=True, slots=True)
class PreconditionedSampling(SketchAnswers):
    """A uniform sample of the entries of each rotated row.

    `gamma`: share of the p entries that is kept, above 0 up to 1; rounded to whole entries, at least one. `n_features`:
    d, from 1 to 2^30. `seed`: from 0 to 2^64 - 1.

    References: Pourkamali-Anaraki and Becker, "Preconditioned data sparsification for big data with applications to PCA
    and K-means", IEEE Trans. Inf. Theory 63 (2017).

    Kept entries are scaled by p / q for q kept of p, so that <sketch(x), R c> has the mean <x, c> for every fixed c,
    with variance (|x|^2 |c|^2 + <x, c>^2 - 2 sum x_j^2 c_j^2) / q * (p - q) / (p - 1) over seeds. Comparisons with
    centers need no more: |sketch(x)|^2 is too large by a factor of about p / q, but alike for all centers. The paper
    compares on kept entries alone and divides centers by how often each entry was kept; for many rows a cluster, the
    centers agree. Kept entries depend on the seed and the row's values, not its place, as no chunking may change a row:
    rows that are equal in working precision are sketched alike. One pass, for rows that can be read only once, gives
    labels, and centers in the rotated space; two passes give labels, and means of the original rows.
    """

    gamma: float
    n_features: int
    seed: int
    kind: ClassVar[str] = "sampling"
    sparsifies: ClassVar[bool] = True
    inflates_lengths: ClassVar[bool] = True
    moves_with_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        Rotation(self.n_features, self.seed)
        if not 0 < self.gamma <= 1:
            raise InvalidParameterError(f"gamma={self.gamma}; needed: above 0, at most 1")

    @property
    def n_components(self) -> int:
        """The width of the sketch: the padded width p."""
        return Rotation(self.n_features, self.seed).n_padded

    @property
    def n_kept(self) -> int:
        """Kept entries of a row, q."""
        return max(1, round(self.gamma * self.n_components))

    def apply(self, X: Matrix) -> sp.csr_array:
        """Sketch rows (n, d), dense of any real dtype or CSR, to CSR rows (n, p). O(n p log p).

        Each row has q float32 entries, indices ascending. Raises InvalidInputError: if rows are wider than
        `n_features`.
        """
        n, q = X.shape[0], self.n_kept
        indices, data = np.empty((n, q), np.int32), np.empty((n, q), np.float32)
        seed = np.uint64(stream_seed(np.uint64(self.seed), np.uint64(1)))
        scale = math.sqrt(self.n_components) / q
        for rows, rotated in Rotation(self.n_features, self.seed).batches(X):
            bits = rotated.view(np.uint32 if rotated.itemsize == 4 else np.uint64)
            sample_entries(seed, q, scale, rotated, bits, indices[rows], data[rows])
        indptr = (np.arange(n + 1) * q).astype(np.int32 if n * q <= np.iinfo(np.int32).max else np.int64)
        return sp.csr_array((data.ravel(), indices.ravel(), indptr), shape=(n, self.n_components))

    def fits_features(self, n_features: int) -> bool:
        return self.n_features >= n_features  # narrower rows lack their last features
