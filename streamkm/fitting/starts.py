"""The one search for centers to start from, of fits and of coresets: by the settings, among sampled rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import Block
from streamkm.cluster.seeding.init import Streams, drawn_by, start_centers
from streamkm.cluster.seeding.search_set import SAMPLED, Pool
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.fitting.settings import Settings


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
