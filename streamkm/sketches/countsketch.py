"""CountSketch: every feature is added, with a random sign, to one of m components.

The map of Liu, Shen and Tsang, "Sparse embedded k-means clustering", NIPS 2017 (there R = (Q Phi)'), with hashed
bucket and sign. Time O(nnz), whatever m.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.errors import InvalidParameterError
from streamkm.kernels import countsketch as kernels
from streamkm.kernels.hashing import hash_features
from streamkm.matrices import Matrix, as_working, working_dtype

MAX_COMPONENTS = 1 << 31  # buckets are 32-bit indices
DENSE_COMPONENTS = (
    256  # sparse rows are sketched densely up to this m: by m alone, so that a row is always sketched alike
)
BATCH_ENTRIES = 1 << 17  # of dense rows that are converted at once, so that they stay in the cache


@dataclass(frozen=True, slots=True)
class CountSketch:
    """CountSketch with a stateless hash.

    Parameters
    ----------
    n_components : int
        m, from 1 to 2^31.
    seed : int
        From 0 to 2^64 - 1. Bucket and sign of feature j depend on (seed, j) alone.

    References
    ----------
    Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", ICALP 2002; Clarkson and Woodruff,
    "Low rank approximation and regression in input sparsity time", STOC 2013, section 2; for k-means: Liu, Shen and
    Tsang, NIPS 2017, algorithm 1.
    """

    n_components: int
    seed: int
    kind: ClassVar[str] = "countsketch"
    passes_to_fit: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not 1 <= self.n_components <= MAX_COMPONENTS:
            raise InvalidParameterError(f"n_components={self.n_components}; needed: 1 to {MAX_COMPONENTS:,}")
        if not 0 <= self.seed < 1 << 64:
            raise InvalidParameterError(f"seed={self.seed}; needed: 0 to 2^64 - 1")

    def apply(self, X: Matrix) -> Matrix:
        """Sketch rows.

        O(nnz) for CSR, O(n * d) for dense rows.

        Parameters
        ----------
        X : ndarray (n, d) of any real dtype, or csr_array (n, d), d up to 2^63 - 1

        Returns
        -------
        ndarray (n, m), float32 or float64
            For dense rows (float64 where float32 cannot hold the input), and for CSR rows if m is small.
        csr_array (n, m), float32
            For other CSR rows. Entries that meet in a component stay side by side.
        """
        if isinstance(X, np.ndarray):
            return self._apply_dense(X)
        if self.n_components <= DENSE_COMPONENTS:
            return self._apply_csr_to_dense(X)
        indices, data = np.empty(X.nnz, np.int32), np.empty(X.nnz, np.float32)
        kernels.sketch_csr(np.uint64(self.seed), np.uint64(self.n_components), X.indices, X.data, indices, data)
        # scipy wants one index type for both arrays
        indptr = X.indptr.astype(np.int32, copy=False) if X.nnz <= np.iinfo(np.int32).max else X.indptr
        return sp.csr_array((data, indices, indptr), shape=(X.shape[0], self.n_components))

    def apply_columns(self, X: Matrix, first_feature: int) -> Matrix:
        """Sketch rows whose column 0 is feature `first_feature`.

        The sketch is linear: the sketches of a row's pieces add up to that of the row.
        """
        if isinstance(X, np.ndarray):
            return self._apply_dense(X, first_feature)
        moved = X.indices.astype(np.int64) + first_feature
        return self.apply(sp.csr_array((X.data, moved, X.indptr), shape=(X.shape[0], first_feature + X.shape[1])))

    def hash(self, start: int, stop: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Buckets and signs of features start..stop-1."""
        buckets, signs = np.empty(stop - start, np.int32), np.empty(stop - start, np.float32)
        hash_features(np.uint64(self.seed), start, stop, np.uint64(self.n_components), buckets, signs)
        return buckets, signs

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_components": self.n_components, "seed": self.seed}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}

    def _apply_dense(self, X: NDArray[Any], first_feature: int = 0) -> NDArray[Any]:
        buckets, signs = self.hash(first_feature, first_feature + X.shape[1])
        n_batch = max(4, BATCH_ENTRIES // max(1, X.shape[1]) // 4 * 4)
        out = np.empty((X.shape[0], self.n_components), working_dtype(X.dtype))
        for start in range(0, X.shape[0], n_batch):
            batch = np.ascontiguousarray(as_working(X[start : start + n_batch]))
            kernels.sketch_dense(batch, buckets, signs, out[start : start + n_batch])
        return out

    def _apply_csr_to_dense(self, X: sp.csr_array) -> NDArray[Any]:
        out = np.zeros((X.shape[0], self.n_components), np.float32)
        kernels.sketch_csr_to_dense(
            np.uint64(self.seed), np.uint64(self.n_components), X.indptr, X.indices, as_working(X.data), out
        )
        return out
