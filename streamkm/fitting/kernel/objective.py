"""The exact objective of kernel k-means, by all pairs of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.fitting.kernel.landmarks import kept
from streamkm.sketches.kernel_columns import Kernel, KernelColumns


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
    """The same from rows (n, d): 256 rows of the kernel matrix are held at a time, in float32. O(n^2 d)."""
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
