"""Kernel k-means with the whole kernel matrix, for few rows; the studies compare the approximations with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from streamkm.core.matrix import Matrix
from streamkm.fitting.kernel.landmarks import kept
from streamkm.sketches.kernel_columns import Kernel, KernelColumns
from streamkm.sketches.kernel_map import inverse_root

POWER_STEPS = 2


def kernel_objective(K: NDArray[Any], labels: NDArray[Any], weights: NDArray[np.float64] | None = None) -> float:
    """Weighted sum of squared distances, in the kernel's space, to the means of the clusters, in float64.

    ``sum_i w_i K_ii - sum_c (sum_ij in c w_i w_j K_ij) / (sum_i in c w_i)`` for labels from 0; -1 is left out. O(n^2).
    """
    w = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    total = 0.0
    for label in np.unique(labels[labels >= 0]):
        rows = np.flatnonzero(labels == label)
        mass = w[rows].sum()
        if mass > 0:
            inside = K[np.ix_(rows, rows)].astype(np.float64)
            total += float(w[rows] @ np.diagonal(inside)) - float(w[rows] @ inside @ w[rows]) / mass
    return total


def exact_objective(
    kernel: Kernel, X: Matrix, labels: NDArray[Any], weights: NDArray[np.float64] | None = None
) -> float:
    """The `kernel_objective` of rows (n, d), with 256 rows of the kernel matrix at a time, in float32. O(n^2 d)."""
    w = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(labels, kind="stable")
    order = order[(labels[order] >= 0) & (w[order] > 0)]
    rows, w = kept(X[order]), w[order]
    firsts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    group = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
    shares = w / np.add.reduceat(w, firsts)[group]
    total = float(w @ kernel.diagonal(rows))
    for start, values in KernelColumns(kernel, rows).batches(rows):
        mine = slice(start, start + len(values))
        inside = np.add.reduceat(values[: len(w) - start] * w, firsts, axis=1)
        total -= float(shares[mine] @ inside[np.arange(len(inside)), group[mine]])
    return total


@dataclass(frozen=True, slots=True)
class ExactResult:
    """Where exact kernel k-means stopped.

    Attributes
    ----------
    labels : int32 (n,)
    inertia : float
        The kernel objective of the labels.
    n_iter : int
    converged : bool
        Whether no label changed in the last step.
    """

    labels: NDArray[np.int32]
    inertia: float
    n_iter: int
    converged: bool


def exact_kernel_kmeans(
    K: NDArray[Any], labels: NDArray[Any], *, max_iter: int = 100, weights: NDArray[np.float64] | None = None
) -> ExactResult:
    """Run Lloyd's algorithm in the kernel's space from given labels until none changes.

    The squared distance of row i to the mean of cluster c, whose rows j and l weigh W_c in all, is
    ``K_ii - 2 sum_j w_j K_ij / W_c + sum_jl w_j w_l K_jl / W_c^2``. A cluster that loses all its rows stays
    empty. Ties go to the lower label. O(n^2 + n k) a step.

    Parameters
    ----------
    K : ndarray (n, n)
        Positive semidefinite, or the objective may rise.
    labels : int (n,)
        From 0 to k - 1.
    max_iter : int
    weights : float64 (n,), optional

    References
    ----------
    Dhillon, Guan and Kulis, "Kernel k-means, spectral clustering and normalized cuts", KDD 2004, algorithm 1.
    """
    w = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    n_clusters = int(labels.max()) + 1
    now = labels.astype(np.int32)
    converged, n_iter = False, 0
    while n_iter < max_iter and not converged:
        n_iter += 1
        members = np.zeros((len(now), n_clusters))
        members[np.arange(len(now)), now] = w
        mass = members.sum(axis=0)
        members /= np.where(mass > 0, mass, 1.0)
        crossed = K @ members
        d2 = np.einsum("ij,ij->j", members, crossed) - 2 * crossed
        d2[:, mass == 0] = np.inf
        after = d2.argmin(axis=1).astype(np.int32)
        converged = bool(np.array_equal(after, now))
        now = after
    return ExactResult(now, kernel_objective(K, now, w), n_iter, converged)


def power_features(
    K: NDArray[Any], rank: int, *, n_columns: int | None = None, n_steps: int = POWER_STEPS, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Features (n, rank) whose inner products approach the best approximation of K of that rank.

    The power method from a Gaussian start of c columns: with Q a basis of ``K^t G``, the leading eigenvectors of ``Q' K
    Q``. It is made orthogonal after every product, not after the last alone, which is the same space but for rounding.
    O(n^2 c t). Few steps do: of the order of log(n / eps) over the log of the gap of eigenvalues s and s + 1
    (reconstructed).

    Parameters
    ----------
    K : ndarray (n, n)
        Positive semidefinite.
    rank : int
    n_columns : int, optional
        c, from `rank`. None: twice the rank.
    n_steps : int
        t, at least 1.
    rng : Generator

    References
    ----------
    Wang, Gittens and Mahoney, JMLR 20 (2019), algorithm 1; Halko, Martinsson and Tropp, SIAM Review 53 (2011),
    algorithms 4.4 and 5.3.
    """
    width = min(len(K), 2 * rank if n_columns is None else n_columns)
    if width < min(rank, len(K)) or n_steps < 1:
        raise ValueError(f"n_columns={n_columns}, n_steps={n_steps}; needed: from {rank}, and from 1")
    basis = rng.normal(size=(len(K), width))
    for _ in range(n_steps):
        basis, _ = np.linalg.qr(K @ basis)
    return leading_features(basis.T @ (K @ basis), basis, min(rank, width))


def leading_features(inner: NDArray[np.float64], basis: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
    """``basis @ U sqrt(L)`` (n, rank), L and U the largest eigenvalues of a symmetric matrix and their vectors."""
    values, vectors = eigh((inner + inner.T) / 2, subset_by_index=[len(inner) - rank, len(inner) - 1])
    return basis @ (vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0)))


def spectral_features(C: NDArray[Any], W: NDArray[Any], n_components: int) -> NDArray[np.float64]:
    """Spectral clustering's rows (n, n_components), of unit length, from the Nystroem approximation of a similarity.

    The approximation ``C W^+ C'`` is scaled by its row sums D to ``D^-1/2 C W^+ C' D^-1/2``, whose leading eigenvectors
    follow from a matrix c x c. For comparison: kernel k-means on Nystroem features needs no row sums and keeps a
    guarantee. O(n c^2).

    Parameters
    ----------
    C : ndarray (n, c)
        Similarities of rows to landmarks.
    W : ndarray (c, c)
        Those of the landmarks.
    n_components : int
        Usually k.

    References
    ----------
    Fowlkes, Belongie, Chung and Malik, "Spectral grouping using the Nystroem method", IEEE Trans. Pattern Anal. Mach.
    Intell. 26 (2004), section 3; rows of unit length: Ng, Jordan and Weiss, NIPS 2001.
    """
    B = C.astype(np.float64) @ inverse_root(W)
    degrees = B @ B.sum(axis=0)
    B /= np.sqrt(np.maximum(degrees, np.finfo(np.float32).eps * degrees.max()))[:, None]
    values, vectors = eigh(B.T @ B)
    n_components = min(n_components, len(values))
    rows = B @ (vectors[:, ::-1][:, :n_components] / np.sqrt(np.maximum(values[::-1][:n_components], 1e-12)))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)
