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
    return mean_silhouette(euclidean_distances(X[rows]), labels[rows])


def mean_silhouette(distances: NDArray[np.float64], labels: NDArray[np.int32]) -> SampledSilhouette:
    """Mean silhouette of rows by the distances (s, s) between them."""
    from sklearn.metrics import silhouette_samples

    if not 2 <= len(np.unique(labels)) < len(labels):
        return SampledSilhouette(float("nan"), float("nan"), len(labels))
    values = silhouette_samples(distances, labels, metric="precomputed")
    return SampledSilhouette(float(values.mean()), float(values.std(ddof=1)) / len(labels) ** 0.5, len(labels))
