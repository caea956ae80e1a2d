"""From centers in the sketch to centers in the original space, by the sampled rows.

May import sample, lloyd and below.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Block, CenterTable, add_rows
from streamkm.cluster.lloyd import Blocks, LloydResult, Totals, densified, join_totals, lloyd
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
    n_pieces = _n_pieces(sample, centers)
    cuts = np.linspace(0, block.n_rows, n_pieces + 1).astype(int)
    pieces = [slice(start, stop) for start, stop in pairwise(cuts)]
    totals = executor.fold("polish", _sum_piece, join_totals, pieces, n_pieces, sample, block, table)
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
    blocks = Blocks.of_local(executor, sample.original_blocks(_n_pieces(sample, centers)), sample.X.shape[1])
    if not sample.complete:
        max_iter, tol = min(max_iter, POLISH_STEPS), max(tol, POLISH_TOL)
    return lloyd(blocks, centers, max_iter=max_iter, tol=tol, on_step=on_step)


def _n_pieces(sample: Sample, centers: NDArray[np.float64]) -> int:
    """Pieces for threads, but few enough that the sums of k original centers do not outweigh each."""
    width = 8 * len(centers) * sample.X.shape[1]
    return int(min(PIECES, max(FEWEST_PIECES, matrix_bytes(sample.X) // width)))


def _sum_piece(
    state: Totals | None, piece: slice, sample: Sample, block: Block, table: CenterTable
) -> tuple[Totals, None]:
    totals = Totals.zeros(table.n_clusters, sample.X.shape[1]) if state is None else state
    labels, _, _ = table.nearest(block.X[piece])
    add_rows(sample.X[piece], sample.weights[piece], labels, totals.sums, totals.counts)
    return totals, None
