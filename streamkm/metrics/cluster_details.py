"""Size, distances, neighbour and distinctive features of each cluster, and the silhouette of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.occurring import Columns
from streamkm.cluster.profile import Profile, euclidean_distances
from streamkm.metrics.cluster_summary import ClusterRow, ClusterSummary, Example, Trait

BATCH = 256  # clusters that are compared with all at a time
ROUNDING = 1e-12  # of a feature's largest mean
SAME = 0.01  # share by which two features may differ in all clusters and still mirror each other
RARE_QUANTILE = 0.9  # of the deviations of sparse features, which is added to each


@dataclass(frozen=True, slots=True)
class Wording:
    """Names, number and units of the features that describe clusters."""

    name: Callable[[int], str]  # of a feature's number
    n_traits: int  # features for each cluster, at most
    # (v,): optional, features that are words: these name a cluster, as far as they are more frequent in it. None: none
    # are words
    words: NDArray[np.int64] | None = None
    # (k + 1, d): optional, the clusters' means and, last, that of all rows, in the units to tell; by default those that
    # are compared
    means: NDArray[np.float64] | None = None

    def narrowed(self, columns: Columns) -> Wording:
        """A wording for means that have these columns alone."""
        features = columns.occurring
        return Wording(
            lambda number: self.name(int(features[number])),
            self.n_traits,
            None if self.words is None else np.flatnonzero(np.isin(features, self.words)),
            None if self.means is None else np.asarray(columns.narrow(self.means)),
        )


def describe_clusters(
    means: NDArray[np.float64],
    counts: NDArray[np.float64],
    deviations: NDArray[np.float64],
    told: Wording,
    profile: Profile | None = None,
) -> ClusterSummary:
    """Say what is in each cluster, by float64 means (k, d) and counts (k,). O(k^2 * d).

    `deviations`: float64 (d,), of the features; 0 sets nothing apart. `profile`: how rows lie about the centers.
    """
    total, (others, far) = float(counts.sum()), nearest_means(means)
    everywhere, varies, by_words = counts @ means / total, deviations > 0, told.words is not None
    if told.words is not None:
        varies &= np.isin(np.arange(len(deviations)), told.words)
    shown, of_all = list(means), everywhere
    if told.means is not None:  # what was scaled and scaled back is not quite 0
        least = ROUNDING * np.abs(told.means).max(axis=0)
        *shown, of_all = np.where(np.abs(told.means) < least, 0.0, told.means)
    signs = np.sign(everywhere)  # of hashed words, half of which count negative
    rows = []
    for cluster in np.argsort(-counts, kind="stable").tolist():
        filled, traits = counts[cluster] > 0, tuple[Trait, ...]()
        if filled and told.n_traits:
            apart = np.divide(means[cluster] - everywhere, deviations, out=np.zeros_like(everywhere), where=varies)
            numbers = largest(np.maximum(apart * signs, 0) if by_words else np.abs(apart), 2 * told.n_traits)
            numbers = (numbers if by_words else _unmirrored(numbers, means, everywhere, deviations))[: told.n_traits]
            values = (shown[cluster][numbers], of_all[numbers], apart[numbers])
            traits = tuple(map(Trait, map(told.name, numbers.tolist()), *(each.tolist() for each in values)))
        row = ClusterRow(
            cluster,
            whole(float(counts[cluster])),
            float(counts[cluster] / total),
            int(others[cluster]),
            float(far[cluster]),
            traits,
            **(_measured(profile, cluster, float(counts[cluster]), len(means)) if profile and filled else {}),
        )
        rows.append(row)
    return ClusterSummary(tuple(rows), by_words)


def _unmirrored(
    numbers: NDArray[np.intp], means: NDArray[np.float64], of_all: NDArray[np.float64], deviations: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Features without those that equal or mirror an earlier one in all clusters, as two categories do."""
    apart, kept = ((means[:, numbers] - of_all[numbers]) / deviations[numbers]).T, list[int]()
    for at, one in enumerate(apart):
        least = SAME * np.abs(one).max()
        if all(min(np.abs(one - apart[each]).max(), np.abs(one + apart[each]).max()) > least for each in kept):
            kept.append(at)
    return numbers[kept]


def between_deviations(means: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviations of the features' means over all rows (d,), which never exceed those of the rows."""
    shares = counts / max(float(counts.sum()), 1.0)
    return np.asarray(np.sqrt(shares @ (means - shares @ means) ** 2))


def whole(count: float) -> float:
    """A number of rows as an integer if it is one: only weights have fractions."""
    return int(count) if count.is_integer() else count


def steadied(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviations of sparse features plus a quantile of all, large enough to divide by.

    Most features of text occur in one sampled row or none: their own deviations say little. Tusher, Tibshirani and Chu,
    "Significance analysis of microarrays applied to the ionizing radiation response", PNAS 98 (2001), equation 1.
    """
    seen = deviations[deviations > 0]
    return deviations + float(np.quantile(seen, RARE_QUANTILE)) if len(seen) else deviations


def nearest_means(means: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest other one of k means, -1 for none, and its distance (k,). O(k^2 * d)."""
    others, far = np.full(len(means), -1, np.int32), np.zeros(len(means))
    for start in range(0, len(means) if len(means) > 1 else 0, BATCH):
        found = euclidean_distances(means[start : start + BATCH], means)
        rows = np.arange(len(found))
        found[rows, start + rows] = np.inf
        others[start : start + BATCH] = found.argmin(axis=1)
        far[start : start + BATCH] = found.min(axis=1)
    return others, far


def largest(sizes: NDArray[np.float64], n_wanted: int) -> NDArray[np.intp]:
    """Numbers of the largest values above 0, at most `n_wanted`, in descending order; equal ones by number."""
    near = np.flatnonzero(sizes > 0)  # few, of hashed words
    if len(near) > n_wanted:
        first = len(near) - n_wanted
        near = near[sizes[near] >= np.partition(sizes[near], first)[first]]
    return near[np.argsort(-sizes[near], kind="stable")][:n_wanted]


def _measured(profile: Profile, cluster: int, size: float, n_clusters: int) -> dict[str, Any]:
    """Measurements of a cluster in a profile, as fields of `ClusterRow`."""
    near = zip(profile.near_rows[cluster].tolist(), profile.near_d2[cluster].tolist(), strict=True)
    far = zip(profile.far_rows[cluster].tolist(), profile.far_d2[cluster].tolist(), strict=True)
    typical = tuple(Example(row, float(np.sqrt(d2))) for row, d2 in near if row >= 0)
    outlying = tuple(Example(row, float(np.sqrt(-d2))) for row, d2 in far if row >= 0)
    largest = outlying[0].distance if outlying else 0.0
    if profile.n_blank[cluster]:
        largest = float(np.maximum(largest, np.sqrt(profile.blank_d2[cluster])))
    away, silhouette = (profile.sums[cluster] / size).tolist()
    return {
        "mean_distance": away,
        "largest_distance": None if np.isnan(largest) else largest,
        "simplified_silhouette": silhouette if n_clusters > 1 and np.isfinite(silhouette) else None,
        "typical": typical,
        "outlying": outlying,
        "n_blank": int(profile.n_blank[cluster]),
    }


def mean_silhouette(distances: NDArray[np.float64], labels: NDArray[Any]) -> tuple[float, float]:
    """Mean silhouette of rows by distances (s, s), and its standard error by the draw of rows.

    ``(b - a) / max(a, b)`` of Rousseeuw (1987), with mean distances a to the own cluster and b to the nearest other
    one; 0 for a row alone. NaN unless there are two clusters and more rows than clusters.
    """
    n_rows, codes = len(labels), np.unique(labels, return_inverse=True)[1]
    counts, rows = np.bincount(codes), np.arange(n_rows)
    if not 2 <= len(counts) < n_rows:
        return np.nan, np.nan
    sums = distances @ sp.csr_array((np.ones(n_rows), (rows, codes)))
    alone = counts[codes] == 1
    within = sums[rows, codes] / np.where(alone, 1, counts[codes] - 1)
    means = sums / counts
    means[rows, codes] = np.inf
    nearest = means.min(axis=1)
    with np.errstate(invalid="ignore"):
        values = np.where(alone, 0.0, np.nan_to_num((nearest - within) / np.maximum(within, nearest)))
    return float(values.mean()), float(values.std(ddof=1)) / n_rows**0.5
