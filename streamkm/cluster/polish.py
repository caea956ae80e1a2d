"""From centers in the sketch to centers in the original space, by the sampled rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import densified
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks, label_sums
from streamkm.cluster.lloyd import LloydResult, lloyd
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.engine import Executor

POLISH_STEPS = 10  # of Lloyd on a sample; more would fit the sample, not the data
POLISH_TOL = 1e-3


def original_centers(
    executor: Executor, sample: Sample, block: Block, centers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Means of the sampled original rows under the sketch's labels, and what they explain.

    `sample`: Sample of s rows (s, d). `block`: the same rows, sketched (s, m). `centers`: float64 (k, m), in the
    sketch's space. Returns means float64 (k, d): a center that no sampled row is nearest to becomes the row nearest to
    it; explained: the weighted sum of the means' squared norms: the rows' own less their squared distances to the
    means.
    """
    labels = LocalBlocks.of(executor, block).labels(centers, "polish")
    totals = label_sums(executor, sample.X, sample.weights, labels, len(centers), "polish")
    explained, fallback = totals.explained(), totals.sums  # no cluster is empty: the fallback is not read
    empty = np.flatnonzero(totals.counts == 0)
    if len(empty):
        fallback = np.zeros(totals.sums.shape)
        lonely = NearestCenters.build(centers[empty], block.X.dtype, around_origin=True)
        nearest = (lonely.scores(block.X) + block.d2norms[:, None]).argmin(axis=0)
        fallback[empty] = densified(sample.X, nearest, sample.X.shape[1])
    return totals.to_means(fallback), explained


def polish(
    executor: Executor,
    sample: Sample,
    centers: NDArray[np.float64],
    *,
    max_iter: int,
    tol: float,
    on_step: Callable[[LloydResult], None] | None = None,
    begun: LloydResult | float | None = None,
) -> LloydResult:
    """Run Lloyd's algorithm on the sampled original rows.

    A sample that holds all rows gets the whole algorithm, `max_iter` steps to `tol`; a part gets a few steps only.

    `centers`: float64 (k, d). `begun`: LloydResult or float, where an earlier run got to; or what `centers` explain as
    means of these rows: labelling was the first step.
    """
    blocks = LocalBlocks.of(executor, sample.original_block())
    if isinstance(begun, float):
        inertia = max(0.0, blocks.total_d2norm - begun)
        begun = LloydResult(centers, inertia, 1, False, (inertia,))
    if not sample.complete:
        max_iter, tol = min(max_iter, POLISH_STEPS), max(tol, POLISH_TOL)
    return lloyd(blocks, centers, max_iter=max_iter, tol=tol, on_step=on_step, begun=begun)
