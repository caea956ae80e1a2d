"""How much the sketch changed the objective of the clusters that a fit ended with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.in_memory import label_sums
from streamkm.cluster.model import Model
from streamkm.cluster.totals import Totals
from streamkm.engine import Executor
from streamkm.fitting.clustering import SampleView


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
