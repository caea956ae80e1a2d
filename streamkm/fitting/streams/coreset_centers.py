"""Clusters of a coreset of original rows: sketch it where rows are wide, start, polish, as a fit does with its sample.

Knows nothing of streams and estimators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.normalization import Normalization
from streamkm.cluster.polish import original_centers, polish
from streamkm.cluster.sampling.coreset import Coreset
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.seeding.search_set import Pool
from streamkm.cluster.totals import inertia_of
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine import local_executor, open_executor
from streamkm.fitting.centers import search_centers
from streamkm.fitting.context import Settings
from streamkm.planning.memory import pca_rows
from streamkm.planning.sketch_choice import DENSE_IDENTITY, PCA_COMPONENTS, PCA_FEW_CLUSTERS, SPARSE_COMPONENTS
from streamkm.sketches import CountSketch, IdentitySketch, PCASketch, Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(Settings):
    """How to cluster, validated; of fewer distinct rows than `n_clusters`, fewer clusters are found."""

    refine: int | str = 0
    streams: ClassVar[tuple[str, ...]] = ("seeding", "search", "sketch")


@dataclass(frozen=True, slots=True)
class Clusters:
    """Clusters of a coreset."""

    centers: NDArray[np.float64]  # (k, d): fewer than asked for where there are fewer distinct rows
    counts: NDArray[np.float64]  # (k,): weight of each cluster by the coreset; their sum is that of all rows
    inertia: float  # weighted sum of squared distances to the centers, by the coreset
    n_iter: int  # Lloyd steps on the coreset, after the settings
    converged: bool  # whether these ended by `tol`


def cluster_coreset(coreset: Coreset, settings: StreamSettings, executor: Any = "auto") -> Clusters:
    """Cluster the rows of a coreset by their weights.

    O(s * d * k) a step for s dense rows, O(nnz * k) for sparse ones.

    `coreset`: one that holds all rows gets the whole of Lloyd's algorithm; others a few steps, as more would fit the
    coreset, not the data. `executor`: "auto", int, or a Dask client, only threads of this process are used. Raises
    InvalidInputError: if `init` has another number of features than the rows.
    """
    frame = Normalization.of(coreset.X, moves=True)
    sample = Sample(frame.rows(coreset.X), coreset.places, coreset.weights, coreset.complete)
    n_clusters = min(settings.n_clusters, len(sample.rows))
    explained = None
    with open_executor(executor) as workers, local_executor(workers) as here:
        if not isinstance(settings.init, np.ndarray):
            sketch = _sketch_of(sample, n_clusters, settings.seed64("sketch"))
            sketched = sample.block(here, sketch)
            centers = search_centers(
                here,
                sketched,
                settings,
                n_clusters,
                lambda: coreset.X,
                lambda given: np.asarray(sketch.apply(frame.points(given)), np.float64),
                pool=Pool(n_rows=coreset.n_rows),
            )
            if not sketch.is_identity:
                centers, explained = original_centers(here, sample, sketched, centers)
        else:
            if settings.init.shape[1] != sample.X.shape[1]:
                given = settings.init.shape[1]
                raise InvalidInputError(f"init has {given} features; the rows have {sample.X.shape[1]:,}")
            centers = frame.points(settings.init)
        result = polish(here, sample, centers, max_iter=settings.max_iter, tol=settings.tol, begun=explained)
        blocks = LocalBlocks.of(here, sample.original_block())
        totals = blocks.totals(result.centers)
        inertia = inertia_of(totals, result.centers, blocks.total_d2norm) / frame.scale / frame.scale
    return Clusters(frame.originals(result.centers), totals.counts, inertia, result.n_iter, result.converged)


def _sketch_of(sample: Sample, n_clusters: int, word: int) -> Sketch:
    """The sketch that starts are found in, of a seed of 64 bits."""
    width = sample.X.shape[1]
    if not isinstance(sample.X, np.ndarray):
        return CountSketch(SPARSE_COMPONENTS, word) if width > SPARSE_COMPONENTS else IdentitySketch(width)
    if width <= DENSE_IDENTITY:
        return IdentitySketch(width)
    wanted = PCA_COMPONENTS if n_clusters <= PCA_FEW_CLUSTERS else 2 * PCA_COMPONENTS
    rows = sample.X[: pca_rows(width, wanted)]
    return PCASketch.fit(rows, min(wanted, *rows.shape), random_state=word & 0xFFFFFFFF)
