"""Clusters of a coreset of original rows: found anew, or from known centers by splits and joins that pay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import POLISH_STEPS, POLISH_TOL, LloydResult, lloyd, original_centers, polish
from streamkm.cluster.normalization import Normalization
from streamkm.cluster.rows import Block, inertia_of, row_d2
from streamkm.cluster.sampling.coreset import Part
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.seeding.search_set import SearchRows
from streamkm.cluster.seeding.split_merge import LLOYD_STEPS, Splits, split_gains, split_merge
from streamkm.cluster.tracking.transition import join_costs
from streamkm.engine import Executor, local_executor, open_executor
from streamkm.fitting.centers import search_centers
from streamkm.fitting.context import Settings
from streamkm.planning.memory_model import pca_rows
from streamkm.planning.sketch_choice import DENSE_IDENTITY, PCA_COMPONENTS, PCA_FEW_CLUSTERS, SPARSE_COMPONENTS
from streamkm.sketches.base_sketch import IdentitySketch, Sketch
from streamkm.sketches.countsketch import CountSketch
from streamkm.sketches.pca import PCASketch

# Share of a cluster's mean objective that an exchange must gain: what the draws of a coreset change by chance.
MARGIN = 0.2
EXCHANGE_ROUNDS = 10
GROWTH_ROUNDS = 20
# Share of the variance along a line that the halves of evenly spread rows explain; of normal ones 0.64. Where the
# number of clusters is not fixed, halves that explain no more are one cluster.
EVEN = 0.75
# A join may cost this share of the least gain of a split, so that a split is not undone at once.
HYSTERESIS = 0.5
# Times that distant rows are left out of a cluster, if they are one of its halves, to search for halves again.
PEELED = 4
# Share of the mean weight of a cluster that each half of a split must have, if the number is not fixed.
SMALLEST = 0.05
# Share of it below which a cluster is let go, unless the join would cost the mean objective of a cluster.
FADED = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(Settings):
    """Validated settings of a stream; from fewer distinct rows than `n_clusters`, fewer clusters are found."""

    most: int = 0  # clusters after updates, which find at least `n_clusters`; no more: their number is kept
    refine: int | str = 0
    streams: ClassVar[tuple[str, ...]] = ("seeding", "search", "sketch")


def cluster_coreset(
    coreset: Part, settings: StreamSettings, executor: Any = "auto"
) -> tuple[LloydResult, NDArray[np.float64]]:
    """Cluster the rows of a coreset by their weights, with threads of this process; return the clusters' weights, too.

    A coreset of all rows gets the whole of Lloyd's algorithm, others a few steps: more would fit the coreset, not the
    data. O(s * d * k) a step for s dense rows, O(nnz * k) for sparse ones. Raises InvalidInputError: `init` has another
    number of features than the rows.
    """
    sample, normalization = _normalized(coreset)
    settings = replace(settings, n_clusters=min(settings.n_clusters, len(sample.rows)))
    explained = None
    with open_executor(executor) as workers, local_executor(workers) as here:
        sketch = _sketch_of(sample, settings)
        sketched, pool = sample.block(here, sketch), SearchRows(n_rows=coreset.n_rows)
        centers = search_centers(here, sketched, settings, sample.X, sketch, normalization, pool)
        if not sketch.is_identity:
            centers, explained = original_centers(here, sample, sketched, centers)
        result = polish(here, sample, centers, max_iter=settings.max_iter, tol=settings.tol, begun=explained)
        blocks = LocalBlocks.of(here, sample.original_block())
        totals = blocks.totals(result.centers)
        inertia = inertia_of(totals, result.centers, blocks.total_d2norm) / normalization.scale / normalization.scale
    return replace(result, centers=normalization.originals(result.centers), inertia=inertia), totals.counts


def _normalized(coreset: Part) -> tuple[Sample, Normalization]:
    """The rows of a coreset, normalized."""
    normalization = Normalization.of(coreset.X, moves=True)
    X = normalization.rows(coreset.X)
    return Sample(X, coreset.row_ids, coreset.weights, coreset.complete), normalization


def _sketch_of(sample: Sample, settings: StreamSettings) -> Sketch:
    """The sketch in which starts are found."""
    width, word = sample.X.shape[1], settings.seed64("sketch")
    if isinstance(settings.init, np.ndarray):
        return IdentitySketch(width)
    if not isinstance(sample.X, np.ndarray):
        return CountSketch(SPARSE_COMPONENTS, word) if width > SPARSE_COMPONENTS else IdentitySketch(width)
    if width <= DENSE_IDENTITY:
        return IdentitySketch(width)
    wanted = PCA_COMPONENTS if settings.n_clusters <= PCA_FEW_CLUSTERS else 2 * PCA_COMPONENTS
    rows = sample.X[: pca_rows(width, wanted)]
    return PCASketch.fit(rows, min(wanted, *rows.shape), random_state=word & 0xFFFFFFFF)


def follow(
    here: Executor,
    coreset: Part,
    centers: NDArray[np.float64],
    settings: StreamSettings,
    groups: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Go on from centers (k, d) to those of the rows of a coreset (k after, d). O(s k d) a step for s rows.

    Lloyd's algorithm, then exchanges of a join for a split that gains more than it costs, then splits and joins within
    the bounds on the number of clusters. New `groups` (g, d), far from all centers, begin as clusters if there may be
    more.
    """
    if groups is not None:
        centers = np.vstack([centers, groups[: max(0, settings.most - len(centers))]])
    sample, normalization = _normalized(coreset)
    whole = sample.original_block()
    pieces, rng = LocalBlocks.of(here, whole), np.random.default_rng(settings.seeds.entropy)
    found = _settled(pieces, normalization.points(centers))
    if len(found.centers) >= settings.most:
        found = split_merge(whole, pieces, found, max_rounds=EXCHANGE_ROUNDS, rng=rng, margin=MARGIN / len(centers))
    found = _grown(whole, pieces, found, settings, rng)
    found = _shrunk(pieces, found, settings)
    return normalization.originals(found.centers)


def _settled(pieces: LocalBlocks, centers: NDArray[np.float64], max_iter: int = POLISH_STEPS) -> LloydResult:
    return lloyd(pieces, centers, max_iter=max_iter, tol=POLISH_TOL)


def _grown(
    whole: Block, pieces: LocalBlocks, found: LloydResult, settings: StreamSettings, rng: np.random.Generator
) -> LloydResult:
    """Split clusters if that gains enough, up to the most clusters."""
    known: Splits = {}
    for _ in range(GROWTH_ROUNDS):
        k = len(found.centers)
        if k >= settings.most:
            break
        table = pieces.table(found.centers)
        labels = table.labels(whole.X)
        d2 = row_d2(whole.X, labels, table) * (whole.weights if len(whole.weights) else 1.0)
        least, smallest = settings.tol * float(d2.sum()), SMALLEST * whole.total_weight() / k
        for _ in range(PEELED):
            gains, halves = split_gains(pieces.executor, whole, labels, d2, k + 1, rng, known)
            apart = np.zeros(k)
            n_peeled = 0
            for c in np.flatnonzero(gains[:k] > least).tolist():
                rows = np.flatnonzero(labels == c)
                apart[c], few = _separation(whole, rows, halves[c], smallest)
                labels[rows[few]] = k
                n_peeled += int(few.sum())
            if not n_peeled:
                break
        wanted = np.flatnonzero((gains[:k] > least) & (apart > EVEN))
        if k < settings.n_clusters:
            wanted = np.union1d(wanted, np.argsort(-gains[:k], kind="stable")[: settings.n_clusters - k])
            wanted = wanted[gains[wanted] > 0]
        chosen = wanted[np.argsort(-gains[wanted], kind="stable")][: settings.most - k]
        if not len(chosen):
            break
        centers = np.vstack([found.centers, halves[chosen, 1]])
        centers[chosen] = halves[chosen, 0]
        found = _settled(pieces, centers)
    return found


def _shrunk(pieces: LocalBlocks, found: LloydResult, settings: StreamSettings) -> LloydResult:
    """Join clusters if that costs little, down to the fewest clusters."""
    while len(found.centers) > settings.n_clusters:
        totals = pieces.totals(found.centers)
        means = totals.means(found.centers)
        costs, nearest = join_costs(means, totals.counts)
        is_cheap = costs * len(costs) < found.inertia
        costs[is_cheap & (totals.counts <= FADED * totals.counts.mean())] = 0.0
        one = int(costs.argmin())
        must = len(found.centers) > settings.most
        if not must and costs[one] > HYSTERESIS * settings.tol * found.inertia:
            break
        other, share = int(nearest[one]), totals.counts[one] / max(totals.counts[[one, nearest[one]]].sum(), 1e-300)
        means[other] += share * (means[one] - means[other])
        found = _settled(pieces, np.delete(means, one, axis=0), LLOYD_STEPS)
    return found


def _separation(
    whole: Block, rows: NDArray[np.intp], halves: NDArray[np.float64], smallest: float
) -> tuple[float, NDArray[np.bool_]]:
    """Share of the variance of rows along the line between two halves that these explain, and rows of a small half."""
    way, weights = halves[1] - halves[0], whole.weights[rows] if len(whole.weights) else np.ones(len(rows))
    along = np.asarray(whole.X[rows] @ way, np.float64) - 0.5 * float((halves[0] + halves[1]) @ way)
    second = along > 0
    n_one, n_other = float(weights[second].sum()), float(weights[~second].sum())
    few = np.zeros(len(rows), np.bool_)
    if min(n_one, n_other) <= smallest:
        few = second if n_one < n_other else ~second
        return 0.0, few
    total = float(weights @ np.square(along - np.average(along, weights=weights)))
    one, other = (np.average(along[half], weights=weights[half]) for half in (second, ~second))
    return float(n_one * n_other / (n_one + n_other) * (one - other) ** 2 / max(total, 1e-300)), few
