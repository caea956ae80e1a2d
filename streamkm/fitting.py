"""One fit from a source to labels, as the picture shows it: sketch, start, Lloyd, model, assign, refine.

Takes validated values, returns a `Fit`. May import passes and below; knows nothing of estimators.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.budget import Plan, available_memory, choose_space
from streamkm.cluster.blocks import Block
from streamkm.cluster.lloyd import Blocks, LloydResult, Totals, lloyd
from streamkm.cluster.polish import original_centers, polish
from streamkm.cluster.sample import SampleRule
from streamkm.cluster.starting import PIECES, Streams, cut, prefix, search_rows, start_centers
from streamkm.compute import Executor, local_executor, open_executor
from streamkm.errors import InvalidInputError
from streamkm.model import Model
from streamkm.passes import Sketched, assign_pass, count_pass, sketch_pass
from streamkm.progress import Progress
from streamkm.sketches import CountSketch, IdentitySketch, PCASketch, Sketch
from streamkm.walk import Walk

logger = logging.getLogger(__name__)

PCA_ROWS = 10_000  # of the sample, that directions are found on
VIEW_ROWS = 5000  # sketched rows kept for the 2-D picture


@dataclass(frozen=True, slots=True)
class Settings:
    """How to cluster, validated.

    Attributes
    ----------
    n_clusters, n_init, max_iter, refine : int
    tol : float
    init : "k-means++", "random", or float64 (k, d)
    seeds : SeedSequence
        Source of the named random streams.
    """

    n_clusters: int
    init: str | NDArray[np.float64]
    n_init: int
    max_iter: int
    tol: float
    refine: int
    seeds: np.random.SeedSequence


@dataclass(frozen=True, slots=True)
class Fit:
    """What a fit gives.

    Attributes
    ----------
    model : Model
        Its centers made the labels.
    labels : int32 (n,)
    totals : Totals
        Exact sums, counts and objective of the final clusters.
    distortion : float or None
        Objective of the final clusters in the sketch over that in the original space; None where only one is known.
    lloyd : LloydResult
        Of the stage that ended the iterations.
    history : tuple of dict
        ``{"stage", "iteration", "inertia"}``; each stage has rows and a space of its own.
    sketched : Sketched
    view : ndarray or csr_array (at most 5000, m)
        Sketched rows of the sample, and
    view_labels : int32
        their clusters.
    """

    model: Model
    labels: NDArray[np.int32]
    totals: Totals
    distortion: float | None
    lloyd: LloydResult
    history: tuple[dict[str, Any], ...]
    sketched: Sketched
    view: Any
    view_labels: NDArray[np.int32]


def run_fit(
    walk: Walk, plan: Plan, settings: Settings, weights: NDArray[np.float64], executor: Any, progress: Progress
) -> Fit:
    """Fit.

    Parameters
    ----------
    weights : float64 (n,) or (0,)
    executor : "auto", int, or a Dask client
    """
    streams = _named_streams(settings.seeds)
    sketch = make_sketch(plan, streams["sketch"])
    rule = SampleRule.of(plan.sample_rows, _word(streams["sample"]), walk.source.estimated_rows, weights)
    history: list[dict[str, Any]] = []
    with open_executor(executor) as workers, local_executor(workers) as here:
        chunk_rows = None
        if plan.counts_first:
            with progress.stage("count", plan.n_chunks) as stage:
                chunk_rows = count_pass(workers, walk, stage)
        with progress.stage("sketch", plan.n_chunks) as stage:
            sketched = sketch_pass(workers, walk, sketch, rule, weights, chunk_rows, stage)
        check_clusters(settings.n_clusters, sketched.n_valid)
        with progress.stage("seed"):
            sketch, blocks, sampled = _to_cluster(here, sketched, sketch, plan, settings, streams["sketch"])
            start = _start(here, sampled, sketch, sketched.n_features, settings, streams)
        space = plan.assign_space or choose_space(sketched.n_features, settings.n_clusters, available_memory())
        polished = space == "original" and not isinstance(sketch, IdentitySketch)
        with progress.stage("lloyd", settings.max_iter, "steps") as stage:
            record = _recorder(history, "lloyd", stage.advance)
            result = _iterate(blocks, start, settings, sketch, polished, sketched.sample.complete, record)
        model = Model(result.centers, sketched.n_features, walk.metric, space, sketch)
        if polished:
            with progress.stage("polish", None, "steps") as stage:
                centers = original_centers(here, sketched.sample, sketch, result.centers)
                if isinstance(sketch, PCASketch) and not sketched.sample.complete:
                    result = replace(result, centers=centers)  # already iterated on these rows
                else:
                    record = _recorder(history, "polish", stage.advance)
                    result = polish(
                        here, sketched.sample, centers, max_iter=settings.max_iter, tol=settings.tol, on_step=record
                    )
                model = replace(model, centers=result.centers)
        with progress.stage("assign", len(sketched.chunk_rows)) as stage:
            assigned = assign_pass(workers, walk, model, weights, sketched.chunk_rows, stage)
        for index in range(1, settings.refine + 1):
            model = replace(model, centers=assigned.totals.means(fallback=model.centers))
            with progress.stage(f"refine-{index}", len(sketched.chunk_rows)) as stage:
                assigned = assign_pass(workers, walk, model, weights, sketched.chunk_rows, stage)
                history.append({"stage": "refine", "iteration": index, "inertia": assigned.totals.d2})
        view = sketched.sample.block(here, sketch, VIEW_ROWS).X
    distortion = _distortion(sketched, sketch, model, assigned.totals)
    view_labels = assigned.labels[sketched.sample.rows[:VIEW_ROWS]]
    return Fit(model, assigned.labels, assigned.totals, distortion, result, tuple(history), sketched, view, view_labels)


def make_sketch(plan: Plan, seed: np.random.SeedSequence) -> Sketch | None:
    """The sketch that a plan names; None for one that is fitted on the row sample."""
    if plan.sketch == PCASketch.kind:
        return None
    if plan.sketch == IdentitySketch.kind:
        return IdentitySketch(plan.n_components)
    return CountSketch(plan.n_components, _word(seed))


def check_clusters(n_clusters: int, n_rows: int) -> None:
    """Refuse more clusters than rows."""
    if n_clusters > n_rows:
        raise InvalidInputError(f"n_samples={n_rows} should be >= n_clusters={n_clusters}; use fewer clusters")


def _named_streams(seeds: np.random.SeedSequence) -> dict[str, np.random.SeedSequence]:
    names = ("sketch", "sample", "seeding", "search")
    return dict(zip(names, seeds.spawn(len(names)), strict=True))


def _word(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1, np.uint64)[0])


def _to_cluster(
    here: Executor,
    sketched: Sketched,
    sketch: Sketch | None,
    plan: Plan,
    settings: Settings,
    seed: np.random.SeedSequence,
) -> tuple[Sketch, Blocks, Block]:
    """The sketch, the blocks that Lloyd runs on, and the sketched rows that starts are found on."""
    sample = sketched.sample
    if sketch is not None and sketched.blocks is not None:
        return sketch, sketched.blocks, sample.block(here, sketch, search_rows(settings.n_clusters))
    m = min(plan.n_components, *sample.X[:PCA_ROWS].shape)
    fitted = PCASketch.fit(sample.X[:PCA_ROWS], m, random_state=_word(seed) & 0xFFFFFFFF)
    block = sample.block(here, fitted)
    blocks = Blocks.of_local(here, cut(block, PIECES), m)
    return fitted, blocks, prefix(block, search_rows(settings.n_clusters))


def _start(
    here: Executor,
    sampled: Block,
    sketch: Sketch,
    n_features: int,
    settings: Settings,
    streams: dict[str, np.random.SeedSequence],
) -> NDArray[np.float64]:
    """Centers to start from (k, m): those given, or found on the sampled rows."""
    if isinstance(settings.init, np.ndarray):
        if settings.init.shape[1] != n_features:
            raise InvalidInputError(f"init has {settings.init.shape[1]} features; the data have {n_features:,}")
        return np.asarray(sketch.apply(settings.init), np.float64)
    return start_centers(
        here,
        sampled,
        settings.n_clusters,
        init=settings.init,
        n_init=settings.n_init,
        streams=Streams(np.random.default_rng(streams["seeding"]), np.random.default_rng(streams["search"])),
    )


def _iterate(
    blocks: Blocks,
    start: NDArray[np.float64],
    settings: Settings,
    sketch: Sketch,
    polished: bool,
    complete: bool,
    record: Callable[[float], None],
) -> LloydResult:
    """Lloyd on the blocks; one step, or none where the sample holds all rows, if polishing follows and iterates."""
    if polished and complete:
        return LloydResult(start, float("nan"), 0, False, ())
    one_step = polished and not isinstance(sketch, PCASketch)
    return lloyd(blocks, start, max_iter=1 if one_step else settings.max_iter, tol=settings.tol, on_step=record)


def _recorder(history: list[dict[str, Any]], stage: str, advance: Callable[[float], None]) -> Callable[[float], None]:
    """A function that notes the inertia of each step."""

    def record(inertia: float) -> None:
        iteration = 1 + sum(entry["stage"] == stage for entry in history)
        history.append({"stage": stage, "iteration": iteration, "inertia": inertia})
        advance(1)

    return record


def _distortion(sketched: Sketched, sketch: Sketch, model: Model, totals: Totals) -> float | None:
    """Objective of the final clusters in the sketch over that in the original space.

    The sketch is linear, so the sketched sums of the clusters are the sketch of their sums.
    """
    if model.space == "sketch":
        return None
    filled = totals.counts > 0
    counts, centers = totals.counts[filled], model.centers[filled]
    means = totals.sums[filled] / counts[:, None]
    original = totals.d2 - float(counts @ np.einsum("ij,ij->i", means - centers, means - centers))
    if original <= 0:
        return 1.0
    if isinstance(sketch, PCASketch):
        # what all clusterings lose alike is no distortion: compare what lies between the means
        between = means - counts @ means / counts.sum()
        lost = between - (between @ sketch.directions) @ sketch.directions.T
        return 1 + float(counts @ np.einsum("ij,ij->i", lost, lost)) / original
    sums = np.asarray(sketch.apply(totals.sums[filled]), np.float64)
    within = (sketched.blocks.total_d2norm if sketched.blocks else 0.0) - float(
        np.einsum("ij,ij,i->", sums, sums, 1 / counts)
    )
    return within / original
