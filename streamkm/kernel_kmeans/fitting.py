"""One kernel fit from a source to labels: sample, landmarks, projection, start, Lloyd, assign.

Takes validated values, returns a `KernelFit`. May import passes and below; knows nothing of estimators.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.budget import Plan
from streamkm.centering import noted
from streamkm.cluster.blocks import Block
from streamkm.cluster.lloyd import Blocks, LloydResult, Totals, lloyd
from streamkm.cluster.local_blocks import LocalBlocks
from streamkm.cluster.sample import Sample, SampleRule
from streamkm.cluster.starting import Streams, prefix, search_rows, start_centers
from streamkm.compute import Executor, local_executor, open_executor
from streamkm.errors import InvalidInputError
from streamkm.keeping import Gathered
from streamkm.kernel_kmeans.bandwidth import resolved
from streamkm.kernel_kmeans.maps import MapRule, first_round, fit_on_sample
from streamkm.model import Model
from streamkm.passes import assign_pass, count_pass, fit_pass, sketch_pass
from streamkm.progress import Progress
from streamkm.sketches import FourierMap, GramFit, Kernel, Sketch
from streamkm.sketches.kernel_columns import KernelFunction
from streamkm.walk import Walk

logger = logging.getLogger(__name__)

VIEW_ROWS = 5000  # feature rows kept for the 2-D picture
BANDWIDTH_ROWS = 20_000  # of the sample, that set gamma


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Kernel parameters as given; `gamma` None: by the rule, times `factor`."""

    name: str | KernelFunction
    gamma: float | None
    factor: float
    degree: int
    coef0: float


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """How to cluster, validated.

    Attributes
    ----------
    kernel : KernelRule
    map : MapRule
    stream : bool
        Whether projection and clustering see all rows, not the row sample alone.
    n_clusters, n_init, max_iter : int
    tol : float
    init : str, or float64 (k, d)
    seeds : SeedSequence
    """

    kernel: KernelRule
    map: MapRule
    stream: bool
    n_clusters: int
    init: str | NDArray[np.float64]
    n_init: int
    max_iter: int
    tol: float
    seeds: np.random.SeedSequence


@dataclass(frozen=True, slots=True)
class KernelFit:
    """What a kernel fit gives.

    Attributes
    ----------
    model : Model
        In the space of the features.
    kernel : Kernel
    labels : int32 (n,)
    totals : Totals
        Exact sums, counts and objective in the space of the features.
    trace_residual : float or None
        Upper bound of ``tr(K - B B')``, B the features of all rows; None where it is not known.
    lloyd : LloydResult
    history : tuple of dict
    view : ndarray (at most 5000, m), and view_labels : int32
        Features of sampled rows, and their clusters.
    """

    model: Model
    kernel: Kernel
    labels: NDArray[np.int32]
    totals: Totals
    trace_residual: float | None
    lloyd: LloydResult
    history: tuple[dict[str, Any], ...]
    view: NDArray[Any]
    view_labels: NDArray[np.int32]


def run_kernel_fit(
    walk: Walk, plan: Plan, settings: KernelSettings, weights: NDArray[np.float64], executor: Any, progress: Progress
) -> KernelFit:
    """Fit.

    Parameters
    ----------
    weights : float64 (n,) or (0,)
    executor : "auto", int, or a Dask client
    """
    names = ("sample", "landmarks", "seeding", "search")
    streams = dict(zip(names, settings.seeds.spawn(len(names)), strict=True))
    seed = int(streams["sample"].generate_state(1, np.uint64)[0])
    rule = SampleRule.of(plan.sample_rows, seed, walk.source.estimated_rows, weights)
    with open_executor(executor) as workers, local_executor(workers) as here:
        chunk_rows = None
        if plan.counts_first:
            with progress.stage("count", plan.n_chunks) as stage:
                chunk_rows = count_pass(workers, walk, stage)
        with progress.stage("sample", plan.n_chunks) as stage:
            sketched = sketch_pass(workers, walk, None, Gathered(rule), weights, chunk_rows, stage)
        sample, chunk_rows = sketched.sample, sketched.chunk_rows
        if settings.n_clusters > sketched.n_valid:
            raise InvalidInputError(
                f"n_samples={sketched.n_valid} should be >= n_clusters={settings.n_clusters}; use fewer clusters"
            )
        with progress.stage("landmarks"):
            given = settings.kernel
            rows = sample.X[:BANDWIDTH_ROWS]
            kernel = resolved(given.name, given.gamma, given.factor, given.degree, given.coef0, rows)
            found = first_round(here, sample, kernel, settings.map, np.random.default_rng(streams["landmarks"]))
            logger.info("kernel %s, gamma %.6g", given.name, kernel.gamma)
        with progress.stage("gram", len(chunk_rows) if settings.stream else None) as stage:
            if isinstance(found, GramFit) and settings.stream:
                found = fit_pass(workers, walk, found, weights, chunk_rows, stage)  # type: ignore[assignment]
            features: Sketch = fit_on_sample(here, sample, found) if isinstance(found, GramFit) else found
        with progress.stage("features", len(chunk_rows) if settings.stream else None) as stage:
            sampled = _sampled(here, sample, features, settings)
            blocks: Blocks = LocalBlocks.of(here, sampled)
            if settings.stream:
                blocks = (
                    sketch_pass(workers, walk, features, Gathered(rule), weights, chunk_rows, stage).blocks or blocks
                )
        with progress.stage("seed"):
            searched = prefix(sampled, search_rows(settings.n_clusters))
            start = _start(here, searched, features, sketched.n_features, settings, streams)
        with progress.stage("lloyd", settings.max_iter, "steps") as stage:
            result = lloyd(
                blocks, start, max_iter=settings.max_iter, tol=settings.tol, on_step=lambda _: stage.advance()
            )
            history = noted("lloyd", result)
        model = Model(result.centers, sketched.n_features, walk.metric, "sketch", features)
        with progress.stage("assign", len(chunk_rows)) as stage:
            assigned = assign_pass(workers, walk, model, weights, chunk_rows, stage)
    view = np.asarray(sampled.X[:VIEW_ROWS])
    view_labels = assigned.labels[sample.rows[: len(view)]]
    residual = trace_residual(kernel, features, model, assigned.totals, sample)
    return KernelFit(
        model, kernel, assigned.labels, assigned.totals, residual, result, tuple(history), view, view_labels
    )


def trace_residual(kernel: Kernel, features: Sketch, model: Model, totals: Totals, sample: Sample) -> float | None:
    """``tr(K - B B')`` or a little more: how far the exact kernel objective may lie above that of the features.

    With ``E = K - B B'``, which is positive semidefinite for landmarks, the exact objective of any clustering exceeds
    that of the features by ``tr(E) - tr(Z' E Z)``, Z the normalized indicators: something from 0 to ``tr(E)``. None for
    random features, whose E is not, for kernels that are not positive definite or unknown, and where k(x, x) is not 1
    and the sample does not hold all rows.
    """
    if isinstance(features, FourierMap) or callable(kernel.name) or kernel.name == "sigmoid":
        return None
    if kernel.unit_diagonal:
        trace = float(totals.counts.sum())
    elif sample.complete:
        diagonal = kernel.diagonal(sample.X)
        trace = float(diagonal @ sample.weights) if len(sample.weights) else float(diagonal.sum())
    else:
        return None
    crossed = float(np.einsum("ij,ij->", model.centers, totals.sums))
    squared = float(totals.counts @ np.einsum("ij,ij->i", model.centers, model.centers))
    explained = totals.d2 + 2 * crossed - squared  # sum of the features' squared norms
    return max(0.0, trace - explained)


def _sampled(here: Executor, sample: Sample, features: Sketch, settings: KernelSettings) -> Block:
    """Features of the rows that starts are found on: the landmarks for "two-step", else the sample."""
    if settings.map.method == "two-step":
        return sample.block(here, features, max(settings.n_clusters, settings.map.choice.n_landmarks))
    return sample.block(here, features)


def _start(
    here: Executor,
    sampled: Block,
    features: Sketch,
    n_features: int,
    settings: KernelSettings,
    streams: dict[str, np.random.SeedSequence],
) -> NDArray[np.float64]:
    """Centers to start from (k, m): the features of those given, or found on the sampled rows."""
    if isinstance(settings.init, np.ndarray):
        if settings.init.shape[1] != n_features:
            raise InvalidInputError(f"init has {settings.init.shape[1]} features; the data have {n_features:,}")
        return np.asarray(features.apply(settings.init), np.float64)
    return start_centers(
        here,
        sampled,
        settings.n_clusters,
        init=settings.init,
        n_init=settings.n_init,
        streams=Streams(np.random.default_rng(streams["seeding"]), np.random.default_rng(streams["search"])),
    )
