"""The silhouette of sampled rows, with its standard error: scikit-learn's, exact for rows far from the origin too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.distances import euclidean_distances
from streamkm.core.exceptions import InvalidInputError


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
    """Mean silhouette (Rousseeuw, 1987) of sampled rows within their sample; rows with negative labels are left out.

    The sample has the rows that scikit-learn's `sample_size` would draw. O(s^2 d) time, 16 s^2 bytes for s rows.
    """
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
