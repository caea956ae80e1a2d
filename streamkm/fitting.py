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

from streamkm.budget import Plan
from streamkm.cluster.blocks import Block
from streamkm.cluster.lloyd import LloydResult, Totals, lloyd
from streamkm.cluster.local_blocks import LocalBlocks, label_sums
from streamkm.cluster.polish import original_centers, polish
from streamkm.cluster.sample import Sample, SampleRule
from streamkm.cluster.starting import Streams, prefix, search_rows, start_centers
from streamkm.compute import Executor, local_executor, open_executor
from streamkm.errors import InvalidInputError
from streamkm.model import Model, Space
from streamkm.passes import Sketched, assign_blocks, assign_pass, count_pass, sketch_pass
from streamkm.progress import Progress
from streamkm.projection import pca_rows
from streamkm.sketches import CountSketch, IdentitySketch, PCASketch, Sketch
from streamkm.walk import Walk

logger = logging.getLogger(__name__)

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
    with open_executor(executor) as workers, local_executor(workers) as here:
        chunk_rows = None
        if plan.counts_first:
            with progress.stage("count", plan.n_chunks) as stage:
                chunk_rows = count_pass(workers, walk, stage)
        with progress.stage("sketch", plan.n_chunks) as stage:
            kept = sketch if plan.regime == "blocks" else None
            sketched = sketch_pass(workers, walk, kept, rule, weights, chunk_rows, stage)
        check_clusters(settings.n_clusters, sketched.n_valid)
        sketch = sketch or fit_sketch(plan, sketched.sample, streams["sketch"])
        found = _cluster(here, sketched, sketch, plan, settings, streams, progress)
        model = Model(found.result.centers, sketched.n_features, walk.metric, found.space, sketch)
        if sketched.blocks is not None and not walk.source.replayable:
            with progress.stage("label", len(sketched.blocks.handles)) as stage:
                assigned = assign_blocks(sketched, sketched.blocks, model, stage)
        else:
            chunk_rows = sketched.chunk_rows
            del sketched  # the passes to come need the memory
            with progress.stage("assign", len(chunk_rows)) as stage:
                assigned = assign_pass(workers, walk, model, weights, chunk_rows, stage)
            for index in range(1, settings.refine + 1):
                model = replace(model, centers=assigned.totals.means(fallback=model.centers))
                with progress.stage(f"refine-{index}", len(chunk_rows)) as stage:
                    assigned = assign_pass(workers, walk, model, weights, chunk_rows, stage)
                    found.history.append({"stage": "refine", "iteration": index, "inertia": assigned.totals.d2})
        labels = assigned.labels[found.look.sample.rows]
        distortion = _distortion(here, found.look, model, assigned.totals, labels)
    view = found.look.sketched.X[:VIEW_ROWS]
    return Fit(
        model,
        assigned.labels,
        assigned.totals,
        distortion,
        found.result,
        tuple(found.history),
        view,
        labels[:VIEW_ROWS],
    )


@dataclass(frozen=True, slots=True)
class _Clustered:
    """Centers for the assignment, in `space`, how they came about, and what is kept to look at."""

    result: LloydResult
    space: Space
    history: list[dict[str, Any]]
    look: _Look


def _cluster(
    here: Executor,
    sketched: Sketched,
    sketch: Sketch,
    plan: Plan,
    settings: Settings,
    streams: dict[str, np.random.SeedSequence],
    progress: Progress,
) -> _Clustered:
    """Seed and iterate, on what the plan says; then polish in the original space, if rows will be assigned there."""
    history: list[dict[str, Any]] = []
    sample = sketched.sample
    n_searched = search_rows(settings.n_clusters)
    space = plan.space_for(sketched.n_features)
    polished = space == "original" and not isinstance(sketch, IdentitySketch)
    with progress.stage("seed"):
        sampled = sample.block(here, sketch)
        start = _start(here, prefix(sampled, n_searched), sketch, sketched.n_features, settings, streams)
    with progress.stage("lloyd", settings.max_iter, "steps") as stage:
        if polished and not isinstance(sketch, PCASketch):
            result = LloydResult(start, float("nan"), 0, False, ())  # polishing iterates
        else:
            blocks = sketched.blocks or LocalBlocks.of(here, sampled)
            record = _recorder(history, "lloyd", stage.advance)
            result = lloyd(blocks, start, max_iter=settings.max_iter, tol=settings.tol, on_step=record)
    if polished:
        with progress.stage("polish", None, "steps") as stage:
            centers = original_centers(here, sample, sampled, result.centers)
            if isinstance(sketch, PCASketch) and not sample.complete:
                result = replace(result, centers=centers)  # already iterated on these rows
            else:
                record = _recorder(history, "polish", stage.advance)
                result = polish(here, sample, centers, max_iter=settings.max_iter, tol=settings.tol, on_step=record)
    return _Clustered(result, space, history, _Look.of(sample, sampled, n_searched))


@dataclass(frozen=True, slots=True)
class _Look:
    """The first sampled rows, original and sketched: kept to be looked at when the labels are known."""

    sample: Sample
    sketched: Block

    @classmethod
    def of(cls, sample: Sample, sketched: Block, n_rows: int) -> _Look:
        """Copies: views would keep the whole sample."""
        few, block = sample.first(n_rows), prefix(sketched, n_rows)
        return cls(replace(few, X=few.X.copy()), Block(block.X.copy(), block.d2norms.copy(), block.weights.copy()))


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


def fit_sketch(plan: Plan, sample: Sample, seed: np.random.SeedSequence) -> Sketch:
    """The sketch that is found on the row sample."""
    rows = sample.X[: pca_rows(sample.X.shape[1], plan.n_components)]
    return PCASketch.fit(rows, min(plan.n_components, *rows.shape), random_state=_word(seed) & 0xFFFFFFFF)


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


def _recorder(history: list[dict[str, Any]], stage: str, advance: Callable[[float], None]) -> Callable[[float], None]:
    """A function that notes the inertia of each step."""

    def record(inertia: float) -> None:
        iteration = 1 + sum(entry["stage"] == stage for entry in history)
        history.append({"stage": stage, "iteration": iteration, "inertia": inertia})
        advance(1)

    return record


def _distortion(here: Executor, look: _Look, model: Model, totals: Totals, labels: NDArray[np.int32]) -> float | None:
    """Objective of the final clusters in the sketch over that in the original space, both on the row sample.

    What all clusterings lose alike when rows are projected is no distortion: for principal directions the objective is
    exact, and what lies between the means of all rows is compared.
    """
    if model.space == "sketch":
        return None
    if isinstance(model.sketch, PCASketch):
        directions = model.sketch.directions
        filled = totals.counts > 0
        counts, centers = totals.counts[filled], model.centers[filled]
        means = totals.sums[filled] / counts[:, None]
        original = totals.d2 - float(counts @ np.einsum("ij,ij->i", means - centers, means - centers))
        if original <= 0:
            return 1.0
        between = means - counts @ means / counts.sum()
        lost = between - (between @ directions) @ directions.T
        return 1 + float(counts @ np.einsum("ij,ij->i", lost, lost)) / original
    n_clusters = len(model.centers)
    within = [
        _within(label_sums(here, block.X, block.weights, labels[: block.n_rows], n_clusters), block.total_d2norm())
        for block in (look.sample.original_block(), look.sketched)
    ]
    return within[1] / within[0] if within[0] > 0 else 1.0


def _within(totals: Totals, total_d2norm: float) -> float:
    """Sum of squared distances of rows to the means of their clusters."""
    filled = totals.counts > 0
    sums = totals.sums[filled]
    return total_d2norm - float(np.einsum("ij,ij,i->", sums, sums, 1 / totals.counts[filled]))
