"""Rows read before the first pass, evenly spread over the data, on which a sketch is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map, outputs
from streamkm.passes.context import PassContext
from streamkm.passes.reader import ReadItem, SourceRows, ValidRows

FEWEST_PLACES, MOST_PLACES = 16, 64
MOST_SHARE = 0.05  # of the rows that are read for more places than rows are wanted from


def rows_ahead(context: PassContext, n_wanted: int, row_bytes: int, stage: Stage) -> Matrix:
    """Read about so many rows from evenly spread chunks, each as small as its storage allows.

    Parameters
    ----------
    context : PassContext
        Its source has chunks, and knows its number of rows.
    row_bytes : int
        Bytes of a row as read.

    Returns
    -------
    ndarray or csr_array (s, d)
        s is smaller if chunks are small and rows are invalid.

    Raises
    ------
    InvalidInputError
        If one of these rows is invalid.
    """
    reader = replace(context.reader, target_bytes=max(1, n_wanted // MOST_PLACES) * row_bytes)
    items = list(SourceRows(reader).items(context.executor))
    rows = ChosenRows(reader, chosen=tuple(items[place] for place in _places(items, n_wanted)))
    parts = []
    for X, n_read in outputs(Evenly(-(-n_wanted // rows.n_items)), rows, context.executor, stage):
        parts.append(X)
        stage.rows += n_read
    return stacked(parts)


@dataclass(frozen=True, slots=True)
class ChosenRows(SourceRows):
    """Rows of some chunks of a source."""

    chosen: tuple[ReadItem, ...] = ()

    @property
    def n_items(self) -> int:
        """Number of chosen chunks."""
        return len(self.chosen)

    def items(self, executor: Executor) -> Iterator[ReadItem]:  # noqa: ARG002 - they were made before
        """The chosen chunks."""
        return iter(self.chosen)


@dataclass(frozen=True, slots=True)
class Evenly(Map[tuple[Matrix, int]]):
    """Evenly spread rows of each chunk, and the number of its rows."""

    large = True

    n_each: int

    @staticmethod
    def memory(n_wanted: int, row_bytes: int) -> PassMemory:
        """Memory of the rows, as they were read and as one matrix."""
        return PassMemory(kept=2 * n_wanted * row_bytes)

    def output(self, rows: ValidRows) -> tuple[Matrix, int]:
        """At most so many rows of a chunk."""
        step = max(1, rows.X.shape[0] // self.n_each)
        return rows.X[::step][: self.n_each], rows.n_read


def _places(items: list[ReadItem], n_wanted: int) -> NDArray[np.int64]:
    """Chunks to read: enough for the rows, and more of them while they are a small part of all."""
    a_chunk = max(1, int(np.median([1 if item[1] is None else item[1] for item in items])))
    enough = -(-n_wanted // a_chunk)
    spread = min(FEWEST_PLACES, int(MOST_SHARE * len(items)))
    n_places = min(len(items), MOST_PLACES, max(enough, spread))
    return (np.arange(n_places) * len(items) + len(items) // 2) // n_places
