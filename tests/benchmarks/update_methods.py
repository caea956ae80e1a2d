"""Methods that follow clusters step by step: streamkm's updates, fits of all rows so far, and other libraries.

Each is a function of a seed and of the number of clusters. It gives a function that takes the rows so far and returns
labels of the new ones, which keep their meaning from step to step, and centers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

K, MOST, FEWEST = 40, 80, 20
HALF_LIFE, SHORT_HALF_LIFE = 30_000.0, 5_000.0
SPLIT_TOL = 2e-3


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows of a stream, up to a step."""

    X: NDArray[np.float32]  # (n, d): all rows so far
    weights: NDArray[np.float64]  # (n,): by the half-life
    n_new: int  # rows of the last step

    @property
    def new(self) -> NDArray[np.float32]:
        """The rows of the last step."""
        return self.X[-self.n_new :]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method says after a step."""

    labels: NDArray[Any]  # (n,): of the new rows
    centers: NDArray[np.float64]  # (k, d)


def updated(seed: int, n_clusters: int | tuple[int, int], half_life: float, tol: float) -> Callable[[Seen], Answer]:
    """`IncrementalKMeans.update`, which sees the new rows alone."""
    from streamkm import IncrementalKMeans

    kmeans = IncrementalKMeans(n_clusters, half_life=half_life, tol=tol, random_state=seed, progress=False)

    def take(seen: Seen) -> Answer:
        kmeans.update(seen.new)
        return Answer(kmeans.labels_, np.asarray(kmeans.cluster_centers_, np.float64))

    return take


@dataclass(slots=True)
class Matched:
    """Labels of fits one after the other, matched by the Hungarian method on squared distances of centers."""

    centers: NDArray[np.float64] | None = None
    ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    n_given: int = 0

    def match(self, centers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Ids of the clusters of a new fit; those without a partner get new ones."""
        from scipy.optimize import linear_sum_assignment
        from sklearn.metrics import euclidean_distances

        ids = np.full(len(centers), -1, np.int64)
        if self.centers is not None:
            before, now = linear_sum_assignment(euclidean_distances(self.centers, centers, squared=True))
            ids[now] = self.ids[before]
        fresh = ids < 0
        ids[fresh] = self.n_given + np.arange(fresh.sum())
        self.n_given += int(fresh.sum())
        self.centers, self.ids = centers, ids
        return ids


def refitted(seed: int, ks: Sequence[int]) -> Callable[[Seen], Answer]:
    """`StreamKMeans` on all rows so far, weighted, with a number of clusters for each step."""
    from streamkm import StreamKMeans

    matched, numbers = Matched(), iter(ks)

    def take(seen: Seen) -> Answer:
        fitted = StreamKMeans(next(numbers), random_state=seed, progress=False).fit(seen.X, sample_weight=seen.weights)
        centers = np.asarray(fitted.cluster_centers_, np.float64)
        return Answer(matched.match(centers)[fitted.labels_[-seen.n_new :]], centers)

    return take


def faiss_refitted(seed: int, k: int) -> Callable[[Seen], Answer]:
    """`faiss.Kmeans` on all rows so far, weighted."""
    import faiss

    matched = Matched()

    def take(seen: Seen) -> Answer:
        fitted = faiss.Kmeans(
            seen.X.shape[1], k, seed=seed + 1, max_points_per_centroid=len(seen.X), min_points_per_centroid=1
        )
        fitted.train(seen.X, weights=seen.weights.astype(np.float32))
        _, nearest = fitted.index.search(np.ascontiguousarray(seen.new), 1)
        centers = fitted.centroids.astype(np.float64)
        return Answer(matched.match(centers)[nearest[:, 0]], centers)

    return take


def minibatch(seed: int, k: int) -> Callable[[Seen], Answer]:
    """scikit-learn's `MiniBatchKMeans.partial_fit`, which does not forget."""
    from sklearn.cluster import MiniBatchKMeans

    fitted = MiniBatchKMeans(k, n_init=3, random_state=seed)

    def take(seen: Seen) -> Answer:
        fitted.partial_fit(seen.new)
        return Answer(fitted.predict(seen.new), fitted.cluster_centers_.astype(np.float64))

    return take


METHODS: dict[str, Callable[..., Callable[[Seen], Answer]]] = {
    "MiniBatchKMeans.partial_fit": minibatch,
    "faiss.Kmeans of all rows": faiss_refitted,
}
