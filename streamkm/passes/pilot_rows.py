"""Rows read before the first pass, evenly spread over the data, on which a sketch is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map, outputs
from streamkm.passes.context import PassContext
from streamkm.passes.reader import ReadItem, SourceRows, ValidRows
from streamkm.sources.chunks import Chunk

FEWEST_PLACES, MOST_PLACES = 16, 64
MOST_SHARE = 0.05  # of the rows that are read for more places than rows are wanted from


def rows_ahead(context: PassContext, n_wanted: int, row_bytes: int, stage: Stage) -> Matrix:
    """Read about so many rows from evenly spread chunks, each as small as its storage allows.

    `context`: its source has chunks, and knows its number of rows. `row_bytes`: bytes of a row as read. Returns ndarray
    or csr_array (s, d): s is smaller if chunks are small and rows are invalid. Raises InvalidInputError: if one of
    these rows is invalid.
    """
    reader = replace(context.reader, target_bytes=max(1, n_wanted // MOST_PLACES) * row_bytes)
    chunks = reader.source.cut(reader.target_bytes)
    places = _places(chunks, n_wanted)
    items = enumerate(SourceRows(reader).items(context.executor))
    rows = ChosenRows(reader, chosen=tuple(item for place, item in items if place in places))
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


def _places(chunks: Sequence[Chunk], n_wanted: int) -> frozenset[int]:
    """Chunks to read: enough for the rows, and more of them while they are a small part of all."""
    lengths = np.fromiter((chunk.stop - chunk.start for chunk in chunks), np.int64, len(chunks))
    enough = -(-n_wanted // max(1, int(np.median(lengths))))
    spread = min(FEWEST_PLACES, int(MOST_SHARE * len(chunks)))
    n_places = min(len(chunks), MOST_PLACES, max(enough, spread))
    return frozenset(((np.arange(n_places) * len(chunks) + len(chunks) // 2) // n_places).tolist())
