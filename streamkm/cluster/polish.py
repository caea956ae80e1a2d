"""From centers in the sketch to centers in the original space, by the sampled rows.

May import sample, lloyd and below.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import CenterTable, add_rows
from streamkm.cluster.lloyd import Blocks, LloydResult, Totals, densified, lloyd
from streamkm.cluster.sample import Sample
from streamkm.cluster.starting import PIECES
from streamkm.compute import Executor
from streamkm.matrices import matrix_bytes
from streamkm.sketches import Sketch

POLISH_STEPS = 10  # of Lloyd on a sample; more would fit the sample, not the data
POLISH_TOL = 1e-3
FEWEST_PIECES = 4


def original_centers(
    executor: Executor, sample: Sample, sketch: Sketch, centers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Means of the sampled original rows under the sketch's labels.

    Parameters
    ----------
    sample : Sample of s rows (s, d)
    centers : float64 (k, m)
        In the sketch's space.

    Returns
    -------
    float64 (k, d)
        A center that no sampled row is nearest to becomes the row nearest to it.
    """
    block = sample.block(executor, sketch)
    table = CenterTable.build(centers, block.X.dtype)
    labels, _, _ = table.nearest(block.X)
    totals = Totals.zeros(len(centers), sample.X.shape[1])
    add_rows(sample.X, sample.weights, labels, totals.sums, totals.counts)
    fallback = np.zeros_like(totals.sums)
    empty = np.flatnonzero(totals.counts == 0)
    if len(empty):
        lonely = CenterTable.build(centers[empty], block.X.dtype, around_origin=True)
        nearest = (lonely.scores(block.X) + block.d2norms[:, None]).argmin(axis=0)
        fallback[empty] = densified(sample.X, nearest, sample.X.shape[1])
    return totals.means(fallback)


def polish(
    executor: Executor,
    sample: Sample,
    centers: NDArray[np.float64],
    *,
    max_iter: int,
    tol: float,
    on_step: Callable[[float], None] | None = None,
) -> LloydResult:
    """Run Lloyd's algorithm on the sampled original rows.

    A sample that holds all rows gets the whole algorithm, `max_iter` steps to `tol`; a part gets a few steps only.

    Parameters
    ----------
    centers : float64 (k, d)
    """
    # sums of k centers for each piece must not outweigh the piece
    n_pieces = min(PIECES, max(FEWEST_PIECES, matrix_bytes(sample.X) // (8 * centers.size)))
    blocks = Blocks.of_local(executor, sample.original_blocks(n_pieces), sample.X.shape[1])
    if not sample.complete:
        max_iter, tol = min(max_iter, POLISH_STEPS), max(tol, POLISH_TOL)
    return lloyd(blocks, centers, max_iter=max_iter, tol=tol, on_step=on_step)
