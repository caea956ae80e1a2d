"""The state of a fit: the result of the search for centers, and those of the passes over all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.even_sizes import Evened
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.model import Model, Space
from streamkm.cluster.normalization import Normalization
from streamkm.cluster.occurring import Columns
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.row_sample import Sample, first_rows
from streamkm.cluster.seeding.draws import DrawRule
from streamkm.fitting.context import FitContext, FoundKernel
from streamkm.passes.assign import AssignResult
from streamkm.passes.sketch import Sketched
from streamkm.sketches.base_sketch import Sketch

CERTAINTY = 2.0  # standard errors that an estimate is lowered by
SURE = 0.005  # largest error of an estimated objective that is trusted, as a share of it


@dataclass(frozen=True, slots=True)
class Clustering:
    """The result of a search for centers, before any row is assigned."""

    result: LloydResult  # of the stage that ended the iterations; its centers are in `space`
    space: Space  # "original" or "sketch", in which rows will be assigned
    sketch: Sketch
    history: tuple[dict[str, Any], ...]
    sample_view: SampleView
    n_features: int
    chunk_rows: NDArray[np.int64]  # (chunks,): rows of each chunk
    columns: Columns | None = None  # the features of the centers, if they are few of all
    kernel: FoundKernel | None = None
    evened: Evened | None = None  # if sizes of clusters have bounds


@dataclass(frozen=True, slots=True)
class SampleView:
    """The first sampled rows, in original features and sketched, for the stages after the labels are known."""

    sample: Sample  # normalized
    sketched: Block
    normalization: Normalization
    whole: Sample | None = None  # all sampled rows, normalized, if there may be another round and these are more

    @classmethod
    def of(
        cls, context: FitContext, sample: Sample, sketched: Block, normalization: Normalization, n_rows: int
    ) -> SampleView:
        """Copies, unless these are all rows: views would keep the whole sample, which is kept only if asked for."""
        if n_rows >= len(sample.rows):
            return cls(sample, sketched, normalization)
        original, rows = context.here.each("polish", first_rows, [sample.X, sketched.X], n_rows)
        few = Sample(original, sample.rows[:n_rows].copy(), sample.weights[:n_rows].copy(), False)
        block = Block(rows, sketched.d2norms[:n_rows].copy(), sketched.weights[:n_rows].copy())
        return cls(few, block, normalization, sample if context.plan.keeps_sample else None)

    def originals(self, *, whole: bool = False) -> Sample:
        """The first sampled rows as the data have them, or all sampled rows that are kept."""
        sample = self.whole if whole and self.whole is not None else self.sample
        return replace(sample, X=self.normalization.original_rows(sample.X))


@dataclass(frozen=True, slots=True)
class InertiaEstimate:
    """The objective of all rows, estimated by the sample."""

    inertia: float
    error: float  # standard error of it; 0 if the sample holds all rows
    # whether a few rows decide both, so that intervals by the error do not hold: W. G. Cochran, "Sampling techniques"
    # (1977), section 2.15, asks for more rows than 25 times their squared skewness
    few_decide: bool = False

    def times(self, factor: float) -> InertiaEstimate:
        """The estimate for rows of `factor` times the weight."""
        return replace(self, inertia=factor * self.inertia, error=factor * self.error)

    def is_kept(self, inertia: float) -> bool:
        """Whether the estimate was precise and the objective agrees with it."""
        sure = self.error <= SURE * self.inertia
        return sure and abs(inertia - self.inertia) <= max(CERTAINTY * self.error, SURE * self.inertia)


@dataclass(slots=True)
class FitState:
    """The state of a fit between passes over all rows, and its result; a checkpoint saves the fields above `found`."""

    centers: NDArray[np.float64]  # (k, m): of the pass that comes, or of the last one
    # ``{"stage", "iteration", "inertia"}``. Stages are "epochs", "lloyd", "polish", "sphere" and "refine"; each has
    # rows and a space of its own
    history: list[dict[str, Any]]
    index: int = 0  # of that pass
    n_rounds: int = 0  # passes beyond those that were asked for
    best: NDArray[np.float64] | None = None  # (k, m): centers of the pass with the lowest objective so far
    best_inertia: float = math.inf
    is_final: bool = False  # whether a later pass was worse, so that the best centers label all rows once more
    evened: Evened | None = None  # as of `Clustering`, for that pass

    found: Clustering = field(init=False)
    sample: Sample | None = field(default=None, init=False)  # the row sample, if it is labelled as it holds all rows
    once: Sketched | None = field(default=None, init=False)  # rows that cannot be read again; labelled as sketched
    model: Model = field(init=False)  # its centers made the labels
    assigned: AssignResult = field(init=False)  # of the last pass
    rule: DrawRule | None = field(default=None, init=False)  # by which that pass drew rows
    # the sample's estimate for that pass; None if nothing was drawn, or too few rows decide it
    inertia_estimate: InertiaEstimate | None = field(default=None, init=False)
    gain: float | None = field(default=None, init=False)  # share that another round could gain, estimated from below
    distortion: float | None = field(default=None, init=False)  # see `fitting.assign`
    view_labels: NDArray[np.int32] = field(init=False)  # clusters of the first rows of the sample view
    # (d,): standard deviations of the features over some sampled rows; None if rows were assigned in the sketch
    deviations: NDArray[np.float64] | None = field(default=None, init=False)

    @classmethod
    def begun(cls, context: FitContext, found: Clustering) -> FitState:
        """The state before the first pass, or before the pass in which an earlier run ended."""
        first = cls(found.result.centers, list(found.history), evened=found.evened)
        state = context.writer.load("refined", FitState) or first
        facts = (found.n_features, context.reader.metric, found.space, found.sketch)
        state.found, state.model = found, Model(found.result.centers, *facts, columns=found.columns)
        return state
