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
from streamkm.cluster.normalization import WHOLE
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.row_sample import Sample, SampleRule
from streamkm.cluster.seeding.search_set import prefix, search_rows
from streamkm.cluster.totals import Totals
from streamkm.core.matrix import rows_between
from streamkm.core.memory import trim_heap
from streamkm.engine import Executor
from streamkm.fitting.centers import epoch_room, pool_of, seeded
from streamkm.fitting.clustering import Clustering, SampleView
from streamkm.fitting.context import FitContext, Settings, check_clusters
from streamkm.fitting.iterations import iterated
from streamkm.fitting.kernel.bandwidth import resolved
from streamkm.fitting.kernel.landmarks import precomputed_landmarks
from streamkm.fitting.kernel.maps import MapRule, first_round, fit_on_sample
from streamkm.fitting.kernel.records import KernelRule, Mapping, SavedMapping, given_back
from streamkm.fitting.kmeans import Fit
from streamkm.fitting.labelling.rounds import assign_found, warn_of_gain
from streamkm.passes.gathered import Gathered
from streamkm.passes.sizes import ClusterOn
from streamkm.passes.sketch import FindSketch, Sketched, count_pass, sketch_pass
from streamkm.planning.kernel_sizes import LANDMARK_SKETCHES, VIEW_ROWS
from streamkm.planning.plan_parts import epoch_schedule
from streamkm.sketches import GramFit, Kernel, Sketch

logger = logging.getLogger(__name__)


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

    fit: Fit  # everything in the space of the features, where centers, sums and the objective are exact
    kernel: Kernel
    # upper bound of ``tr(K - B B')``, B the features of all rows; None where it is not known
    trace_residual: float | None


@dataclass(frozen=True, slots=True)
class KernelClustering:
    """What clustering found, before any row is assigned."""

    kernel: Kernel
    trace: float | None  # sum of k(x, x) over all rows, where the row sample holds all and it is not their number
    centers: Clustering

    def saved(self) -> SavedClustering:
        """The record for a checkpoint."""
        centers = replace(self.centers, sketch=self.centers.sketch.writable())
        return SavedClustering(float(self.kernel.gamma), self.trace, centers)


@dataclass(frozen=True, slots=True)
class SavedClustering:
    """A `KernelClustering` in a checkpoint."""

    gamma: float
    trace: float | None
    centers: Clustering

    def restored(self, rule: KernelRule) -> KernelClustering:
        """The result of an earlier run with the same parameters."""
        centers = replace(self.centers, sketch=given_back(self.centers.sketch, rule))
        return KernelClustering(rule.with_gamma(self.gamma), self.trace, centers)


def run_kernel_fit(context: KernelContext) -> KernelFit:
    """Fit."""
    settings = context.settings
    begun = context.writer.load("found", SavedClustering)
    found = _find(context) if begun is None else begun.restored(settings.kernel)
    if begun is None:
        context.writer.save("found", found.saved())
    centers = found.centers
    trim_heap(context.plan.limit_bytes)
    labelled = assign_found(context, centers)
    if settings.searches:
        warn_of_gain(labelled.gain, settings.refine)
    totals = labelled.assigned.totals
    fit = Fit(
        model=labelled.model,
        labels=labelled.assigned.labels,
        chunk_rows=centers.chunk_rows,
        totals=totals,
        distortion=None,
        lloyd=centers.result,
        history=labelled.history,
        view=centers.look.sketched.X,
        view_labels=labelled.assigned.labels[centers.look.sample.rows],
        promise=labelled.promise,
        gain=labelled.gain,
        n_rounds=labelled.n_rounds,
    )
    approximates = settings.map.method not in LANDMARK_SKETCHES
    return KernelFit(fit, found.kernel, trace_residual(found, fit.model.centers, totals) if approximates else None)


def _find(context: KernelContext) -> KernelClustering:
    """Find centers among the features: sample, landmarks, map, start, Lloyd."""
    plan, settings, progress, here = context.plan, context.settings, context.progress, context.here
    sketched = _row_sample(context)
    trim_heap(plan.limit_bytes)
    sample, chunk_rows = sketched.sample, sketched.chunk_rows
    check_clusters(settings.n_clusters, sketched.n_valid)
    mapping = _map(context, sample, chunk_rows)
    features: Sketch = mapping.found  # type: ignore[assignment]
    with progress.stage("features", len(chunk_rows) if settings.all_rows else None) as stage:
        sampled = _sampled(here, sample, features, settings)
        blocks: Blocks = LocalBlocks.of(here, sampled)
        if settings.all_rows:
            gathered = Gathered(SampleRule(1, 0, np.inf))  # the sample is known
            record = None if context.spill is None else "features"
            passed = sketch_pass(context, gathered, stage, sketch=features, chunk_rows=chunk_rows, record=record)
            blocks = passed.blocks or blocks
    on: ClusterOn = "blocks" if settings.all_rows else "sample"
    schedule = epoch_schedule(blocks.n_rows, settings, on, room=epoch_room(plan, blocks))
    with progress.stage("seed"):
        held = None if sample.complete or not settings.all_rows else blocks
        first = rows_between(sample.X, 0, search_rows(settings.n_clusters))
        pool = pool_of(context, held, sketched.n_valid, averaged=schedule is not None)
        start = seeded(context, sampled, first, features, pool=pool)
    result, steps = iterated(context, blocks, start, schedule, accelerated=False)
    result = replace(result, labels=None)  # the assign pass finds them
    few = prefix(sampled, VIEW_ROWS)
    seen = Sample(
        rows_between(sample.X, 0, few.n_rows).copy(),
        sample.rows[: few.n_rows].copy(),
        sample.weights[: few.n_rows].copy(),
        sample.complete and few.n_rows == len(sample.rows),
    )
    block = Block(few.X.copy(), few.d2norms.copy(), few.weights.copy())
    look = SampleView(seen, block, WHOLE, sample if plan.keeps_sample and few.n_rows < len(sample.rows) else None)
    found = Clustering(result, "sketch", features, tuple(steps), look, sketched.n_features, chunk_rows)
    return KernelClustering(mapping.kernel, _trace(mapping.kernel, sample), found)


def _row_sample(context: KernelContext) -> Sketched:
    """Sample rows in one pass, after counting them where that is needed."""
    plan, estimated = context.plan, context.reader.source.estimated_rows
    rule = SampleRule.of(plan.sample_rows, context.settings.seed64("sample"), estimated, context.weights)
    chunk_rows = None
    if plan.counts_first:
        with context.progress.stage("count", plan.n_chunks) as stage:
            chunk_rows = count_pass(context, stage)
    with context.progress.stage("sample", plan.n_chunks) as stage:
        return sketch_pass(context, Gathered(rule), stage, chunk_rows=chunk_rows, record="sketch")


def _map(context: KernelContext, sample: Sample, chunk_rows: NDArray[np.int64]) -> Mapping:
    """Set the kernel's width, choose landmarks, and find the projection, by all rows or the sample."""
    settings, writer, progress = context.settings, context.writer, context.progress
    begun = writer.load("map", SavedMapping)
    if begun is not None:
        return begun.restored(settings.kernel)
    with progress.stage("landmarks"):
        begun = writer.load("landmarks", SavedMapping)
        if begun is not None:
            mapping = begun.restored(settings.kernel)
        else:
            kernel = resolved(settings.kernel, sample)
            rng = settings.generator("landmarks")
            n_rows = int(chunk_rows.sum())
            mapping = Mapping(kernel, first_round(context.here, sample, kernel, settings.map, n_rows, rng))
            writer.save("landmarks", mapping.saved())
        logger.info("kernel %s, gamma %.6g", settings.kernel.name, mapping.kernel.gamma)
    found = mapping.found
    with progress.stage("gram", len(chunk_rows) if settings.all_rows else None) as stage:
        if isinstance(found, GramFit) and settings.all_rows:
            found = context.run(FindSketch(found), stage, chunk_rows, record="gram")  # type: ignore[assignment]
        elif isinstance(found, GramFit):
            found = fit_on_sample(context.here, sample, found)
    mapping = Mapping(mapping.kernel, found)
    writer.save("map", mapping.saved())
    return mapping


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


def trace_residual(found: KernelClustering, centers: NDArray[np.float64], totals: Totals) -> float | None:
    """``tr(K - B B')`` or a little more: how far the exact kernel objective may lie above that of the features.

    With ``E = K - B B'``, which is positive semidefinite for landmarks, the exact objective of any clustering exceeds
    that of the features by ``tr(E) - tr(Z' E Z)``, Z the normalized indicators: something from 0 to ``tr(E)``. None for
    random features, whose E is not, for kernels that are not positive definite or unknown, and where k(x, x) is not 1
    and the sample does not hold all rows.

    `centers`: float64 (k, m), that made the labels, and with them the totals.
    """
    kernel = found.kernel
    if not found.centers.sketch.is_nystroem or callable(kernel.name) or kernel.name == "sigmoid":
        return None
    trace = float(totals.counts.sum()) if kernel.unit_diagonal else found.trace
    if trace is None:
        return None
    crossed = float(np.einsum("ij,ij->", centers, totals.sums))
    squared = float(totals.counts @ np.einsum("ij,ij->i", centers, centers))
    explained = totals.d2 + 2 * crossed - squared  # sum of the features' squared norms
    return max(trace - explained, float(np.finfo(np.float32).eps) * trace)  # no less than float32 features can tell


def _sampled(here: Executor, sample: Sample, features: Sketch, settings: KernelSettings) -> Block:
    """Features of the rows that starts are found on: the landmarks for "two-step", else the sample."""
    if settings.map.method == "two-step":
        return sample.block(here, features, max(settings.n_clusters, settings.map.choice.n_landmarks))
    return sample.block(here, features)
