"""Projections whose entries are independent: signs, Gaussian, and sparse ones of -1, 0 and +1.

An entry is a function of (seed, feature, component), made when a chunk needs it, so that features may come later and
nothing of size d is held; scikit-learn's random_projection draws the matrix at once for a known d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, as_working, working_dtype
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.kernels.sketch import entries as kernels
from streamkm.sketches.base_sketch import SeededSketch, check_numbers

MAX_COMPONENTS = 1 << 24
BLOCK_ENTRIES = 1 << 18  # of the map, made at once: 1 MiB
PROJECTIONS = ("signs", "gaussian", "sparse")


@dataclass(frozen=True, slots=True)
class RandomProjection(SeededSketch):
    """Projection with independent entries: normal ones, signs, or signs and zeros; entry (j, c) is of (seed, j, c).

    `n_components`: m, from 1 to 2^24. `seed`: from 0 to 2^64 - 1; None: the estimator sets it by its `random_state`.
    `kind`: "signs", +-1 / sqrt(m); "gaussian", normal with variance 1 / m; "sparse", +-1 / sqrt(density * m), each with
    probability density / 2, else 0. `density`: of "sparse", from 2^-31 to 1, rounded to a multiple of 2^-31: 1/3 is
    Achlioptas' choice; 1 / sqrt(d), scikit-learn's "auto", that of Li, Hastie and Church.

    References: Boutsidis, Zouzias, Mahoney and Drineas, "Randomized dimensionality reduction for k-means clustering",
    IEEE Trans. Inf. Theory 61 (2015); Makarychev, Makarychev and Razenshteyn, "Performance of Johnson-Lindenstrauss
    transform for k-means and k-medians clustering", STOC 2019; Achlioptas, "Database-friendly random projections:
    Johnson-Lindenstrauss with binary coins", J. Comput. Syst. Sci. 66 (2003); Li, Hastie and Church, "Very sparse
    random projections", KDD 2006.

    Inner products are unbiased with variance (|x|^2 |y|^2 + <x, y>^2 + (f - 3) sum x_j^2 y_j^2) / m, for f = 1 of
    "signs", 3 of "gaussian", 1 / density of "sparse". With m = O(log(k / (eps delta)) / eps^2) the cost of every
    partition into k clusters is kept within 1 + eps (Makarychev et al.). For signs and density 1/3 all distances of n
    rows are kept within 1 +- eps with probability 1 - n^-b if m >= (4 + 2 b) log(n) / (eps^2 / 2 - eps^3 / 3)
    (Achlioptas); for lower densities only for rows whose norm is spread over many features. With signs, m = O(k /
    eps^2) and eps below 1 / 3, a partition that is optimal for the sketch costs at most 2 + eps times the optimum, with
    probability 0.96 (Boutsidis et al.).
    """

    n_components: int
    seed: int | None = None
    kind: str = "signs"
    density: float = 1 / 3

    def __post_init__(self) -> None:
        check_numbers(self.n_components, MAX_COMPONENTS, self.seed)
        if self.kind not in PROJECTIONS:
            raise InvalidParameterError(f"kind={self.kind!r}; needed: one of {', '.join(PROJECTIONS)}")
        if not 2.0**-31 <= self.density <= 1:
            raise InvalidParameterError(f"density={self.density}; needed: 2^-31 to 1, such as 1/3 or 1 / sqrt(d)")

    def apply(self, X: Matrix) -> NDArray[Any]:
        """Sketch rows (n, d), dense of any real dtype or CSR, d up to 2^63 - 1; float64 if float32 cannot hold them.

        O(n * d * m) for dense rows, O(nnz * m) for CSR, and O(m) for each distinct feature. Raises
        InvalidParameterError: if the sketch has no seed.
        """
        out = np.zeros((X.shape[0], self.n_components), working_dtype(X.dtype))
        if isinstance(X, np.ndarray):
            for start, entries in self._blocks(np.arange(X.shape[1])):
                block = Panels.of(entries.astype(out.dtype, copy=False))
                block.product(X[:, start : start + len(entries)], out=out, add=True)
        elif self.kind == "signs":
            kernels.add_signs(np.uint64(self._known("seed")), X.indptr, X.indices, as_working(X.data), out)
        else:
            features, indptr, rows, data = _by_column(X)
            for start, entries in self._blocks(features):
                kernels.add_columns(indptr[start : start + len(entries) + 1], rows, data, entries, out)
        variance = self._limit / 2**32 if self.kind == "sparse" else 1
        out *= out.dtype.type(1 / math.sqrt(variance * self.n_components))
        return out

    @property
    def _limit(self) -> int:
        """The even number of 32-bit words that stand for nonzero entries of "sparse"."""
        return 2 * round(self.density * 2**31)

    def _blocks(self, features: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Unscaled entries of features, block by block, with the place of a block's first."""
        seed, n_block = np.uint64(self._known("seed")), max(1, BLOCK_ENTRIES // self.n_components)
        made = np.empty((n_block, self.n_components), np.float32)
        for start in range(0, len(features), n_block):
            block = features[start : start + n_block]
            out = made[: len(block)]
            if self.kind == "signs":
                out[:] = 0
                ones, indptr = np.ones(len(block), np.float32), np.arange(len(block) + 1)
                kernels.add_signs(seed, indptr, block, ones, out)  # of rows with one entry each
            elif self.kind == "gaussian":
                kernels.fill_normals(seed, block, out)
            else:
                kernels.fill_sparse(seed, np.uint64(self._limit), block, out)
            yield start, out


def _by_column(X: sp.csr_array) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Features that occur, starts of their values, and rows and values by feature."""
    features, places = np.unique(X.indices, return_inverse=True)
    shape = (X.shape[0], len(features))
    columns = sp.csr_array((as_working(X.data), places.astype(X.indptr.dtype), X.indptr), shape=shape).tocsc()
    return features.astype(np.int64), columns.indptr, columns.indices, columns.data
