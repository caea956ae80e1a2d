"""The width of a kernel from a row sample, by sums if they suffice, else by pairs of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.profile import euclidean_distances
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix
from streamkm.fitting.context import KernelRule
from streamkm.kernels.sketch import kernel_values
from streamkm.sketches.kernel_columns import BATCH_ROWS, OVERLAPS, WITHOUT_GAMMA, Kernel, KernelFunction

SUM_ROWS = 5000  # that set gamma by sums: within about one in a hundred
NEIGHBOR = 7  # whose median distance is a width: Zelnik-Manor and Perona, NIPS 2004, section 2
ALONE = 3  # times that distance to the same neighbour, from which a row is no landmark: it would be a group by itself
PAIR_ROWS = 256  # whose differences are averaged if no formula gives the mean


def mean_d2(X: Matrix, weights: NDArray[np.float64] = NO_WEIGHTS) -> float:
    """Mean squared distance of all pairs of rows, ``2 (mean |x|^2 - |mean x|^2)``, in float64; O(nnz)."""
    mass = _mass(X, weights)
    if not isinstance(X, np.ndarray):
        data, each = X.data.astype(np.float64), _of_values(X, weights)
        weighed = data * each if len(each) else data
        mean = np.bincount(X.indices, weighed, minlength=X.shape[1]) / mass
        return float(2 * (data @ weighed / mass - mean @ mean))
    mean = np.einsum("i,ij->j", weights, X) / mass if len(weights) else X.mean(axis=0, dtype=np.float64)
    total = 0.0
    for start in range(0, len(X), BATCH_ROWS):  # few enough to stay in the cache
        centered = X[start : start + BATCH_ROWS] - mean
        weighed = centered * weights[start : start + BATCH_ROWS, None] if len(weights) else centered
        total += float(np.vdot(centered, weighed))
    return 2 * total / mass


def gamma_by_rule(
    name: str | KernelFunction, X: Matrix, factor: float, weights: NDArray[np.float64] = NO_WEIGHTS
) -> float:
    """Gamma from sampled rows (s, d); a row of weight w counts as w equal rows.

    "rbf": ``factor / (2 s^2)`` with s^2 the mean squared distance of two rows. (Wang, Gittens and Mahoney, JMLR 20,
    2019, equation 5, reconstructed, take the mean distance times a factor; the sigma of 1840 that their published
    script has for MNIST's pixels is s over the root of 2, s being 2620: a factor of 2.) "laplacian" and "chi2": factor
    over the mean distance of all pairs (Zhang, Marszalek, Lazebnik and Schmid, IJCV 73, 2007, section 3.3). Others:
    factor over the mean squared norm, so that products are about 1. Gamma is 1 if all rows are equal, and for kernels
    without gamma.
    """
    if callable(name) or name in WITHOUT_GAMMA:
        return 1.0
    if name == "rbf":
        typical = 2 * mean_d2(*_standing_for(X, weights, SUM_ROWS))
    elif name in ("polynomial", "sigmoid"):
        typical = _mean_d2norm(*_standing_for(X, weights, SUM_ROWS))
    else:
        typical = _mean_difference(name, *_standing_for(X, weights, PAIR_ROWS))
    largest = float(np.finfo(np.float32).tiny)
    return factor / typical if typical > largest else 1.0


def gamma_by_neighbors(X: Matrix, factor: float) -> tuple[float, NDArray[np.int64]]:
    """Gamma ``factor / s^2`` of "rbf", s the median distance to the 7th neighbour, and the rows near others.

    One width for all rows, after Zelnik-Manor and Perona, "Self-tuning spectral clustering", NIPS 2004. Raises
    InvalidInputError: s is 0, or there are no 8 rows.
    """
    distances = np.sort(euclidean_distances(X), axis=1)[:, NEIGHBOR:][:, :1].ravel()
    width = float(np.median(distances)) if len(distances) else 0.0
    if not width > float(np.sqrt(np.finfo(np.float32).tiny)):
        raise InvalidInputError(
            f'gamma="neighbors": the {NEIGHBOR}th neighbour is at distance 0 from most of {X.shape[0]:,} sampled rows, '
            "or there are too few; give a number, or gamma=None"
        )
    return factor / width**2, np.flatnonzero(distances <= ALONE * width)


def _mean_d2norm(X: Matrix, weights: NDArray[np.float64]) -> float:
    """Mean squared norm of rows."""
    squares = np.square(X if isinstance(X, np.ndarray) else X.data, dtype=np.float64)
    return _total(squares, _of_values(X, weights)) / _mass(X, weights)


def _mean_difference(name: str, X: Matrix, weights: NDArray[np.float64]) -> float:
    """Mean distance of all pairs of a few rows, by differences."""
    rows = X if isinstance(X, np.ndarray) else X.toarray()
    rows = np.ascontiguousarray(rows[:, np.flatnonzero(np.any(rows != 0, axis=0))], np.float32)
    out = np.empty((len(rows), len(rows)), np.float32)
    kernel_values.minus_differences(OVERLAPS[name], rows, rows, out)
    if not len(weights):
        return float(-out.sum(dtype=np.float64) / len(rows) ** 2)
    shares = weights / weights.sum()
    return float(-shares @ out.astype(np.float64) @ shares)


def _standing_for(X: Matrix, weights: NDArray[np.float64], most: int) -> tuple[Matrix, NDArray[np.float64]]:
    """At most `most` rows, drawn at equal steps of the summed weights: the first ones of a sample are the heaviest."""
    if X.shape[0] <= most or not len(weights):
        return X[:most], weights
    ends = np.cumsum(weights)
    rows, counts = np.unique(np.searchsorted(ends, (np.arange(most) + 0.5) / most * ends[-1]), return_counts=True)
    return X[rows], counts.astype(np.float64)


def _mass(X: Matrix, weights: NDArray[np.float64]) -> float:
    """The total weight of rows."""
    return float(weights.sum()) if len(weights) else X.shape[0]


def _of_values(X: Matrix, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of a dense matrix's rows, or of the values that a sparse one stores."""
    return weights if isinstance(X, np.ndarray) or not len(weights) else np.repeat(weights, np.diff(X.indptr))


def _total(values: NDArray[Any], weights: NDArray[np.float64]) -> float:
    """Sum of values in float64, each times the weight of its row."""
    if not len(weights):
        return float(values.sum(dtype=np.float64))
    return float(weights @ values.sum(axis=tuple(range(1, values.ndim)), dtype=np.float64))


def resolved(rule: KernelRule, sample: Sample) -> Kernel:
    """The kernel of these parameters on sampled rows; a rule gives gamma if it is None or "auto"."""
    if rule.gamma is None or isinstance(rule.gamma, str):
        return rule.with_gamma(gamma_by_rule(rule.name, sample.X, rule.factor, sample.weights))
    return rule.with_gamma(rule.gamma)
