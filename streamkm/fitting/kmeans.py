"""One fit from a source to labels, as the picture shows it: sketch, start, Lloyd, model, assign, refine.

A sketch that depends on the data is found on the row sample, or on all rows in a pass between the first and the last.

Takes validated values, returns a `Fit`. What was done is kept in a checkpoint, if there is one, and not done again by
the run that continues. Knows nothing of estimators.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import NO_WEIGHTS
from streamkm.cluster.frame import WHOLE
from streamkm.cluster.lloyd import LloydResult, Totals
from streamkm.cluster.model import Model
from streamkm.cluster.row_sample import SampleRule
from streamkm.cluster.spill import Spill
from streamkm.compute import Executor, local_executor, open_executor
from streamkm.core.matrix import rows_between
from streamkm.core.memory import give_back, human_bytes
from streamkm.core.progress import Progress, Stage
from streamkm.fitting.centers import (
    Found,
    Framed,
    Look,
    Settings,
    check_clusters,
    distortion_of,
    find_centers,
    frame_rows,
    oblivious_sketch,
    sketch_of,
)
from streamkm.fitting.certificate import Promise
from streamkm.fitting.rounds import Further, Labelled, Labelling, assign_found, warn_of_gain
from streamkm.metrics.clusters import feature_deviations
from streamkm.passes.assign import assign_blocks
from streamkm.passes.labels import labels_of
from streamkm.passes.reader import Walk
from streamkm.passes.resume import CheckpointWriter, Gathered
from streamkm.passes.sketch import Sketched, count_pass, fit_pass, sketch_pass
from streamkm.planning.plan import Plan
from streamkm.sketches import Sketch, SketchFit, sketch_from_dict
from streamkm.sketches.registry import first_round

DEVIATION_ROWS = 2000  # of the sample, that standard deviations of features are found on
VIEW_ROWS = 5000  # sketched rows kept for the 2-D picture


@dataclass(frozen=True, slots=True)
class Fit:
    """What a fit gives.

    Attributes
    ----------
    model : Model
        Its centers made the labels.
    labels : int32 (n,)
        An array, or the Zarr array that they were written to.
    chunk_rows : int64 (chunks,)
        Rows of each chunk.
    totals : Totals
        Exact sums, counts and objective of the final clusters.
    distortion : float or None
        See `centers.distortion_of`.
    lloyd : LloydResult
        Of the stage that ended the iterations.
    history : tuple of dict
        ``{"stage", "iteration", "inertia"}``; each stage has rows and a space of its own.
    view : ndarray or csr_array (at most 5000, m)
        Sketched rows of the sample, and
    view_labels : int32
        their clusters.
    promise : Promise or None
    gain : float or None
    n_rounds : int
        As of `rounds.Labelled`.
    deviations : float64 (d,) or None
        Standard deviations of the features over some sampled rows; None where rows were assigned in the sketch.
    """

    model: Model
    labels: Any
    chunk_rows: NDArray[np.int64]
    totals: Totals
    distortion: float | None
    lloyd: LloydResult
    history: tuple[dict[str, Any], ...]
    view: Any
    view_labels: NDArray[np.int32]
    promise: Promise | None = None
    gain: float | None = None
    n_rounds: int = 0
    deviations: NDArray[np.float64] | None = None


def run_fit(
    walk: Walk,
    plan: Plan,
    settings: Settings,
    weights: NDArray[np.float64],
    executor: Any,
    writer: CheckpointWriter,
    progress: Progress,
) -> Fit:
    """Fit.

    Parameters
    ----------
    weights : float64 (n,) or (0,)
    executor : "auto", int, or a Dask client
    writer : CheckpointWriter
    """
    with ExitStack() as stack:
        workers = stack.enter_context(open_executor(executor, plan.n_threads))
        here = stack.enter_context(local_executor(workers))
        if plan.block_room is not None:
            writer.spill = stack.enter_context(closing(Spill(plan.block_room)))
        gathering = _Gathering(workers, walk, plan, settings, weights, writer, progress)
        sketched = None
        found = Found.unpack(writer.load("found"))
        if found is None:
            sketched, framed = gathering.all_rows()
            found = find_centers(here, framed, plan, settings, writer, progress)
            del framed
            writer.save("found", found.pack)
        if plan.chooses_space and found.space == "sketch":
            warnings.warn(_in_the_sketch(plan, settings, found.n_features), UserWarning, stacklevel=4)
        if sketched is not None and sketched.blocks is not None and not walk.source.replayable:
            model = found.model(walk.metric)
            with progress.stage("label", len(sketched.blocks.handles)) as stage:
                assigned = assign_blocks(sketched, sketched.blocks, model, stage)
            labelled = Labelled(model, assigned, found.history)
        else:
            labelling = Labelling(workers, here, walk, weights)
            if _sample_is_all(walk, plan, weights):
                again = sketched or gathering.once()
                labelling = replace(labelling, sample=again.sample)
                del again
            del sketched  # the passes to come need the memory
            give_back(plan.limit_bytes)
            labelled = assign_found(
                labelling,
                found,
                Further.of(settings, plan),
                writer,
                progress,
            )
            if settings.searches:
                warn_of_gain(labelled.gain, settings.refine)
        model, assigned = labelled.model, labelled.assigned
        labels = labels_of(found.look.originals(), assigned.labels, model)
        distortion = distortion_of(here, found.look, model, assigned.totals, labels)
        deviations = _deviations(found.look) if model.space == "original" else None
    view, seen = found.look.sketched.X[:VIEW_ROWS], labels[:VIEW_ROWS]
    return Fit(
        model.indexed() if isinstance(found.look.sample.X, np.ndarray) else model,
        assigned.labels,
        found.chunk_rows,
        assigned.totals,
        distortion,
        found.result,
        labelled.history,
        view,
        seen,
        labelled.promise,
        labelled.gain,
        labelled.n_rounds,
        deviations,
    )


def _deviations(look: Look) -> NDArray[np.float64]:
    """Standard deviations of the features, by a few sampled rows."""
    return feature_deviations(look.frame.original_rows(rows_between(look.sample.X, 0, DEVIATION_ROWS)))


def _in_the_sketch(plan: Plan, settings: Settings, n_features: int) -> str:
    """What to say where labels are worse than they would be with more memory."""
    return (
        f"labels, objective and centers are those of the sketch, of {plan.n_components:,} components: "
        f"{settings.n_clusters:,} centers of {n_features:,} features have no room below the limit of "
        f"{human_bytes(plan.limit_bytes)}; raise memory_limit for labels in the original space, or pass "
        f'assign_space="sketch" if these are meant'
    )


@dataclass(frozen=True, slots=True)
class _Gathering:
    """The passes that come before centers are looked for."""

    workers: Executor
    walk: Walk
    plan: Plan
    settings: Settings
    weights: NDArray[np.float64]
    writer: CheckpointWriter
    progress: Progress

    def all_rows(self) -> tuple[Sketched, Framed]:
        """Read all rows as often as the plan says; what is left of them, as it is and as clusters are looked for."""
        sketched = self.once()
        give_back(self.plan.limit_bytes)
        if not self.plan.fit_passes and not self.plan.sketches_later:
            framed = frame_rows(self.workers, sketched, self.plan, self.settings, self.writer.spill)
            if self.walk.source.replayable:
                sketched = replace(sketched, blocks=None)  # `framed` has them
            return sketched, framed
        sketch = self._sketch(sketched)
        if self.plan.sketches_later:
            chunk_rows = sketched.chunk_rows
            del sketched  # this pass samples the same rows once more
            with self.progress.stage("sketch-all", len(chunk_rows)) as stage:
                sketched = self._sketched(sketch, chunk_rows, stage, "sketch-all")
            give_back(self.plan.limit_bytes)
        return sketched, Framed(sketched, sketch, WHOLE)

    def once(self) -> Sketched:
        """Read all rows once, after counting them where that is needed."""
        walk, plan, settings = self.walk, self.plan, self.settings
        chunk_rows = None
        if plan.counts_first:
            with self.progress.stage("count", plan.n_chunks) as stage:
                chunk_rows = count_pass(self.workers, walk, stage)
        sketch = oblivious_sketch(plan, settings, walk.source.n_features) if plan.regime != "sample" else None
        with self.progress.stage("sketch", plan.n_chunks) as stage:
            sketched = self._sketched(sketch, chunk_rows, stage, "sketch")
        check_clusters(settings.n_clusters, sketched.n_valid)
        return sketched

    def _sketched(
        self, sketch: Sketch | None, chunk_rows: NDArray[np.int64] | None, stage: Stage, record: str
    ) -> Sketched:
        """One pass that samples, or sketches too; from where an earlier run got to, unless sketched rows are kept.

        Those are in memory, and gone with the process: their rows are read again.
        """
        gathered = self._nothing(sketch)
        writer = self.writer if sketch is None or gathered.tree is not None else CheckpointWriter()
        given, known = (self.workers, self.walk, gathered, stage, (writer, record)), (self.weights, chunk_rows)
        return kept_pass(*given, sketch=sketch, known=known)

    def _nothing(self, sketch: Sketch | None) -> Gathered:
        """What a pass begins with that sketches so, or only samples."""
        plan, settings = self.plan, self.settings
        n_rows = self.walk.source.estimated_rows
        rule = SampleRule.of(plan.sample_rows, settings.word("sample"), n_rows, self.weights)
        coreset = None if sketch is None else plan.coreset_rule(settings.n_clusters, settings.word("coreset"))
        return Gathered(rule, coreset, self.writer.spill)

    def _sketch(self, sketched: Sketched) -> Sketch:
        """What a plan names, or what is found: on the row sample, or on all rows, in a pass for each round."""
        plan, settings, writer = self.plan, self.settings, self.writer
        if not plan.fit_passes:
            return sketch_of(plan, settings, sketched.sample)
        record = writer.load("directions")
        if record is not None:
            return sketch_from_dict(record[1], record[0])
        seed = settings.word("sketch")
        found: Sketch | SketchFit = first_round(
            plan.sketch, plan.n_components, seed, sketched.sample.X, settings.n_clusters
        )
        while not isinstance(found, Sketch):
            with self.progress.stage("directions", len(sketched.chunk_rows)) as stage:
                found = fit_pass(self.workers, self.walk, found, self.weights, sketched.chunk_rows, stage)
        sketch = found
        writer.save("directions", lambda: (sketch.arrays(), sketch.to_dict()))
        return sketch


def kept_pass(
    workers: Executor,
    walk: Walk,
    gathered: Gathered,
    stage: Stage,
    kept: tuple[CheckpointWriter, str],
    *,
    sketch: Sketch | None = None,
    known: tuple[NDArray[np.float64], NDArray[np.int64] | None] = (NO_WEIGHTS, None),
) -> Sketched:
    """Read all rows once, from where an earlier run got to; see `sketch_pass`.

    Parameters
    ----------
    kept : (CheckpointWriter, str)
        Where what is gathered is kept, and as which record.
    known : (float64 (n,) or (0,), int64 (chunks,) or None)
        Weights, and the rows of each chunk.
    """
    writer, record = kept
    gathered.restore(writer.load(record))
    stage.after_advance = lambda: writer.save_if_due(record, gathered.pack)
    sketched = sketch_pass(workers, walk, sketch, gathered, *known, stage)
    writer.save(record, gathered.pack)
    return sketched


def _sample_is_all(walk: Walk, plan: Plan, weights: NDArray[np.float64]) -> bool:
    """Whether the row sample has all rows, in original features, as the source in this process would give them again.

    Sums of clusters are then gathered cluster by cluster in one array, not chunk by chunk in many.
    """
    fits = plan.n_rows is not None and plan.n_rows <= plan.sample_rows and plan.regime == "sample"
    original = walk.source.n_features is not None and plan.space_for(walk.source.n_features) == "original"
    return fits and original and walk.source.in_process and not len(weights)
