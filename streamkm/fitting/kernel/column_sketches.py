"""Randomized sketches of all kernel columns: C = K S for matrices S of normal numbers or signs, SRHT and CountSketch.

Every row meets every row, O(n^2 (d + c)), so this is for rows that fit in memory; `planning.kernel_plan` refuses more.
K is made a few rows at a time and never held.
"""

from __future__ import annotations

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


def column_sketch(method: str, n_rows: int, n_columns: int, seed: int) -> Matrix:
    """A random matrix S (n, c), scaled so that its columns have about unit length: ``E[S S'] = I``.

    "gaussian" and "signs": independent entries. "countsketch": each column of K is added, with a hashed sign, to one of
    c. "srht": random signs times c columns of the Walsh-Hadamard matrix.

    References: Wang, Gittens and Mahoney, JMLR 20 (2019), table 2; Achlioptas, J. Comput. Syst. Sci. 66 (2003) (signs);
    Clarkson and Woodruff, STOC 2013, section 2; Tropp, Adv. Adapt. Data Anal. 3 (2011) (SRHT).
    """
    if method == "countsketch":
        buckets, signs = np.empty(n_rows, np.int32), np.empty(n_rows, np.float32)
        hash_features(np.uint64(seed), 0, n_rows, np.uint64(n_columns), buckets, signs)
        return sp.csr_array((signs, buckets, np.arange(n_rows + 1)), shape=(n_rows, n_columns))
    if method == "gaussian":
        S = np.random.default_rng(seed).standard_normal((n_rows, n_columns), np.float32)
    elif method == "signs":
        S = np.empty((n_rows, n_columns), np.float32)
        kernel_values.hashed_signs(np.uint64(seed), 0, S)
    else:
        width, row_signs = 1 << max(0, n_rows - 1).bit_length(), np.empty((1, n_rows), np.float32)
        kernel_values.hashed_signs(np.uint64(seed), 0, row_signs)
        picked = np.sort(np.random.default_rng(seed).choice(width, min(n_columns, width), replace=False))
        rows = np.zeros((len(picked), width), np.float32)
        rows[np.arange(len(picked)), picked] = 1
        kernel_values.walsh_hadamard(rows)
        S = np.ascontiguousarray((rows[:, :n_rows] * row_signs).T)
    S /= np.float32(np.sqrt(S.shape[1]))
    return S


def sketched_columns_map(
    here: Executor, kernel: Kernel, X: Matrix, S: Matrix, rank: int, root_rank: int | None = None
) -> KernelMap:
    """The rank-restricted map of ``K ~ C W^+ C'`` with ``C = K S`` and ``W = S' K S``, all rows being landmarks.

    `X`: ndarray or csr_array (n, d), as `working_landmarks` keeps rows. `root_rank`: rank that W's pseudo-inverse is
    cut to.

    References: Wang, Gittens and Mahoney, JMLR 20 (2019), algorithm 2.
    """
    columns = KernelColumns(kernel, X)
    cuts = [*range(0, X.shape[0], PIECE_ROWS), X.shape[0]]
    pieces = [slice(start, stop) for start, stop in pairwise(cuts)]
    C = np.concatenate(here.each("columns", _combined, pieces, X, columns, S))
    W = np.ascontiguousarray(C.T) @ S
    root = inverse_root(W, root_rank)
    inner = root.T @ _gram(C) @ root
    rank = min(rank, len(inner))
    _, directions = eigh(inner, subset_by_index=[len(inner) - rank, len(inner) - 1])
    return KernelMap.of(kernel, X, S @ oriented(root @ directions[:, ::-1]).astype(np.float32))


def _combined(piece: slice, X: Matrix, columns: KernelColumns, S: Matrix) -> NDArray[np.float32]:
    rows = X[piece]
    return np.concatenate([values[: rows.shape[0] - start] @ S for start, values in columns.batches(rows)])


def _gram(C: NDArray[np.float32]) -> NDArray[Any]:
    """``C' C`` in float64, a few rows at a time."""
    total = np.zeros((C.shape[1], C.shape[1]))
    for start in range(0, len(C), PIECE_ROWS):
        rows = C[start : start + PIECE_ROWS].astype(np.float64)
        add_outer_products(rows, total)
    return np.tril(total) + np.tril(total, -1).T
