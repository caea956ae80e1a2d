"""Rows read ahead of the passes, at places spread evenly over the data, to find a sketch on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.passes.context import PassContext
from streamkm.passes.reader import Walk, Weighed

FEWEST_PLACES, MOST_PLACES = 16, 64
MOST_SHARE = 0.05  # of the rows that are read for more places than rows are wanted from


def rows_ahead(context: PassContext, n_wanted: int, row_bytes: int, stage: Stage) -> Matrix:
    """About so many rows from chunks that are spread evenly, each as small as its storage allows.

    Parameters
    ----------
    context : PassContext
        Of a source in chunks that knows its number of rows.
    row_bytes : int
        Of a row as read.

    Returns
    -------
    ndarray or csr_array (s, d)
        s is smaller where chunks are small and rows invalid.

    Raises
    ------
    InvalidInputError
        If one of these rows is invalid.
    """
    walk = replace(context.walk, target_bytes=max(1, n_wanted // MOST_PLACES) * row_bytes)
    context = PassContext(executor=context.executor, walk=walk, weights=NO_WEIGHTS)
    items = list(context.items())
    chosen = [items[place] for place in _places(items, n_wanted)]
    parts, n_each = [], -(-n_wanted // len(chosen))
    for X, n_read in context.executor.map("ahead", _ahead_item, chosen, context.share(), n_each, large=True):
        parts.append(X)
        stage.rows += n_read
        stage.advance()
    return stacked(parts)


def _places(items: list[Weighed], n_wanted: int) -> NDArray[np.int64]:
    """Which chunks are read: enough for the rows, and more, as long as they are few of all."""
    a_chunk = max(1, int(np.median([1 if item[1] is None else item[1] for item in items])))
    enough = -(-n_wanted // a_chunk)
    spread = min(FEWEST_PLACES, int(MOST_SHARE * len(items)))
    n_places = min(len(items), MOST_PLACES, max(enough, spread))
    return (np.arange(n_places) * len(items) + len(items) // 2) // n_places


def _ahead_item(item: Weighed, shared: tuple[Walk], n_each: int) -> tuple[Any, int]:
    (walk,) = shared
    rows = walk.read(item[0])
    step = max(1, rows.X.shape[0] // n_each)
    return rows.X[::step][:n_each], rows.n_read
