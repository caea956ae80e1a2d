"""From rows that were sampled and sketched to centers: seeding, Lloyd, polishing; in memory, by threads.

Reads no source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.coreset import Coreset
from streamkm.cluster.draws import DrawRule
from streamkm.cluster.frame import UNMOVED, WHOLE, Frame
from streamkm.cluster.in_memory import LocalBlocks, label_sums, nearest_in
from streamkm.cluster.init import Streams, drawn_by, start_centers
from streamkm.cluster.lloyd import Blocks, LloydResult, Totals, lloyd
from streamkm.cluster.model import Metric, Model, Space
from streamkm.cluster.polish import original_centers, polish
from streamkm.cluster.row_sample import Sample, as_block_matrix, first_rows, sketched_d2norms
from streamkm.cluster.search_set import search_rows
from streamkm.cluster.spill import Held, Spill, loaded
from streamkm.compute import Executor
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, pack_matrix, rows_between, unpack_matrix
from streamkm.core.progress import Progress, Stage
from streamkm.passes.assign import Assigned
from streamkm.passes.resume import CheckpointWriter, KeptSteps, Record, pack_lloyd, unpack_lloyd
from streamkm.passes.sketch import Sketched
from streamkm.planning.memory import pca_rows
from streamkm.planning.plan import Plan
from streamkm.sketches import (
    FourierMap,
    IdentitySketch,
    KernelMap,
    PCASketch,
    PreconditionedSampling,
    Sketch,
    TruncatedSVDSketch,
    sketch_from_dict,
)
from streamkm.sketches.registry import DATA_DEPENDENT, find_sketch, make_sketch

SKETCH_PREFIX = "sketch."
FAR_ROWS = 100  # that tell whether centers are far
FAR_SHARE = 0.01  # of squared norms that squared distances are, where centers are far


@dataclass(frozen=True, slots=True)
class Settings:
    """How to cluster, validated.

    Attributes
    ----------
    n_clusters, max_iter : int
    n_init : int or "auto"
    refine : int or "auto"
    tol : float
    init : "k-means++", "k-means||", "ls++", "random", float64 (k, d), or a function that gives centers
    seeds : SeedSequence
        Source of the named random streams.
    sketch : Sketch or None
        Where it was made already.
    """

    n_clusters: int
    init: str | NDArray[np.float64] | Callable[..., Any]
    n_init: int | str
    max_iter: int
    tol: float
    refine: int | str
    seeds: np.random.SeedSequence
    sketch: Sketch | None = None
    streams: ClassVar[tuple[str, ...]] = ("sketch", "sample", "seeding", "search", "coreset", "draws")

    @property
    def searches(self) -> bool:
        """Whether the start is looked for, and not given or drawn at random."""
        return isinstance(self.init, str) and self.init != "random"

    def stream(self, name: str) -> np.random.SeedSequence:
        """The random stream of a name of `streams`."""
        index = self.streams.index(name)
        return np.random.SeedSequence(self.seeds.entropy, spawn_key=(*self.seeds.spawn_key, index))

    def word(self, name: str) -> int:
        """A seed of 64 bits."""
        return int(self.stream(name).generate_state(1, np.uint64)[0])

    def generator(self, name: str) -> np.random.Generator:
        """A generator of the named stream."""
        return np.random.default_rng(self.stream(name))


@dataclass(frozen=True, slots=True)
class Found:
    """What clustering found, before any row is assigned.

    Attributes
    ----------
    result : LloydResult
        Of the stage that ended the iterations; its centers are in `space`.
    space : "original" or "sketch"
        Where rows will be assigned.
    sketch : Sketch
    history : tuple of dict
    look : Look
    n_features : int
    chunk_rows : int64 (chunks,)
    """

    result: LloydResult
    space: Space
    sketch: Sketch
    history: tuple[dict[str, Any], ...]
    look: Look
    n_features: int
    chunk_rows: NDArray[np.int64]

    def model(self, metric: Metric) -> Model:
        """What assigns rows."""
        model = Model(self.result.centers, self.n_features, metric, self.space, self.sketch)
        X, frame = rows_between(self.look.sample.X, 0, FAR_ROWS), self.look.frame
        if self.space == "sketch" or isinstance(X, np.ndarray) or not X.shape[0] or len(frame.origin):
            return model
        X = frame.original_rows(X)
        return replace(model, far=_are_far(X, model.centers))

    def pack(self) -> Record:
        """As a record of a checkpoint."""
        sample, block = self.look.sample, self.look.sketched
        arrays, meta = pack_lloyd(self.result)
        arrays |= {SKETCH_PREFIX + name: array for name, array in self.sketch.arrays().items()}
        arrays |= pack_matrix("sampled", sample.X) | pack_matrix("sketched", block.X)
        arrays |= {"rows": sample.rows, "weights": sample.weights, "d2norms": block.d2norms}
        arrays |= {"chunk_rows": self.chunk_rows, "origin": self.look.frame.origin}
        meta |= {"space": self.space, "sketch": self.sketch.to_dict(), "history": list(self.history)}
        meta |= {"complete": sample.complete, "scale": self.look.frame.scale, "keeps": self.look.whole is not None}
        whole = self.look.whole
        if whole is not None:
            arrays |= pack_matrix("whole", whole.X) | {"whole_rows": whole.rows, "whole_weights": whole.weights}
        return arrays, meta | {"n_features": self.n_features}

    @classmethod
    def unpack(cls, record: Record | None) -> Found | None:
        """The inverse of `pack`."""
        result = unpack_lloyd(record)
        if record is None or result is None:
            return None
        arrays, meta = record
        parts = {name.removeprefix(SKETCH_PREFIX): a for name, a in arrays.items() if name.startswith(SKETCH_PREFIX)}
        weights = arrays["weights"]
        sample = Sample(unpack_matrix("sampled", arrays), arrays["rows"], weights, bool(meta["complete"]))
        block = Block(unpack_matrix("sketched", arrays), arrays["d2norms"], weights)
        sketch = sketch_from_dict(meta["sketch"], parts)
        whole = None
        if meta["keeps"]:
            drawn = (arrays["whole_rows"], arrays["whole_weights"])
            whole = Sample(unpack_matrix("whole", arrays), *drawn, complete=bool(meta["complete"]))
        look, history = Look(sample, block, Frame(arrays["origin"], meta["scale"]), whole), tuple(meta["history"])
        return cls(result, meta["space"], sketch, history, look, meta["n_features"], arrays["chunk_rows"])


@dataclass(frozen=True, slots=True)
class Look:
    """The first sampled rows, in original features and sketched: kept to be looked at when the labels are known.

    Attributes
    ----------
    sample, sketched : Sample, Block
        Of the same rows, in a
    frame : Frame
    whole : Sample, optional
        All sampled rows, in the frame, where there may be another round and these are more.
    """

    sample: Sample
    sketched: Block
    frame: Frame
    whole: Sample | None = None

    @classmethod
    def of(cls, here: Executor, framed: tuple[Sample, Block, Frame], n_rows: int, *, keeps: bool) -> Look:
        """Copies, unless these are all rows: views would keep the whole sample, which is kept only if asked for."""
        sample, sketched, frame = framed
        if n_rows >= len(sample.rows):
            return cls(sample, sketched, frame)
        original, rows = here.each("polish", first_rows, [sample.X, sketched.X], n_rows)
        few = Sample(original, sample.rows[:n_rows].copy(), sample.weights[:n_rows].copy(), False)
        block = Block(rows, sketched.d2norms[:n_rows].copy(), sketched.weights[:n_rows].copy())
        return cls(few, block, frame, sample if keeps else None)

    def originals(self) -> Sample:
        """The sampled rows as the data have them."""
        return replace(self.sample, X=self.frame.original_rows(self.sample.X))


@dataclass(frozen=True, slots=True)
class Framed:
    """What clusters are looked for in.

    Attributes
    ----------
    sketched : Sketched
        Its sample is in the frame.
    sketch : Sketch
        Of rows in the frame.
    frame : Frame
    """

    sketched: Sketched
    sketch: Sketch
    frame: Frame


def frame_rows(workers: Executor, sketched: Sketched, plan: Plan, settings: Settings, spill: Spill | None) -> Framed:
    """Bring what was read into a frame, the sample and what there is of sketched rows, and name or find the sketch.

    Parameters
    ----------
    spill : Spill, optional
        Where blocks go that memory does not hold.
    """
    kind = plan.sketch if settings.sketch is None else settings.sketch.kind
    frame = WHOLE
    if kind not in (KernelMap.kind, FourierMap.kind):
        frame = Frame.of(sketched.sample.X, moves=kind not in UNMOVED)
    if frame.is_whole:
        return Framed(sketched, sketch_of(plan, settings, sketched.sample), frame)
    sample = replace(sketched.sample, X=frame.rows(sketched.sample.X))
    sketch = sketch_of(plan, settings, sample)
    if plan.regime == "sample":
        return Framed(replace(sketched, sample=sample), sketch, frame)
    offset = np.asarray(sketch.apply(frame.origin[None]), np.float64)[0] if len(frame.origin) else frame.origin
    inner, blocks, coreset = Frame(offset, frame.scale), sketched.blocks, sketched.coreset
    if blocks is not None:
        blocks = framed_blocks(workers, blocks, inner, spill)
    if coreset is not None:
        coreset = replace(coreset, X=inner.rows(coreset.X))
    return Framed(replace(sketched, sample=sample, blocks=blocks, coreset=coreset), sketch, frame)


def framed_blocks(workers: Executor, blocks: Blocks, frame: Frame, spill: Spill | None) -> Blocks:
    """Bring sketched rows into a frame."""
    handles, d2norms = [], []
    for handle, d2norm in workers.hold("frame", _framed_block, blocks.handles, workers.share(frame)):
        handles.append(spill.keep(handle) if spill and isinstance(handle, Block) else handle)
        d2norms.append(d2norm)
    return replace(blocks, handles=tuple(handles), total_d2norm=float(sum(d2norms)))


def _framed_block(held: Held, frame: Frame) -> tuple[Block, float]:
    block = loaded(held)
    X = frame.rows(block.X)
    framed = Block(X, sketched_d2norms(X), block.weights)
    return framed, framed.total_d2norm()


def _are_far(X: Any, centers: NDArray[np.float64]) -> bool:
    """Whether CSR rows lie farther from their centers than `FAR_SHARE` says, about. O(k * d)."""
    columns = np.unique(X.indices)
    overlaps = X[:, columns].astype(np.float64) @ np.ascontiguousarray(centers[:, columns].T)
    norms = row_d2norms(X)
    d2 = norms[:, None] - 2 * overlaps + np.einsum("ij,ij->i", centers, centers)
    return float(np.maximum(d2.min(axis=1), 0).sum()) > FAR_SHARE * float(norms.sum())


def find_centers(
    here: Executor,
    framed: Framed,
    plan: Plan,
    settings: Settings,
    writer: CheckpointWriter,
    progress: Progress,
) -> Found:
    """Seed and iterate, on what the plan says; then polish in the original space, if rows will be assigned there.

    Directions that were iterated along need no polishing: it would fit the sample, and where all rows took part they
    know better.
    """
    sketched, sketch, frame = framed.sketched, framed.sketch, framed.frame
    sample = sketched.sample
    n_searched = search_rows(settings.n_clusters)
    n_features = sample.X.shape[1]
    space = plan.space_for(n_features)
    polished = space == "original" and not isinstance(sketch, IdentitySketch)
    with progress.stage("seed"):
        sampled = sample.block(here, sketch)
        clustered = sampled if sketched.coreset is None else _block(sketched.coreset)
        record = writer.load("seed")
        if record is None:
            rows = rows_between(sample.X, 0, n_searched)
            held = None if sample.complete else sketched.blocks
            start = starting_centers(here, clustered, rows, sketch, settings, frame, held)
            writer.save("seed", lambda: ({"centers": start}, {}))
        else:
            start = record[0]["centers"]
    history: list[dict[str, Any]] = []
    max_iter, tol = settings.max_iter, settings.tol
    with progress.stage("lloyd", settings.max_iter, "steps") as stage:
        if polished and plan.regime == "sample" and not isinstance(sketch, PCASketch):
            result = LloydResult(start, float("nan"), 0, False, ())  # polishing iterates
        else:
            kept = KeptSteps(writer, "lloyd", stage)
            rows = sketched.blocks or LocalBlocks.of(here, clustered)
            result = lloyd(
                rows, start, max_iter=max_iter, tol=tol, on_step=kept.step, begun=kept.begun, accelerated=tol > 0
            )
            result = replace(result, labels=None)  # those of the assign pass are the result
            history += noted("lloyd", result)
    if polished:
        with progress.stage("polish", None, "steps") as stage:
            centers, explained = original_centers(here, sample, sampled, result.centers)
            iterated = isinstance(sketch, PCASketch)
            if plan.regime != "sample" and isinstance(sketch, PCASketch | TruncatedSVDSketch):
                iterated = True
                # along the directions, what all rows say; only the rest is the sample's
                centers += (result.centers - sketch.apply(centers)) @ sketch.directions.T
            if iterated and not sample.complete:
                result = replace(result, centers=centers)
            else:
                kept = KeptSteps(writer, "polish", stage)
                begun = explained if kept.begun is None else kept.begun
                result = polish(here, sample, centers, max_iter=max_iter, tol=tol, on_step=kept.step, begun=begun)
                history += noted("polish", result)
    look = Look.of(here, (sample, sampled, frame), n_searched, keeps=plan.keeps_sample)
    centers = frame.originals(result.centers) if space == "original" else frame.sketched(sketch, result.centers)
    for step in history:
        step["inertia"] /= frame.scale * frame.scale
    result, sketch = frame.result(result, centers), frame.sketch(sketch)
    return Found(result, space, sketch, tuple(history), look, n_features, sketched.chunk_rows)


def assign_sample(
    executor: Executor, sample: Sample, model: Model, n_rows: int, stage: Stage, rule: DrawRule | None = None
) -> Assigned:
    """As `assign.assign_pass`, from a row sample that holds all valid rows, unweighted, by threads of this process.

    Parameters
    ----------
    n_rows : int
        Rows of the source, invalid ones included.
    """
    table = model.table()
    found = nearest_in(executor, sample.X, table, stage.name)
    d2 = np.empty(sample.X.shape[0])
    totals = label_sums(executor, sample.X, NO_WEIGHTS, found, table.n_clusters, stage.name, (table, d2))
    drawn = None if rule is None else rule.draw(sample.X, sample.rows, NO_WEIGHTS, d2)
    labels = np.full(n_rows, -1, np.int32)
    labels[sample.rows] = found
    stage.rows = n_rows
    return Assigned(labels, totals, drawn)


def oblivious_sketch(plan: Plan, settings: Settings, n_features: int | None) -> Sketch | None:
    """The sketch that was given or that a plan names; None for one that is found on rows."""
    if settings.sketch is not None:
        return settings.sketch
    if plan.sketch in DATA_DEPENDENT:
        return None
    return make_sketch(plan.sketch, plan.n_components, settings.word("sketch"), n_features)


def check_clusters(n_clusters: int, n_rows: int) -> None:
    """Refuse more clusters than rows."""
    if n_clusters > n_rows:
        raise InvalidInputError(f"n_samples={n_rows} should be >= n_clusters={n_clusters}; use fewer clusters")


def sketch_of(plan: Plan, settings: Settings, sample: Sample) -> Sketch:
    """The sketch that was given, that a plan names, or that is found on the row sample."""
    sketch = oblivious_sketch(plan, settings, sample.X.shape[1])
    if sketch is not None:
        return sketch
    rows = sample.X[: pca_rows(sample.X.shape[1], plan.n_components)] if plan.sketch == PCASketch.kind else sample.X
    return find_sketch(plan.sketch, plan.n_components, settings.word("sketch"), rows, settings.n_clusters)


def starting_centers(
    here: Executor,
    sampled: Block,
    rows: Matrix,
    sketch: Sketch,
    settings: Settings,
    frame: Frame = WHOLE,
    blocks: Blocks | None = None,
) -> NDArray[np.float64]:
    """Centers to start from (k, m): those given, those that a function gives, or found on the sampled rows.

    Parameters
    ----------
    sampled : Block (s, m)
    rows : ndarray or csr_array (r, d)
        Sampled rows in their frame.
    blocks : Blocks, optional
        All rows that are held, as of `start_centers`.
    """

    def placed(centers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(sketch.apply(frame.points(centers)), np.float64)

    init: Any = settings.init
    if isinstance(init, np.ndarray):
        if init.shape[1] != rows.shape[1]:
            raise InvalidInputError(f"init has {init.shape[1]} features; the data have {rows.shape[1]:,}")
        return placed(init)
    if callable(init):
        init = drawn_by(init, frame.original_rows(rows), settings.n_clusters, placed)
    return start_centers(
        here,
        sampled,
        settings.n_clusters,
        init=init,
        n_init=settings.n_init,
        streams=Streams(settings.generator("seeding"), settings.generator("search")),
        blocks=blocks,
    )


def _block(coreset: Coreset) -> Block:
    """Rows of a coreset with their weights."""
    X = as_block_matrix(coreset.X, sketched=False)
    return Block(X, row_d2norms(X), coreset.weights)


def noted(stage: str, result: LloydResult) -> list[dict[str, Any]]:
    """The inertia of each step, for the history of a fit."""
    return [
        {"stage": stage, "iteration": iteration, "inertia": inertia}
        for iteration, inertia in enumerate(result.history, start=1)
    ]


def distortion_of(here: Executor, look: Look, model: Model, totals: Totals, labels: NDArray[np.int32]) -> float | None:
    """``(J' + c) / J`` of the final clusters: J' their objective in the sketch, J that in the original space.

    c is what all clusterings lose alike by a projection on principal directions or singular vectors, the squared
    lengths that it cuts off, from the mean of all rows or from the origin; 0 for other sketches. With it the ratio is
    1 and what is cut off of the clusters' means over J, which needs no rows; else both objectives are the row sample's.
    """
    if model.space == "sketch" or isinstance(model.sketch, PreconditionedSampling):
        return None  # a sample of a row's entries does not keep lengths, only what is nearer
    if isinstance(model.sketch, PCASketch | TruncatedSVDSketch):
        directions = model.sketch.directions
        filled = totals.counts > 0
        counts, centers = totals.counts[filled], model.centers[filled]
        means = totals.sums[filled] / counts[:, None]
        original = totals.d2 - float(counts @ np.einsum("ij,ij->i", means - centers, means - centers))
        if original <= 0:
            return 1.0
        between = means - counts @ means / counts.sum() if isinstance(model.sketch, PCASketch) else means
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
    return total_d2norm - totals.explained()
