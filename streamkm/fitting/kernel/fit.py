"""One kernel fit from a source to labels: sample, landmarks, projection, start, Lloyd, assign.

Takes validated values, returns a `KernelFit`. Knows nothing of estimators.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.model import Model
from streamkm.cluster.normalization import WHOLE
from streamkm.cluster.profile import euclidean_distances
from streamkm.cluster.rows import Totals
from streamkm.cluster.sampling.row_sample import Sample, SampleRule
from streamkm.cluster.seeding.search_set import search_rows
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import rows_between
from streamkm.core.memory import trim_heap
from streamkm.fitting.assign import assign
from streamkm.fitting.centers import epoch_room, pool_of, search_centers, seeded
from streamkm.fitting.context import FitContext, Settings
from streamkm.fitting.iterations import iterated
from streamkm.fitting.kernel.bandwidth import resolved
from streamkm.fitting.kernel.landmarks import precomputed_landmarks
from streamkm.fitting.kernel.maps import MapRule, first_round, fit_on_sample, neighbor_mapping
from streamkm.fitting.kernel.records import KernelRule, Mapping, given_back
from streamkm.fitting.reading import first_pass
from streamkm.fitting.refine import improve, warn_of_gain
from streamkm.fitting.state import Clustering, FitState, SampleView
from streamkm.passes.gathered import Gathered
from streamkm.passes.sketch import FindSketch, sketch_pass
from streamkm.planning.kernel_sizes import LANDMARK_SKETCHES, VIEW_ROWS
from streamkm.planning.plan_parts import epoch_schedule
from streamkm.sketches import GramFit, Kernel, Sketch

logger = logging.getLogger(__name__)

JUDGED_ROWS = 2000  # of the sample, that tell which width separates clusters better
SEPARATED = 0.95  # simplified silhouette of groups that are apart; handwritten digits are below 0.85
FEWEST_SHARE = 10  # a cluster of fewer rows than a tenth of the mean is not looked for by the width of neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings(Settings):
    """How to cluster, validated."""

    kernel: KernelRule
    map: MapRule
    all_rows: bool  # whether projection and clustering see all rows, not the row sample alone
    streams: ClassVar[tuple[str, ...]] = ("sample", "landmarks", "seeding", "search", "draws", "epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelContext(FitContext):
    """What every stage of a kernel fit works with; see `FitContext`."""

    settings: KernelSettings


@dataclass(frozen=True, slots=True)
class KernelFit:
    """The result of a kernel fit."""

    fit: FitState  # everything in the space of the features, where centers, sums and the objective are exact
    kernel: Kernel
    # upper bound of ``tr(K - B B')``, B the features of all rows; None where it is not known
    trace_residual: float | None


@dataclass(frozen=True, slots=True)
class KernelClustering:
    """The result of a search for centers, before any row is assigned."""

    gamma: float
    trace: float | None  # sum of k(x, x) over all rows, where the row sample holds all and it is not their number
    centers: Clustering


def run_kernel_fit(context: KernelContext) -> KernelFit:
    """Fit."""
    settings = context.settings
    found = context.writer.load("found", KernelClustering)
    if found is None:
        found = _find(context)
        writable = replace(found.centers, sketch=found.centers.sketch.writable())
        context.writer.save("found", replace(found, centers=writable))
    centers = replace(found.centers, sketch=given_back(found.centers.sketch, settings.kernel))
    kernel = settings.kernel.with_gamma(found.gamma)
    trim_heap(context.plan.limit_bytes)
    state = FitState.begun(context, centers)
    assign(context, state)
    while improve(context, state):
        assign(context, state)
    warn_of_gain(context, state.gain)
    model, assigned = state.model, replace(state.assigned, drawn=None)
    state.assigned, state.view_labels = assigned, assigned.labels[centers.sample_view.sample.rows]
    approximates = settings.map.method not in LANDMARK_SKETCHES and not getattr(model.sketch, "unit", False)
    residual = trace_residual(kernel, found.trace, model, assigned.totals) if approximates else None
    return KernelFit(state, kernel, residual)


def _find(context: KernelContext) -> KernelClustering:
    """Find centers among the features: sample, landmarks, map, start, Lloyd."""
    plan, settings, progress, here = context.plan, context.settings, context.progress, context.here
    sketched = first_pass(context, None, "sample")
    sample, chunk_rows = sketched.sample, sketched.chunk_rows
    mapping = _map(context, sample, chunk_rows)
    features = mapping.map
    with progress.stage("features", len(chunk_rows) if settings.all_rows else None) as stage:
        choice = settings.map.choice
        landmarks = max(settings.n_clusters, choice.n_landmarks) if settings.map.method == "two-step" else None
        sampled = sample.block(here, features, landmarks)
        blocks: Blocks = LocalBlocks.of(here, sampled)
        if settings.all_rows:
            gathered = Gathered(SampleRule(1, 0, np.inf))  # the sample is known
            record = None if context.spill is None else "features"
            passed = sketch_pass(context, gathered, stage, sketch=features, chunk_rows=chunk_rows, record=record)
            blocks = passed.blocks or blocks
    schedule = epoch_schedule(blocks.n_rows, settings, plan.cluster_on, room=epoch_room(plan, blocks))
    with progress.stage("seed"):
        held = None if sample.complete or not settings.all_rows else blocks
        first = rows_between(sample.X, 0, search_rows(settings.n_clusters))
        pool = pool_of(context, held, sketched.n_valid, averaged=schedule is not None)
        start = seeded(context, sampled, settings, first, features, WHOLE, pool)
    result, steps = iterated(context, blocks, start, schedule, accelerated=False)
    result = replace(result, labels=None)  # the assign pass finds them
    view = SampleView.of(context, sample, sampled, WHOLE, min(VIEW_ROWS, sampled.n_rows))
    found = Clustering(result, "sketch", features, tuple(steps), view, sketched.n_features, chunk_rows)
    return KernelClustering(mapping.gamma, _trace(settings.kernel.with_gamma(mapping.gamma), sample), found)


def _map(context: KernelContext, sample: Sample, chunk_rows: NDArray[np.int64]) -> Mapping:
    """Set the kernel's width, choose landmarks, and find the projection, by all rows or the sample."""
    settings, writer, progress = context.settings, context.writer, context.progress
    mapping = writer.load("map", Mapping)
    if mapping is not None:
        return mapping.restored(settings.kernel)
    with progress.stage("landmarks"):
        mapping = writer.load("landmarks", Mapping)
        if mapping is None:
            mapping = _first_mapping(context, sample, int(chunk_rows.sum()))
            writer.save("landmarks", mapping.writable())
        mapping = mapping.restored(settings.kernel)
        logger.info("kernel %s, gamma %.6g", settings.kernel.name, mapping.gamma)
    found = mapping.found
    with progress.stage("gram", len(chunk_rows) if settings.all_rows else None) as stage:
        if isinstance(found, GramFit) and settings.all_rows:
            found = context.run(FindSketch(found), stage, chunk_rows, record="gram")
        elif isinstance(found, GramFit):
            found = fit_on_sample(context.here, sample, found)
    mapping = Mapping.of(settings.kernel.with_gamma(mapping.gamma), found)
    writer.save("map", mapping.writable())
    return mapping


def _first_mapping(context: KernelContext, sample: Sample, n_rows: int) -> Mapping:
    """The kernel and its map; for gamma="auto" that of the width which separates clusters of sampled rows better."""
    settings, here = context.settings, context.here
    rule, n_neighbors = settings.kernel, settings.map.n_neighbors
    if rule.gamma == "neighbors":
        return neighbor_mapping(sample, rule, n_neighbors, settings.map.choice.rank)
    kernel = resolved(rule, sample)
    wide = Mapping.of(kernel, first_round(here, sample, kernel, settings.map, n_rows, settings.generator("landmarks")))
    if not n_neighbors:
        return wide
    try:
        near = neighbor_mapping(sample, rule, n_neighbors, settings.n_clusters)
    except InvalidInputError:  # too many rows are equal for a distance to neighbours
        return wide
    usual = _separation(context, sample, fit_on_sample(here, sample, wide.found))  # type: ignore[arg-type]
    found = _separation(context, sample, near.map)
    kept = found > max(usual, SEPARATED)
    told = "simplified silhouette %.2f at the mean distance, %.2f at the distance of neighbours: %s kept"
    logger.info(told, usual, found, "the latter" if kept else "the former")
    return near if kept else wide


def _separation(context: KernelContext, sample: Sample, features: Sketch) -> float:
    """Simplified silhouette of clusters of sampled rows among features; 0 where one has hardly any rows."""
    settings = context.settings
    rows = sample.block(context.here, features, JUDGED_ROWS)
    centers = search_centers(context.here, rows, settings, sample.X, features)
    if len(centers) < 2:
        return 0.0
    distances = euclidean_distances(rows.X, centers)
    nearest, second = np.partition(distances, 1, axis=1)[:, :2].T
    each = rows.weights if len(rows.weights) else np.ones(len(nearest))
    counts = np.bincount(distances.argmin(axis=1), each, minlength=settings.n_clusters)
    if counts.min() * FEWEST_SHARE * settings.n_clusters < each.sum():
        return 0.0
    return float(np.average(1 - nearest / np.maximum(second, np.finfo(np.float32).tiny), weights=each))


def _trace(kernel: Kernel, sample: Sample) -> float | None:
    """Sum of k(x, x) over all rows, where the sample holds them all."""
    if kernel.unit_diagonal or callable(kernel.name) or not sample.complete:
        return None
    if kernel.name == "precomputed":
        own, rows = precomputed_landmarks(sample, len(sample.rows))
        diagonal = np.asarray(own.multiply(rows).sum(axis=1), np.float64).ravel()
    else:
        diagonal = kernel.diagonal(sample.X)
    return float(diagonal @ sample.weights) if len(sample.weights) else float(diagonal.sum())


def trace_residual(kernel: Kernel, trace: float | None, model: Model, totals: Totals) -> float | None:
    """``tr(K - B B')`` or a little more: how far the exact kernel objective may lie above that of the features.

    With ``E = K - B B'``, which is positive semidefinite for landmarks, the exact objective of any clustering exceeds
    that of the features by ``tr(E) - tr(Z' E Z)``, Z the normalized indicators: something from 0 to ``tr(E)``. None for
    random features, whose E is not, for kernels that are not positive definite or unknown, and where k(x, x) is not 1
    and the sample does not hold all rows.

    `trace`: of the kernel matrix, where it is not the number of rows. `model`: its centers made the totals.
    """
    if not model.sketch.is_nystroem or callable(kernel.name) or kernel.name == "sigmoid":
        return None
    trace = float(totals.counts.sum()) if kernel.unit_diagonal else trace
    if trace is None:
        return None
    centers = model.centers
    crossed = float(np.einsum("ij,ij->", centers, totals.sums))
    squared = float(totals.counts @ np.einsum("ij,ij->i", centers, centers))
    explained = totals.d2 + 2 * crossed - squared  # sum of the features' squared norms
    return max(trace - explained, float(np.finfo(np.float32).eps) * trace)  # no less than float32 features can tell
