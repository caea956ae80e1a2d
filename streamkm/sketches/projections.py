"""Projections whose entries are independent: Gaussian, and sparse ones of -1, 0 and +1.

scikit-learn's random_projection draws the matrix at once for a d that is known. Here an entry is a function of (seed,
feature, component), made when a chunk needs it, so that features may come later and nothing of size d is held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, as_working, working_dtype
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.kernels.sketch import entries as kernels
from streamkm.sketches.seeded import SeededSketch
from streamkm.sketches.validation import check_components

MAX_COMPONENTS = 1 << 24
BLOCK_ENTRIES = 1 << 18
"""Entries of the map that are made at once: 1 MiB."""
WIDE = 1 << 16
"""Features up to which counting all of them is cheaper than sorting those that occur."""
FEW = 1 / 16
"""Density up to which zeros of the map are left out of products."""


class _Projection(SeededSketch):
    """Products of rows with blocks of entries: what the projections of this module share."""

    __slots__ = ()
    n_components: int

    def _fill(self, features: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the entries (b, m) of features, not scaled."""
        raise NotImplementedError

    @property
    def scale(self) -> float:
        """What the entries are multiplied by."""
        raise NotImplementedError

    def apply(self, X: Matrix) -> NDArray[Any]:
        """Sketch rows.

        O(n * d * m) for dense rows, O(nnz * m) for CSR, and O(m) for each distinct feature to make its entries.

        `X`: ndarray (n, d) of any real dtype, or csr_array (n, d), d up to 2^63 - 1. Returns ndarray (n, m), float32,
        or float64 where float32 cannot hold the input. Raises InvalidParameterError: if the sketch has no seed.
        """
        out = np.zeros((X.shape[0], self.n_components), working_dtype(X.dtype))
        if isinstance(X, np.ndarray):
            self._add_dense(X, out)
        else:
            self._add_csr(X, out)
        out *= out.dtype.type(self.scale)
        return out

    def _blocks(self, features: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Entries of features, block by block, and the place of a block's first."""
        n_block = max(1, BLOCK_ENTRIES // self.n_components)
        made = np.empty((n_block, self.n_components), np.float32)
        for start in range(0, len(features), n_block):
            block = features[start : start + n_block]
            self._fill(block, made[: len(block)])
            yield start, made[: len(block)]

    def _add_dense(self, X: NDArray[Any], out: NDArray[Any]) -> None:
        for start, entries in self._blocks(np.arange(X.shape[1])):
            block = Panels.of(entries.astype(out.dtype, copy=False))
            block.product(X[:, start : start + len(entries)], out=out, add=True)

    def _add_csr(self, X: sp.csr_array, out: NDArray[Any]) -> None:
        features, indptr, rows, data = _by_column(X)
        for start, entries in self._blocks(features):
            self._add_block(indptr[start : start + len(entries) + 1], rows, data, entries, out)

    def _add_block(self, *arrays: NDArray[Any]) -> None:
        kernels.add_columns(*arrays)


def _by_column(X: sp.csr_array) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Features that occur, where the values of each start, and rows and values by feature."""
    data, width = as_working(X.data), X.shape[1]
    if width <= max(X.nnz, WIDE):
        columns = sp.csr_array((data, X.indices, X.indptr), shape=X.shape).tocsc()
        features = np.flatnonzero(np.diff(columns.indptr))
        return features, columns.indptr[np.append(features, width)], columns.indices, columns.data
    features, places = np.unique(X.indices, return_inverse=True)
    shape = (X.shape[0], len(features))
    columns = sp.csr_array((data, places.astype(X.indptr.dtype), X.indptr), shape=shape).tocsc()
    return features.astype(np.int64), columns.indptr, columns.indices, columns.data


@dataclass(frozen=True, slots=True)
class GaussianProjection(_Projection):
    """Projection with independent normal entries of variance 1 / m.

    `n_components`: m, from 1 to 2^24. `seed`: from 0 to 2^64 - 1. Entry (j, c) depends on (seed, j, c) alone. None: the
    estimator that the sketch is given to sets it, by its `random_state`.

    References: Makarychev, Makarychev and Razenshteyn, "Performance of Johnson-Lindenstrauss transform for k-means and
    k-medians clustering", STOC 2019.

    Notes
    -----
    Inner products are unbiased with variance (|x|^2 |y|^2 + <x, y>^2) / m. With m = O(log(k / (eps delta)) / eps^2)
    the cost of every partition into k clusters is kept within 1 + eps (Makarychev, Makarychev and Razenshteyn).
    """

    n_components: int
    seed: int | None = None
    kind: ClassVar[str] = "gaussian"
    passes_to_fit: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_components(self.n_components, MAX_COMPONENTS)
        self._check_seed()

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.n_components)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_components": self.n_components, "seed": self.seed}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}

    def _fill(self, features: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        kernels.fill_normals(np.uint64(self._seed), features, out)


@dataclass(frozen=True, slots=True)
class SparseProjection(_Projection):
    """Projection with entries +-1 / sqrt(density * m), each with probability density / 2, and 0 otherwise.

    `n_components`: m, from 1 to 2^24. `seed`: from 0 to 2^64 - 1. Entry (j, c) depends on (seed, j, c) alone. None: the
    estimator that the sketch is given to sets it, by its `random_state`. `density`: float, default 1/3, from 2^-31 to
    1, rounded to a multiple of 2^-31. 1/3 is Achlioptas' choice, 1 / sqrt(d) that of Li, Hastie and Church;
    scikit-learn's "auto" is the latter.

    References: Achlioptas, "Database-friendly random projections: Johnson-Lindenstrauss with binary coins", J. Comput.
    Syst. Sci. 66 (2003); Li, Hastie and Church, "Very sparse random projections", KDD 2006.

    Notes
    -----
    Inner products are unbiased with variance (|x|^2 |y|^2 + <x, y>^2 + (1 / density - 3) sum x_j^2 y_j^2) / m. For
    density 1/3 all distances of n rows are kept within 1 +- eps with probability 1 - n^-b if
    m >= (4 + 2 b) log(n) / (eps^2 / 2 - eps^3 / 3) (Achlioptas), and with them the cost of every
    partition. For lower densities that holds only for rows whose norm is spread over many features.
    """

    n_components: int
    seed: int | None = None
    density: float = 1 / 3
    kind: ClassVar[str] = "sparse"
    passes_to_fit: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_components(self.n_components, MAX_COMPONENTS)
        self._check_seed()
        if not 2.0**-31 <= self.density <= 1:
            raise InvalidParameterError(f"density={self.density}; needed: 2^-31 to 1, such as 1/3 or 1 / sqrt(d)")

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self._limit / 2**32 * self.n_components)

    @property
    def _limit(self) -> int:
        return 2 * round(self.density * 2**31)

    def to_dict(self) -> dict[str, Any]:
        described = {"kind": self.kind, "n_components": self.n_components, "seed": self.seed}
        return {**described, "density": self.density}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}

    def _fill(self, features: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        kernels.fill_sparse(np.uint64(self._seed), np.uint64(self._limit), features, out)

    def _add_block(self, *arrays: NDArray[Any]) -> None:
        (kernels.add_few if self.density <= FEW else kernels.add_columns)(*arrays)
