"""The one search for centers to start from, of fits and of coresets: by the settings, among sampled rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.moving_averages import Schedule
from streamkm.cluster.rows import Block
from streamkm.cluster.seeding.divided import CellSearch, search_cells
from streamkm.cluster.seeding.init import Streams, drawn_by, start_centers
from streamkm.cluster.seeding.search_set import SAMPLED, Pool
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.fitting.context import FitContext
from streamkm.fitting.settings import Settings

logger = logging.getLogger(__name__)


def search_centers(
    executor: Executor,
    sampled: Block,
    settings: Settings,
    n_clusters: int,
    original_rows: Callable[[], Matrix],
    placed: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    pool: Pool = SAMPLED,
) -> NDArray[np.float64]:
    """Centers to start from, looked for among sampled rows or given by the function that is the settings' `init`.

    Parameters
    ----------
    executor, sampled, n_clusters, pool
        As of `start_centers`.
    settings : Settings
        With an `init` that is no array.
    original_rows : callable
        Gives the sampled rows as the data have them, for such a function.
    placed : callable
        Takes centers among original rows to the space of `sampled`.

    Returns
    -------
    float64 (n_clusters, m)
    """
    init: Any = settings.init
    return start_centers(
        executor,
        sampled,
        n_clusters,
        init=drawn_by(init, original_rows(), n_clusters, placed) if callable(init) else init,
        n_init=settings.n_init,
        streams=Streams(settings.generator("seeding"), settings.generator("search")),
        pool=pool,
    )


def cell_centers(context: FitContext, rows: Blocks, sampled: Block) -> NDArray[np.float64]:
    """Centers to start from (k, m), found cell by cell on the workers that hold rows, or by an earlier run."""
    begun = context.writer.load("seed", np.ndarray)
    if begun is not None:
        return begun
    settings, n_cells = context.settings, context.plan.clustering.n_cells
    logger.info("centers are searched in %s cells, each on one worker", f"{n_cells:,}")
    schedule = Schedule.of(rows.n_rows, settings.n_clusters, settings.max_iter)
    asked = CellSearch(n_cells, settings.max_iter, settings.tol, settings.seed64("search"), schedule)
    start = search_cells(rows, sampled, settings.n_clusters, asked, here=context.here)
    context.writer.save("seed", start)
    return start
