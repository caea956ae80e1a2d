"""How good a clustering is by itself: silhouette, Calinski-Harabasz, Davies-Bouldin, objective.

Each is scikit-learn's of the same name. All but the silhouette follow from sums over rows, gathered in two walks, so
that rows need not fit in memory. Knows nothing of estimators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.distances import euclidean_distances
from streamkm.cluster.rows import NO_WEIGHTS, add_rows, batch_rows, row_d2
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix
from streamkm.fitting.opening import open_source
from streamkm.sources.base import RowSource

CHUNK_BYTES = 8 << 20  # decoded bytes of rows looked at together


@dataclass(frozen=True, slots=True)
class Spread:
    """Clusters, and how far their rows lie from their means.

    Attributes
    ----------
    counts : int64 (k,)
        Rows; clusters without rows are left out.
    means : float64 (k, d)
    d2, distances : float64 (k,)
        Sums of squared distances, and of distances, of the rows to the mean of their cluster.
    """

    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    d2: NDArray[np.float64]
    distances: NDArray[np.float64]


def spread(X: Any, labels: Any) -> Spread:
    """Gather means and distances of clusters; X is walked twice, a chunk at a time.

    Parameters
    ----------
    X : whatever `streamkm.open_source` accepts, and can be walked twice
    labels : int array-like (n,)
        Rows with negative labels are left out.

    Raises
    ------
    InvalidInputError
        If there are not as many labels as rows, or none that counts.

    Notes
    -----
    O(nnz + k * d) a walk; memory for 3 k d numbers. Means are found as offsets from the first row of each cluster, so
    that equal rows lie exactly on their mean.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InvalidInputError(f"labels are {labels.dtype} {labels.shape}; needed: integers (n,)")
    present, codes = np.unique(labels, return_inverse=True)
    codes = np.maximum(codes - np.count_nonzero(present < 0), -1).astype(np.int32)
    n_clusters = int(codes.max(initial=-1)) + 1
    if not n_clusters:
        raise InvalidInputError(f"none of {len(labels):,} labels is 0 or more; needed: a row in a cluster")
    source = open_source(X)
    sums, counts = np.zeros((n_clusters, source.n_features or 1)), np.zeros(n_clusters)
    firsts = np.zeros_like(sums)
    for rows, part in _labelled(source, codes):
        if rows.shape[1] > sums.shape[1]:  # text does not tell its width beforehand
            sums, firsts = (np.pad(each, ((0, 0), (0, rows.shape[1] - each.shape[1]))) for each in (sums, firsts))
        begun, at = np.unique(part, return_index=True)
        for cluster, row in zip(begun, at, strict=True):
            if cluster >= 0 and not counts[cluster]:
                first = rows[[row]]
                firsts[cluster, : rows.shape[1]] = first[0] if isinstance(first, np.ndarray) else first.toarray()[0]
        for start, offsets in _offsets(rows, part, firsts):
            add_rows(offsets, NO_WEIGHTS, part[start : start + offsets.shape[0]], sums, counts)
    means = firsts + sums / counts[:, None]
    d2, distances = np.zeros(n_clusters), np.zeros(n_clusters)
    table = NearestCenters.build(means, np.float64)
    for rows, part in _labelled(source, codes):
        found, valid = row_d2(rows, part, table), part >= 0
        d2 += np.bincount(part[valid], found[valid], n_clusters)
        distances += np.bincount(part[valid], np.sqrt(found[valid]), n_clusters)
    return Spread(counts.astype(np.int64), means, d2, distances)


def objective(X: Any, labels: Any) -> float:
    """Sum of squared distances of the rows to the means of their clusters; arguments as of `spread`."""
    return float(spread(X, labels).d2.sum())


def calinski_harabasz(X: Any, labels: Any) -> float:
    """Variance between clusters over that within, each over its degrees of freedom; arguments as of `spread`.

    NaN unless there are at least two clusters and more rows than clusters.

    References
    ----------
    Calinski and Harabasz, "A dendrite method for cluster analysis", Communications in Statistics 3 (1974).
    """
    found = spread(X, labels)
    n = found.counts.sum()
    from_middle = found.means - found.counts @ found.means / n
    between = float(found.counts @ np.einsum("ij,ij->i", from_middle, from_middle))
    return variance_ratio(int(n), len(found.counts), between, float(found.d2.sum()))


def davies_bouldin(X: Any, labels: Any) -> float:
    """Mean over clusters of how much each overlaps with the one it overlaps most; arguments as of `spread`.

    The lower the better; NaN unless there are at least two clusters and more rows than clusters.

    References
    ----------
    Davies and Bouldin, "A cluster separation measure", IEEE Trans. Pattern Anal. Mach. Intell. 1 (1979).
    """
    from scipy.spatial.distance import cdist

    found = spread(X, labels)
    n_rows = int(found.counts.sum())
    return mean_overlap(n_rows, found.distances / found.counts, cdist(found.means, found.means))


def silhouette(X: Any, labels: Any, *, sample_rows: int | None = None, random_state: Any = None) -> float:
    """Mean silhouette of sampled rows within their sample: exact for it, an estimate for the rest.

    Parameters
    ----------
    X : ndarray, memory map or CSR matrix (n, d)
        Only the sampled rows are looked at.
    labels : int array-like (n,)
        Rows with negative labels are left out before the sample is drawn.
    sample_rows : int or None, default=None
        Rows of the sample, s; None: all. The same rows as scikit-learn's `sample_size` would draw.
    random_state : int, RandomState or None
        Of the sample.

    Returns
    -------
    float
        In [-1, 1]; NaN unless the sample has at least two clusters and more rows than clusters.

    Notes
    -----
    O(s^2 d) time, 16 s^2 bytes.

    References
    ----------
    Rousseeuw, "Silhouettes", J. Computational and Applied Mathematics 20 (1987).
    """
    return sampled_silhouette(X, labels, sample_rows=sample_rows, random_state=random_state).mean


@dataclass(frozen=True, slots=True)
class SampledSilhouette:
    """The silhouette of sampled rows.

    Attributes
    ----------
    mean, standard_error : float
        NaN unless the sample has at least two clusters and more rows than clusters. The error is that of drawing rows:
        their standard deviation over the square root of their number.
    n_rows : int
        Of the sample.
    """

    mean: float
    standard_error: float
    n_rows: int

    @classmethod
    def of(cls, values: NDArray[np.float64] | None, n_rows: int) -> SampledSilhouette:
        """Gather what `row_silhouettes` gives."""
        if values is None:
            return cls(float("nan"), float("nan"), n_rows)
        return cls(float(values.mean()), float(values.std(ddof=1)) / n_rows**0.5, n_rows)


def sampled_silhouette(
    X: Any, labels: Any, *, sample_rows: int | None = None, random_state: Any = None
) -> SampledSilhouette:
    """As `silhouette`, with its standard error."""
    from sklearn.utils import check_random_state

    labels = np.asarray(labels)
    if labels.shape != X.shape[:1]:
        raise InvalidInputError(f"labels have shape {labels.shape}; X has {X.shape[0]:,} rows")
    rows = np.flatnonzero(labels >= 0)
    if sample_rows is not None:
        rows = rows[check_random_state(random_state).permutation(len(rows))[:sample_rows]]
    sampled = X[rows]
    distances = euclidean_distances(sampled)
    _, codes = np.unique(labels[rows], return_inverse=True)
    counts = np.bincount(codes)
    sums = cluster_sums(distances, codes, len(counts))
    return SampledSilhouette.of(row_silhouettes(sums, codes, counts), len(rows))


def cluster_sums(distances: NDArray[Any], codes: NDArray[Any], n_clusters: int) -> NDArray[np.float64]:
    """Sums (k, s) of every row's distances to the rows of each cluster, from distances (s, s), symmetric."""
    sums = np.zeros((n_clusters, len(distances)))
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    for cluster, part in zip(present, np.split(order, starts[1:]), strict=True):
        sums[cluster] = distances[part].sum(axis=0, dtype=np.float64)
    return sums


def row_silhouettes(sums: NDArray[np.float64], codes: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64] | None:
    """``(b - a) / max(a, b)`` of each row; None unless there are two clusters, and more rows than clusters.

    a is the mean distance to the other rows of the own cluster, b that to the rows of the nearest other cluster; a row
    alone in its cluster counts 0.

    Parameters
    ----------
    sums : float64 (k, s)
        Of every row's distances to each cluster.
    codes : int (s,)
    counts : int (k,)
        Rows of each cluster among the s; clusters with none take no part.
    """
    n_rows = sums.shape[1]
    if not 2 <= np.count_nonzero(counts) < n_rows:
        return None
    columns = np.arange(n_rows)
    own = counts[codes]
    with np.errstate(divide="ignore", invalid="ignore"):
        within = sums[codes, columns] / (own - 1)
        means = np.where(counts > 0, 1 / counts, np.inf)[:, None] * sums
        means[codes, columns] = np.inf
        means[counts == 0] = np.inf
        nearest = means.min(axis=0)
        values = (nearest - within) / np.maximum(within, nearest)
    values[own == 1] = 0.0
    judged: NDArray[np.float64] = np.nan_to_num(values)
    return judged


def variance_ratio(n_rows: int, n_clusters: int, between: float, within: float) -> float:
    """Calinski and Harabasz's ratio from sums of squares; 1 where nothing lies within, NaN where it has no meaning."""
    if not 2 <= n_clusters < n_rows:
        return float("nan")
    return 1.0 if within == 0 else between * (n_rows - n_clusters) / (within * (n_clusters - 1))


def mean_overlap(n_rows: int, widths: NDArray[np.float64], distances: NDArray[Any]) -> float:
    """Davies and Bouldin's index from mean distances to the means (k,) and those between means (k, k); or NaN."""
    if not 2 <= len(widths) < n_rows:
        return float("nan")
    if np.allclose(widths, 0) or np.allclose(distances, 0):
        return 0.0
    apart = np.where(distances == 0, np.inf, distances)
    return float(np.mean(np.max((widths[:, None] + widths) / apart, axis=1)))


def _offsets(rows: Matrix, part: NDArray[np.int32], firsts: NDArray[np.float64]) -> Iterator[tuple[int, Matrix]]:
    """Yield (first row, offsets of rows from the first row of their cluster, in float64), some at a time."""
    if isinstance(rows, np.ndarray):
        step = batch_rows(rows.shape[1])
        for start in range(0, len(rows), step):
            batch = rows[start : start + step]
            yield start, batch.astype(np.float64) - firsts[part[start : start + step]]
        return
    taken = sp.csr_array(firsts[:, : rows.shape[1]])[part]
    yield 0, sp.csr_array(rows.astype(np.float64) - taken)


def _labelled(source: RowSource, codes: NDArray[np.int32]) -> Iterator[tuple[Any, NDArray[np.int32]]]:
    """Rows of a source with their labels, a chunk at a time."""
    done = 0
    for rows in source.stream(CHUNK_BYTES):
        n_rows = rows.X.shape[0]
        if done + n_rows > len(codes):
            raise InvalidInputError(f"there are {len(codes):,} labels; {source.name} has more rows")
        yield rows.X, codes[done : done + n_rows]
        done += n_rows
    if done != len(codes):
        raise InvalidInputError(f"there are {len(codes):,} labels; {source.name} has {done:,} rows")
