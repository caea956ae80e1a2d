"""CountSketch: every feature is added, with a random sign, to one of m components, or to one in each of s blocks.

Follows Liu, Shen and Tsang, "Sparse embedded k-means clustering", NIPS 2017, algorithm 1, with hashed bucket and sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, as_working, working_dtype
from streamkm.kernels.intrinsics.hashing import hash_features, stream_seed
from streamkm.kernels.sketch import bucket_sums as kernels
from streamkm.sketches.base_sketch import SeededSketch, check_numbers

MAX_COMPONENTS = 1 << 31  # buckets are 32-bit indices
MAX_PER_FEATURE = 64
DENSE_COMPONENTS = 256  # sparse rows are sketched densely up to this m: by m alone, so that rows are sketched alike
BATCH_ENTRIES = 1 << 17  # of dense rows that are converted at once, so that they stay in the cache


@dataclass(frozen=True, slots=True)
class CountSketch(SeededSketch):
    """CountSketch with a stateless hash.

    Parameters
    ----------
    n_components : int
        m, from 1 to 2^31.
    seed : int, optional
        From 0 to 2^64 - 1. Buckets and signs of feature j depend on (seed, j) alone. None: the estimator that gets the
        sketch sets it, by its `random_state`.
    nnz_per_feature : int, default 1
        s, from 1 to 64: the components are split into s blocks of m / s, and a feature is added to one component of
        each, scaled by 1 / sqrt(s). Costs s times as much, and sparse rows keep s entries for each stored one.

    Notes
    -----
    Inner products are unbiased, with variance (|x|^2 |y|^2 + <x, y>^2 - 2 sum x_j^2 y_j^2) / m if s divides m,
    whatever s. s changes the tails: with s = 1, two heavy features that meet spoil every row that has both; with s
    blocks, a part 1 / s of it. Summed over an orthonormal basis the variance bounds the change of squared lengths in an
    r-dimensional space: a share 1 - delta of the seeds keeps them within 1 +- eps, and with them the cost of every
    partition of rows whose differences span it, if m >= (r^2 + r) / (delta eps^2) (Nelson and Nguyen, theorem 3). The
    bound of Makarychev, Makarychev and Razenshteyn (STOC 2019) is for sub-Gaussian maps, not for this one.

    References
    ----------
    Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", ICALP 2002; Clarkson and Woodruff,
    "Low rank approximation and regression in input sparsity time", STOC 2013, section 2; for k-means: Liu, Shen and
    Tsang, NIPS 2017, algorithm 1. Blocks: Kane and Nelson, "Sparser Johnson-Lindenstrauss transforms", J. ACM 61
    (2014), section 1.1; Nelson and Nguyen, "OSNAP: faster numerical linear algebra algorithms via sparser subspace
    embeddings", FOCS 2013.
    """

    n_components: int
    seed: int | None = None
    nnz_per_feature: int = 1
    kind: ClassVar[str] = "countsketch"
    sparse_as_single: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_numbers(self.n_components, MAX_COMPONENTS, self.seed)
        if not 1 <= self.nnz_per_feature <= min(MAX_PER_FEATURE, self.n_components):
            raise InvalidParameterError(
                f"nnz_per_feature={self.nnz_per_feature} with n_components={self.n_components}; needed: 1 to "
                f"{MAX_PER_FEATURE}, and at most n_components"
            )

    def apply(self, X: Matrix) -> Matrix:
        """Sketch rows. O(s * nnz) for CSR, O(s * n * d) for dense rows.

        Parameters
        ----------
        X : ndarray (n, d) of any real dtype, or csr_array (n, d), d up to 2^63 - 1

        Returns
        -------
        ndarray (n, m), float32 or float64
            For dense rows (float64 if float32 cannot hold the input), and for CSR rows if m is small.
        csr_array (n, m), float32
            For other CSR rows. Entries that meet in a component stay side by side.

        Raises
        ------
        InvalidParameterError
            If the sketch has no seed.
        """
        if isinstance(X, np.ndarray):
            return self._apply_dense(X)
        if not self.leaves_zeros(self.n_components):
            return self._apply_csr_to_dense(X)
        n_stored = X.nnz * self.nnz_per_feature
        indices, data = np.empty(n_stored, np.int32), np.empty(n_stored, np.float32)
        # scipy wants one index type for both arrays
        narrow = n_stored <= np.iinfo(np.int32).max
        indptr = X.indptr.astype(np.int32 if narrow else np.int64)  # not shared: callers may merge entries in place
        rows = X.indptr if self.nnz_per_feature > 1 else X.indptr[[0, -1]]  # one block is in the order of the entries
        kernels.sketch_csr(*self._blocks(), np.float32(self.scale), rows, X.indices, X.data, indices, data)
        indptr *= self.nnz_per_feature
        return sp.csr_array((data, indices, indptr), shape=(X.shape[0], self.n_components))

    def hash(self, start: int, stop: int, block: int = 0) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Buckets and signs of features start..stop-1 in a block."""
        seeds, bounds = self._blocks()
        buckets, signs = np.empty(stop - start, np.int32), np.empty(stop - start, np.float32)
        hash_features(seeds[block], start, stop, bounds[block + 1] - bounds[block], buckets, signs)
        buckets += np.int32(bounds[block])
        return buckets, signs

    @property
    def scale(self) -> float:
        """The factor of the signs, 1 / sqrt(s)."""
        return 1 / math.sqrt(self.nnz_per_feature)

    @classmethod
    def leaves_zeros(cls, n_components: int) -> bool:
        return n_components > DENSE_COMPONENTS

    def is_one_copy(self, *, sparse: bool) -> bool:
        return sparse and self.leaves_zeros(self.n_components)

    @property
    def entries_per_stored(self) -> int:
        """Entries of a sketched CSR row for each stored one."""
        return self.nnz_per_feature

    def _blocks(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Seeds (s,) and bounds (s + 1,) of the blocks of components."""
        s = self.nnz_per_feature
        seeds = [stream_seed(np.uint64(self._known("seed")), np.uint64(r)) for r in range(s)]
        return np.array(seeds, np.uint64), np.array([r * self.n_components // s for r in range(s + 1)], np.uint64)

    def _apply_dense(self, X: NDArray[Any]) -> NDArray[Any]:
        out = np.zeros((X.shape[0], self.n_components), working_dtype(X.dtype))
        n_batch = max(1, BATCH_ENTRIES // max(1, X.shape[1]))
        n_batch -= n_batch % 16 if n_batch > 16 else 0
        hashes = [self.hash(0, X.shape[1], block) for block in range(self.nnz_per_feature)]
        hashes = [(buckets, signs.astype(out.dtype) * out.dtype.type(self.scale)) for buckets, signs in hashes]
        for start in range(0, X.shape[0], n_batch):
            batch = np.ascontiguousarray(as_working(X[start : start + n_batch]))
            for buckets, signs in hashes:
                kernels.sketch_dense(batch, buckets, signs, out[start : start + n_batch])
        return out

    def _apply_csr_to_dense(self, X: sp.csr_array) -> NDArray[Any]:
        out = np.zeros((X.shape[0], self.n_components), np.float32)
        data = as_working(X.data)
        scale = data.dtype.type(self.scale)
        kernels.sketch_csr_to_dense(*self._blocks(), scale, X.indptr, X.indices, data, out)
        return out
