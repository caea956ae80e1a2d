"""One kernel fit from a source to labels: sample, landmarks, projection, start, Lloyd, assign.

Takes validated values, returns a `KernelFit`. Knows nothing of estimators.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import NO_WEIGHTS, Block
from streamkm.cluster.frame import WHOLE
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import Blocks, Totals, lloyd
from streamkm.cluster.row_sample import Sample, SampleRule
from streamkm.cluster.search_set import prefix, search_rows
from streamkm.compute import Executor, local_executor, open_executor
from streamkm.core.matrix import rows_between
from streamkm.core.memory import give_back
from streamkm.core.progress import Progress
from streamkm.fitting.centers import Found, Look, Settings, check_clusters, noted, starting_centers
from streamkm.fitting.kernel.bandwidth import resolved
from streamkm.fitting.kernel.landmarks import precomputed_landmarks
from streamkm.fitting.kernel.maps import MapRule, first_round, fit_on_sample
from streamkm.fitting.kernel.records import KernelRule, Mapping, given_back, writable
from streamkm.fitting.kmeans import Fit, kept_pass
from streamkm.fitting.rounds import Further, Labelling, assign_found
from streamkm.passes.reader import Walk
from streamkm.passes.resume import CheckpointWriter, Gathered, KeptSteps, KeptSums, Record
from streamkm.passes.sketch import count_pass, fit_pass, sketch_pass
from streamkm.planning.kernel_plan import LANDMARK_SKETCHES
from streamkm.planning.plan import Plan
from streamkm.sketches import FourierMap, GramFit, Kernel, Sketch

logger = logging.getLogger(__name__)

VIEW_ROWS = 5000  # feature rows kept for the 2-D picture
BANDWIDTH_ROWS = 5000  # of the sample, that set gamma: within about one in a hundred


@dataclass(frozen=True, slots=True)
class KernelSettings(Settings):
    """How to cluster, validated.

    Attributes
    ----------
    kernel : KernelRule
    map : MapRule
    all_rows : bool
        Whether projection and clustering see all rows, not the row sample alone.
    """

    kernel: KernelRule = field(kw_only=True)
    map: MapRule = field(kw_only=True)
    all_rows: bool = field(kw_only=True)
    streams: ClassVar[tuple[str, ...]] = ("sample", "landmarks", "seeding", "search")


@dataclass(frozen=True, slots=True)
class KernelFit:
    """What a kernel fit gives.

    Attributes
    ----------
    fit : Fit
        Everything in the space of the features, where centers, sums and the objective are exact.
    kernel : Kernel
    trace_residual : float or None
        Upper bound of ``tr(K - B B')``, B the features of all rows; None where it is not known.
    """

    fit: Fit
    kernel: Kernel
    trace_residual: float | None


@dataclass(frozen=True, slots=True)
class KernelFound:
    """What clustering found, before any row is assigned.

    Attributes
    ----------
    kernel : Kernel
    trace : float or None
        Sum of k(x, x) over all rows, where the row sample holds all and it is not their number.
    centers : Found
    """

    kernel: Kernel
    trace: float | None
    centers: Found

    def pack(self) -> Record:
        """As a record of a checkpoint."""
        arrays, meta = replace(self.centers, sketch=writable(self.centers.sketch)).pack()
        return arrays, meta | {"gamma": float(self.kernel.gamma), "trace": self.trace}

    @classmethod
    def unpack(cls, record: Record | None, rule: KernelRule) -> KernelFound | None:
        """The inverse of `pack`, for the parameters of the same run."""
        found = Found.unpack(record)
        if record is None or found is None:
            return None
        meta = record[1]
        found = replace(found, sketch=given_back(found.sketch, rule))
        return cls(rule.with_gamma(meta["gamma"]), meta["trace"], found)


def run_kernel_fit(
    walk: Walk,
    plan: Plan,
    settings: KernelSettings,
    weights: NDArray[np.float64],
    executor: Any,
    writer: CheckpointWriter,
    progress: Progress,
) -> KernelFit:
    """Fit.

    Parameters
    ----------
    weights : float64 (n,) or (0,)
    executor : "auto", int, or a Dask client
    writer : CheckpointWriter
    """
    with open_executor(executor, plan.n_threads) as workers, local_executor(workers) as here:
        found = KernelFound.unpack(writer.load("found"), settings.kernel)
        if found is None:
            found = _find(_Fitting(walk, plan, settings, weights, workers, here, writer, progress))
            writer.save("found", found.pack)
        centers = found.centers
        give_back(plan.limit_bytes)
        labelling = Labelling(workers, here, walk, weights)
        labelled = assign_found(labelling, centers, Further(settings), writer, progress)
        model, assigned, history = labelled.model, labelled.assigned, labelled.history
    view = centers.look.sketched.X
    view_labels = assigned.labels[centers.look.sample.rows]
    rows = centers.chunk_rows
    fit = Fit(model, assigned.labels, rows, assigned.totals, None, centers.result, history, view, view_labels)
    approximates = settings.map.method not in LANDMARK_SKETCHES
    return KernelFit(fit, found.kernel, trace_residual(found, assigned.totals) if approximates else None)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """What every stage of a fit is given; `workers` read rows, `here` works on the sample."""

    walk: Walk
    plan: Plan
    settings: KernelSettings
    weights: NDArray[np.float64]
    workers: Executor
    here: Executor
    writer: CheckpointWriter
    progress: Progress


def _find(fit: _Fitting) -> KernelFound:
    """Find centers among the features: sample, landmarks, map, start, Lloyd."""
    walk, settings, writer, progress = fit.walk, fit.settings, fit.writer, fit.progress
    rule = SampleRule.of(fit.plan.sample_rows, settings.word("sample"), walk.source.estimated_rows, fit.weights)
    chunk_rows = None
    if fit.plan.counts_first:
        with progress.stage("count", fit.plan.n_chunks) as stage:
            chunk_rows = count_pass(fit.workers, walk, stage)
    with progress.stage("sample", fit.plan.n_chunks) as stage:
        known = (fit.weights, chunk_rows)
        sketched = kept_pass(fit.workers, walk, Gathered(rule), stage, (writer, "sketch"), known=known)
    give_back(fit.plan.limit_bytes)
    sample, chunk_rows = sketched.sample, sketched.chunk_rows
    check_clusters(settings.n_clusters, sketched.n_valid)
    mapping = _map(fit, sample, chunk_rows)
    features: Sketch = mapping.found  # type: ignore[assignment]
    with progress.stage("features", len(chunk_rows) if settings.all_rows else None) as stage:
        sampled = _sampled(fit.here, sample, features, settings)
        blocks: Blocks = LocalBlocks.of(fit.here, sampled)
        if settings.all_rows:
            gathered = Gathered(SampleRule(1, 0, np.inf))  # the sample is known
            passed = sketch_pass(fit.workers, walk, features, gathered, fit.weights, chunk_rows, stage)
            blocks = passed.blocks or blocks
    with progress.stage("seed"):
        record = writer.load("seed")
        if record is None:
            rows = rows_between(sample.X, 0, search_rows(settings.n_clusters))
            held = None if sample.complete or not settings.all_rows else blocks
            start = starting_centers(fit.here, sampled, rows, features, settings, blocks=held)
            writer.save("seed", lambda: ({"centers": start}, {}))
        else:
            start = record[0]["centers"]
    with progress.stage("lloyd", settings.max_iter, "steps") as stage:
        kept = KeptSteps(writer, "lloyd", stage)
        result = lloyd(blocks, start, max_iter=settings.max_iter, tol=settings.tol, on_step=kept.step, begun=kept.begun)
    few = prefix(sampled, VIEW_ROWS)
    seen = Sample(sample.X[:0], sample.rows[: few.n_rows], NO_WEIGHTS, complete=False)
    look = Look(seen, Block(few.X.copy(), few.d2norms.copy(), few.weights.copy()), WHOLE)
    history = tuple(noted("lloyd", result))
    found = Found(result, "sketch", features, history, look, sketched.n_features, chunk_rows)
    return KernelFound(mapping.kernel, _trace(mapping.kernel, sample), found)


def _map(fit: _Fitting, sample: Sample, chunk_rows: NDArray[np.int64]) -> Mapping:
    """Set the kernel's width, choose landmarks, and find the projection, by all rows or the sample."""
    settings, writer, progress = fit.settings, fit.writer, fit.progress
    mapping = Mapping.unpack(writer.load("map"), settings.kernel)
    if mapping is not None:
        return mapping
    with progress.stage("landmarks"):
        mapping = Mapping.unpack(writer.load("landmarks"), settings.kernel)
        if mapping is None:
            kernel = resolved(settings.kernel, sample.X[:BANDWIDTH_ROWS])
            rng = settings.generator("landmarks")
            n_rows = int(chunk_rows.sum())
            mapping = Mapping(kernel, first_round(fit.here, sample, kernel, settings.map, n_rows, rng))
            writer.save("landmarks", mapping.pack)
        logger.info("kernel %s, gamma %.6g", settings.kernel.name, mapping.kernel.gamma)
    found = mapping.found
    with progress.stage("gram", len(chunk_rows) if settings.all_rows else None) as stage:
        if isinstance(found, GramFit) and settings.all_rows:
            kept = KeptSums(writer, "gram")
            found = fit_pass(  # type: ignore[assignment]
                fit.workers, fit.walk, found, fit.weights, chunk_rows, stage, kept
            )
        elif isinstance(found, GramFit):
            found = fit_on_sample(fit.here, sample, found)
    mapping = Mapping(mapping.kernel, found)
    writer.save("map", mapping.pack)
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


def trace_residual(found: KernelFound, totals: Totals) -> float | None:
    """``tr(K - B B')`` or a little more: how far the exact kernel objective may lie above that of the features.

    With ``E = K - B B'``, which is positive semidefinite for landmarks, the exact objective of any clustering exceeds
    that of the features by ``tr(E) - tr(Z' E Z)``, Z the normalized indicators: something from 0 to ``tr(E)``. None for
    random features, whose E is not, for kernels that are not positive definite or unknown, and where k(x, x) is not 1
    and the sample does not hold all rows.
    """
    kernel, centers = found.kernel, found.centers.result.centers
    if isinstance(found.centers.sketch, FourierMap) or callable(kernel.name) or kernel.name == "sigmoid":
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
