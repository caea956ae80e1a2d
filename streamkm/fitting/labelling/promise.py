"""What the sample of rows promises of the objective of all, by a few of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.in_memory import nearest_in
from streamkm.cluster.model import Model
from streamkm.cluster.rows import row_d2
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.compute import Executor
from streamkm.core.matrix import rows_between
from streamkm.fitting.labelling.outlook import CERTAINTY
from streamkm.kernels.cluster.totals import weighted_sum

FEW_PROMISE_ROWS, PROMISE_ROWS = 2500, 10_000  # of the sample, whose objective is what it promises; more if unsure
SURE = 0.005  # share of a promised objective that its error may be, where it is trusted,
PRECISE = 0.002  # and where no more rows are looked at


@dataclass(frozen=True, slots=True)
class Promise:
    """The objective that the sample promises for all rows.

    Attributes
    ----------
    inertia : float
    error : float
        Standard error of it; 0 where the sample holds all rows.
    """

    inertia: float
    error: float

    def times(self, factor: float) -> Promise:
        """The same of so many times the weight."""
        return Promise(factor * self.inertia, factor * self.error)

    def is_kept(self, inertia: float) -> bool:
        """Whether it was sure, and the objective is what it said."""
        sure = self.error <= SURE * self.inertia
        return sure and abs(inertia - self.inertia) <= max(CERTAINTY * self.error, SURE * self.inertia)


def promise_of(here: Executor, sample: Sample, model: Model, total_weight: float) -> Promise:
    """What the sample promises: a few rows of it, or more where these leave it unsure. O(PROMISE_ROWS * d * k).

    Parameters
    ----------
    sample : Sample
        Original rows.
    total_weight : float
        Of all rows.
    """
    table, d2, n_sampled = model.table(), np.empty(0), len(sample.rows)
    whole = sample.complete and n_sampled <= PROMISE_ROWS
    for n_rows in (PROMISE_ROWS,) if whole else (FEW_PROMISE_ROWS, PROMISE_ROWS):
        X = model.place(rows_between(sample.X, len(d2), n_rows))
        d2 = np.concatenate([d2, row_d2(X, nearest_in(here, X, table, "promise"), table)])
        promise = _promised(sample, d2, total_weight)
        if promise.error <= PRECISE * promise.inertia or len(d2) == n_sampled:
            break
    return promise


def _promised(sample: Sample, d2: NDArray[np.float64], total_weight: float) -> Promise:
    """The same by squared distances of the first rows."""
    weights = sample.weights[: len(d2)] if len(sample.weights) else np.ones(len(d2))
    mean = float(weighted_sum(weights, d2)) / float(weights.sum())
    if sample.complete and len(d2) == len(sample.rows):
        return Promise(total_weight * mean, 0.0)
    spread = float(np.sqrt(weighted_sum(np.square(weights), np.square(d2 - mean)))) / float(weights.sum())
    return Promise(total_weight * mean, total_weight * spread)
