"""An estimate of the objective of all rows, from a few rows of the sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.in_memory import label_sums, nearest_in
from streamkm.cluster.model import Model
from streamkm.cluster.rows import row_d2
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.totals import Totals
from streamkm.core.matrix import rows_between
from streamkm.engine import Executor
from streamkm.fitting.clustering import SampleView
from streamkm.fitting.labelling.gain_estimate import CERTAINTY
from streamkm.kernels.cluster.totals import weighted_sum


def distortion_of(
    here: Executor, look: SampleView, model: Model, totals: Totals, labels: NDArray[np.int32]
) -> float | None:
    """``(J' + c) / J`` of the final clusters: J' their objective in the sketch, J that in the original space.

    c is what all clusterings lose alike by a projection on principal directions or singular vectors, the squared
    lengths that it cuts off, from the mean of all rows or from the origin; 0 for other sketches. With it the ratio is
    1 and what is cut off of the clusters' means over J, which needs no rows; else both objectives are the row sample's.
    """
    if model.space == "sketch" or model.sketch.inflates_lengths:
        return None  # a sample of a row's entries does not keep lengths, only what is nearer
    directions = model.sketch.basis
    if directions is not None:
        filled = totals.counts > 0
        counts, centers = totals.counts[filled], model.centers[filled]
        means = totals.sums[filled] / counts[:, None]
        original = totals.d2 - float(counts @ np.einsum("ij,ij->i", means - centers, means - centers))
        if original <= 0:
            return 1.0
        between = means - counts @ means / counts.sum() if model.sketch.center is not None else means
        lost = between - (between @ directions) @ directions.T
        return 1 + float(counts @ np.einsum("ij,ij->i", lost, lost)) / original
    n_clusters, sample = len(model.centers), replace(look.sample, X=model.place(look.sample.X))
    within = [
        # squared distances to the means of their clusters
        block.total_d2norm() - label_sums(here, block.X, block.weights, labels[: block.n_rows], n_clusters).explained()
        for block in (sample.original_block(), look.sketched)
    ]
    return within[1] / within[0] if within[0] > 0 else 1.0


FEW_PROMISE_ROWS, PROMISE_ROWS = 2500, 10_000  # of the sample, whose objective is what it promises; more if unsure
SURE = 0.005  # share of a promised objective that its error may be, where it is trusted,
PRECISE = 0.002  # and where no more rows are looked at
COCHRAN = 25.0  # squared skewnesses that the number of rows must exceed for intervals by the standard error to hold


@dataclass(frozen=True, slots=True)
class InertiaEstimate:
    """The objective that the sample promises for all rows."""

    inertia: float
    error: float  # standard error of it; 0 where the sample holds all rows
    # whether a few rows decide both, so that intervals by the error do not hold: W. G. Cochran, "Sampling techniques"
    # (1977), section 2.15, asks for more rows than 25 times their squared skewness
    few_decide: bool = False

    def times(self, factor: float) -> InertiaEstimate:
        """The same of so many times the weight."""
        return replace(self, inertia=factor * self.inertia, error=factor * self.error)

    def is_kept(self, inertia: float) -> bool:
        """Whether the estimate was precise and the objective agrees with it."""
        sure = self.error <= SURE * self.inertia
        return sure and abs(inertia - self.inertia) <= max(CERTAINTY * self.error, SURE * self.inertia)


def estimate_inertia(
    here: Executor, sample: Sample, own_weights: NDArray[np.float64], model: Model, total_weight: float
) -> InertiaEstimate:
    """What the sample promises: a few rows of it, or more where these leave it unsure. O(PROMISE_ROWS * d * k).

    `sample`: original rows. `own_weights`: float64 (s,) or (0,), of these, as they were given. `total_weight`: of all
    rows.
    """
    table, d2, n_sampled = model.table(), np.empty(0), len(sample.rows)
    whole = sample.complete and n_sampled <= PROMISE_ROWS
    for n_rows in (PROMISE_ROWS,) if whole else (FEW_PROMISE_ROWS, PROMISE_ROWS):
        X = model.place(rows_between(sample.X, len(d2), n_rows))
        d2 = np.concatenate([d2, row_d2(X, nearest_in(here, X, table, "promise"), table)])
        promise = _promised(sample, own_weights, d2, total_weight)
        if promise.error <= PRECISE * promise.inertia or len(d2) == n_sampled:
            break
    return promise


def _promised(
    sample: Sample, own_weights: NDArray[np.float64], d2: NDArray[np.float64], total_weight: float
) -> InertiaEstimate:
    """The same by squared distances of the first rows."""
    weights, chances = sample.first(len(d2), own_weights, total_weight)
    mean = float(weighted_sum(weights, d2)) / float(weights.sum())
    if sample.complete and len(d2) == len(sample.rows):
        return InertiaEstimate(total_weight * mean, 0.0)
    # what a row that was sure to be here adds is known; each other one may have been missed
    residuals = weights * (d2 - mean)
    variance = float(weighted_sum(1 - chances, np.square(residuals)))
    third = float(weighted_sum(1 - chances, residuals**3))
    error = total_weight * float(np.sqrt(variance)) / float(weights.sum())
    return InertiaEstimate(total_weight * mean, error, COCHRAN * third * third > variance**3)
