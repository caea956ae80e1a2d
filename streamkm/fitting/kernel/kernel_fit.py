"""The map to features that a kernel fit finds on the row sample or on all rows; the rest is `run_fit`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamkm.cluster.model import Model
from streamkm.cluster.profile import euclidean_distances
from streamkm.cluster.rows import Totals
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.engine import Executor
from streamkm.fitting.centers import search_centers
from streamkm.fitting.context import FitContext, FoundKernel, KernelRule, Mapping, Settings
from streamkm.fitting.kernel.bandwidth import resolved
from streamkm.fitting.kernel.feature_maps import first_round, fit_on_sample, neighbor_mapping
from streamkm.fitting.kernel.landmarks import MapRule, precomputed_landmarks
from streamkm.fitting.kmeans import run_fit
from streamkm.fitting.state import FitState
from streamkm.passes.sketch import FindSketch, Sketched
from streamkm.planning.sketch_choice import LANDMARK_SKETCHES, VIEW_ROWS
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.kernel_columns import Kernel
from streamkm.sketches.kernel_map import GramFit

logger = logging.getLogger(__name__)

JUDGED_ROWS = 2000  # of the sample, that tell which width separates clusters better
SEPARATED = 0.95  # simplified silhouette of groups that are apart; handwritten digits are below 0.85
FEWEST_SHARE = 10  # the width of neighbours may not give a cluster of fewer rows than a tenth of the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings(Settings):
    """Validated settings of a kernel clustering."""

    kernel: KernelRule
    map: MapRule
    streams: ClassVar[tuple[str, ...]] = ("sample", "landmarks", "seeding", "search", "draws", "epochs", "coreset")
    accelerated: ClassVar[bool] = False

    @property
    def view_rows(self) -> int:
        """Sampled rows kept for the 2-D picture and for the estimate of the objective."""
        return VIEW_ROWS

    @property
    def start_rows(self) -> int | None:
        """The landmarks, for "two-step"; else all sampled rows."""
        return max(self.n_clusters, self.map.n_landmarks) if self.map.method == "two-step" else None

    def find_map(self, context: FitContext, sketched: Sketched) -> Mapping:
        """Set the kernel's width, choose landmarks, and find the projection, by all rows or the sample."""
        writer, progress, chunk_rows = context.writer, context.progress, sketched.chunk_rows
        mapping = writer.load("map", Mapping)
        if mapping is not None:
            return mapping
        with progress.stage("landmarks"):
            mapping = writer.load("landmarks", Mapping)
            if mapping is None:
                mapping = _first_mapping(context.here, self, sketched.sample, int(chunk_rows.sum()))
                writer.save("landmarks", mapping)
            logger.info("kernel %s, gamma %.6g", self.kernel.name, mapping.kernel.gamma)
        found, all_rows = mapping.found, context.plan.sketches_later
        with progress.stage("gram", len(chunk_rows) if all_rows else None) as stage:
            if isinstance(found, GramFit) and all_rows:
                found = context.run(FindSketch(found), stage, chunk_rows, record="gram")
            elif isinstance(found, GramFit):
                found = fit_on_sample(context.here, sketched.sample, found)
        mapping = Mapping(mapping.kernel, found)
        writer.save("map", mapping)
        return mapping


def run_kernel_fit(context: FitContext) -> tuple[FitState, Kernel, float | None]:
    """Fit; return everything in the space of the features, the kernel, and `trace_residual`, if it is known."""
    settings = context.settings
    assert isinstance(settings, KernelSettings)
    if callable(settings.kernel.name) and context.writer.checkpoint is not None:
        raise InvalidParameterError("a checkpoint holds no Python function; leave it out, or take a named kernel")
    state = run_fit(context)
    assert state.found.kernel is not None
    kernel, model = settings.kernel.with_gamma(state.found.kernel.gamma), state.model
    if settings.map.method in LANDMARK_SKETCHES or getattr(model.sketch, "unit", False):
        return state, kernel, None
    return state, kernel, trace_residual(kernel, state.found.kernel.trace, model, state.assigned.totals)


def _first_mapping(here: Executor, settings: KernelSettings, sample: Sample, n_rows: int) -> Mapping:
    """The kernel and its map; gamma="auto" takes the width that separates clusters of sampled rows better."""
    rule, n_neighbors = settings.kernel, settings.map.n_neighbors
    if rule.gamma == "neighbors":
        return neighbor_mapping(sample, rule, n_neighbors, settings.map.rank)
    kernel = resolved(rule, sample)
    known = FoundKernel(float(kernel.gamma), _trace(kernel, sample))
    wide = Mapping(known, first_round(here, sample, kernel, settings.map, n_rows, settings.generator("landmarks")))
    if not n_neighbors:
        return wide
    try:
        near = neighbor_mapping(sample, rule, n_neighbors, settings.n_clusters)
    except InvalidInputError:  # too many rows are equal for a distance to neighbours
        return wide
    usual = _separation(here, settings, sample, fit_on_sample(here, sample, wide.found))  # type: ignore[arg-type]
    found = _separation(here, settings, sample, near.found)  # type: ignore[arg-type] # both are maps
    kept = found > max(usual, SEPARATED)
    told = "simplified silhouette %.2f at the mean distance, %.2f at the distance of neighbours: %s kept"
    logger.info(told, usual, found, "the latter" if kept else "the former")
    return near if kept else wide


def _separation(here: Executor, settings: KernelSettings, sample: Sample, features: Sketch) -> float:
    """Simplified silhouette of clusters of sampled rows among features; 0 if one has hardly any rows."""
    rows = sample.block(here, features, JUDGED_ROWS)
    centers = search_centers(here, rows, settings, sample.X, features)
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
    """Sum of k(x, x) over all rows, if the sample holds them all."""
    if kernel.unit_diagonal or callable(kernel.name) or not sample.complete:
        return None
    if kernel.name == "precomputed":
        own, rows = precomputed_landmarks(sample, len(sample.rows))
        diagonal = np.asarray(own.multiply(rows).sum(axis=1), np.float64).ravel()
    else:
        diagonal = kernel.diagonal(sample.X)
    return float(diagonal @ sample.weights) if len(sample.weights) else float(diagonal.sum())


def trace_residual(kernel: Kernel, trace: float | None, model: Model, totals: Totals) -> float | None:
    """``tr(K - B B')`` or a little more: a bound on the exact kernel objective minus that of the features.

    With ``E = K - B B'``, positive semidefinite for landmarks, the exact objective of any clustering exceeds that of
    the features by ``tr(E) - tr(Z' E Z)``, Z the normalized indicators: by 0 to ``tr(E)``. None for random features,
    whose E is not, for kernels that are unknown or not positive definite, and if neither k(x, x) is 1 nor the sample
    holds all rows.
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
