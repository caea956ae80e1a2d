"""Randomized sketches of all kernel columns: C = K S for matrices S of normal numbers or signs, SRHT and CountSketch.

Every row meets every row, O(n^2 (d + c)), so this is for rows that fit in memory; `planning.kernel_sizes` refuses more.
K is made a few rows at a time and never held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import eigh

from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.kernels.intrinsics.hashing import hash_features
from streamkm.kernels.intrinsics.panels import add_outer_products
from streamkm.kernels.sketch import kernel_values
from streamkm.sketches.kernel_columns import Kernel, KernelColumns
from streamkm.sketches.kernel_map import KernelMap, inverse_root, oriented

PIECE_ROWS = 1024


class ColumnSketch(ABC):
    """A random matrix S (n, c), scaled so that its columns have about unit length: ``E[S S'] = I``."""

    @abstractmethod
    def combine(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """``rows @ S`` (v, c) of rows (v, n)."""

    @abstractmethod
    def spread(self, M: NDArray[np.float64]) -> NDArray[np.float32]:
        """``S @ M`` (n, r) of M (c, r)."""


class DenseSketch(ColumnSketch):
    """Independent entries: Gaussian, or +1 and -1 by a hash ("signs").

    References: Wang, Gittens and Mahoney, JMLR 20 (2019), table 2 (Gaussian); Achlioptas, J. Comput. Syst. Sci. 66
    (2003) (signs).
    """

    def __init__(self, n_rows: int, n_columns: int, seed: int, *, gaussian: bool):
        if gaussian:
            self._S = np.random.default_rng(seed).standard_normal((n_rows, n_columns), np.float32)
        else:
            self._S = np.empty((n_rows, n_columns), np.float32)
            kernel_values.hashed_signs(np.uint64(seed), 0, self._S)
        self._S /= np.float32(np.sqrt(n_columns))

    def combine(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return rows @ self._S

    def spread(self, M: NDArray[np.float64]) -> NDArray[np.float32]:
        return self._S @ M.astype(np.float32)


class BucketSketch(ColumnSketch):
    """CountSketch: each column of K is added, with a hashed sign, to one of c.

    References: Wang, Gittens and Mahoney, JMLR 20 (2019), table 2; Clarkson and Woodruff, STOC 2013, section 2.
    """

    def __init__(self, n_rows: int, n_columns: int, seed: int):
        buckets, signs = np.empty(n_rows, np.int32), np.empty(n_rows, np.float32)
        hash_features(np.uint64(seed), 0, n_rows, np.uint64(n_columns), buckets, signs)
        self._S = sp.csr_array((signs, buckets, np.arange(n_rows + 1)), shape=(n_rows, n_columns))

    def combine(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.ascontiguousarray((self._S.T @ rows.T).T)

    def spread(self, M: NDArray[np.float64]) -> NDArray[np.float32]:
        return np.asarray(self._S @ M.astype(np.float32))


class HadamardSketch(ColumnSketch):
    """Random signs, the Walsh-Hadamard transform, and c of its columns (SRHT): O(n log n) a row, whatever c.

    References: Wang, Gittens and Mahoney, JMLR 20 (2019), table 2; Tropp, "Improved analysis of the subsampled
    randomized Hadamard transform", Adv. Adapt. Data Anal. 3 (2011).
    """

    def __init__(self, n_rows: int, n_columns: int, seed: int):
        self._n_rows, self._width = n_rows, 1 << max(0, n_rows - 1).bit_length()
        signs = np.empty((1, n_rows), np.float32)
        kernel_values.hashed_signs(np.uint64(seed), 0, signs)
        picked = np.random.default_rng(seed).choice(self._width, min(n_columns, self._width), replace=False)
        self._signs, self._picked = signs[0], np.sort(picked)
        self._scale = np.float32(1 / np.sqrt(len(picked)))

    def combine(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        padded = np.zeros((len(rows), self._width), np.float32)
        np.multiply(rows, self._signs, out=padded[:, : self._n_rows])
        kernel_values.walsh_hadamard(padded)
        return padded[:, self._picked] * self._scale

    def spread(self, M: NDArray[np.float64]) -> NDArray[np.float32]:
        padded = np.zeros((M.shape[1], self._width), np.float32)
        padded[:, self._picked] = M.T * self._scale
        kernel_values.walsh_hadamard(padded)
        return np.ascontiguousarray((padded[:, : self._n_rows] * self._signs).T)


def column_sketch(method: str, n_rows: int, n_columns: int, seed: int) -> ColumnSketch:
    """The sketch of a method's name."""
    if method == "srht":
        return HadamardSketch(n_rows, n_columns, seed)
    if method == "countsketch":
        return BucketSketch(n_rows, n_columns, seed)
    return DenseSketch(n_rows, n_columns, seed, gaussian=method == "gaussian")


def sketched_columns_map(
    here: Executor, kernel: Kernel, X: Matrix, sketch: ColumnSketch, rank: int, root_rank: int | None = None
) -> KernelMap:
    """The rank-restricted map of ``K ~ C W^+ C'`` with ``C = K S`` and ``W = S' K S``, all rows being landmarks.

    `X`: ndarray or csr_array (n, d), as `working_landmarks` keeps rows. `root_rank`: rank that W's pseudo-inverse is
    cut to.

    References: Wang, Gittens and Mahoney, JMLR 20 (2019), algorithm 2.
    """
    columns = KernelColumns(kernel, X)
    cuts = [*range(0, X.shape[0], PIECE_ROWS), X.shape[0]]
    pieces = [slice(start, stop) for start, stop in pairwise(cuts)]
    C = np.concatenate(here.each("columns", _combined, pieces, X, columns, sketch))
    W = sketch.combine(np.ascontiguousarray(C.T))
    root = inverse_root(W, root_rank)
    inner = root.T @ _gram(C) @ root
    rank = min(rank, len(inner))
    _, directions = eigh(inner, subset_by_index=[len(inner) - rank, len(inner) - 1])
    return KernelMap.of(kernel, X, sketch.spread(oriented(root @ directions[:, ::-1])))


def _combined(piece: slice, X: Matrix, columns: KernelColumns, sketch: ColumnSketch) -> NDArray[np.float32]:
    rows = X[piece]
    return np.concatenate([sketch.combine(values[: rows.shape[0] - start]) for start, values in columns.batches(rows)])


def _gram(C: NDArray[np.float32]) -> NDArray[Any]:
    """``C' C`` in float64, a few rows at a time."""
    total = np.zeros((C.shape[1], C.shape[1]))
    for start in range(0, len(C), PIECE_ROWS):
        rows = C[start : start + PIECE_ROWS].astype(np.float64)
        add_outer_products(rows, total)
    return np.tril(total) + np.tril(total, -1).T
