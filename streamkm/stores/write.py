"""The pass that fills a part of a sketch store: chunks become their sketches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from streamkm.cluster.blocks import merged
from streamkm.cluster.sampling.row_sample import as_block_matrix
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map, outputs
from streamkm.passes.reader import RowReader, SourceRows, ValidRows
from streamkm.sketches import Sketch
from streamkm.stores.writer import PartWriter

STORED_COPIES = 4  # of a sketched chunk: made, gathered, compressed, written


@dataclass(frozen=True, slots=True)
class Job:
    """How and by whom rows are read that go into a store."""

    reader: RowReader
    executor: Executor
    stage: Stage


@dataclass(frozen=True, slots=True)
class Filled:
    """A part whose rows are all there, not finished yet; its kind; and the width of the widest rows that were read."""

    writer: PartWriter
    kind: Any
    width: int


def fill_part(job: Job, directory: Path, sketch: Sketch, kind: str | None) -> Filled:
    """Write what a pass makes of a source into a part."""
    reader, executor, stage = job.reader, job.executor, job.stage
    writer, width = None, 0
    for made, found in outputs(StoredRows(sketch), SourceRows(reader), executor, stage):
        if kind is None:
            kind = "dense" if isinstance(made, np.ndarray) else "csr"
        X = _as_stored(made, kind)
        if writer is None:
            writer = PartWriter(directory, kind, X.dtype, X.shape[1])
        writer.add(X)
        width = max(width, found)
    if writer is None or not writer.n_rows:
        raise InvalidInputError(f"{reader.source.name} has no rows; needed: at least 1")
    stage.rows = writer.n_rows
    return Filled(writer, kind, width)


@dataclass(frozen=True, slots=True)
class StoredRows(Map[tuple[Matrix, int]]):
    """Sketched rows of a chunk, canonical, with NaN for those that were skipped; and how wide the rows were."""

    large = True

    sketch: Sketch

    @staticmethod
    def memory(block_bytes: int) -> PassMemory:
        """Chunks as they are stored, of so many bytes."""
        return PassMemory(kept=STORED_COPIES * block_bytes, output=block_bytes)

    def output(self, rows: ValidRows) -> tuple[Matrix, int]:
        """Of one chunk."""
        return _with_gaps(rows, as_block_matrix(merged(self.sketch.apply(rows.X)))), rows.X.shape[1]


def _with_gaps(rows: ValidRows, X: Matrix) -> Matrix:
    """Rows at their places among all rows of the chunk; NaN where one was skipped."""
    if rows.kept is None:
        return X
    if isinstance(X, np.ndarray):
        out = np.full((rows.n_read, X.shape[1]), np.nan, X.dtype)
        out[rows.kept] = X
        return out
    lengths = np.ones(rows.n_read, np.int64)
    lengths[rows.kept] = np.diff(X.indptr)
    skipped = np.ones(rows.n_read, bool)
    skipped[rows.kept] = False
    gaps = np.repeat(skipped, lengths)
    data, indices = np.full(len(gaps), np.nan, X.dtype), np.zeros(len(gaps), X.indices.dtype)
    data[~gaps], indices[~gaps] = X.data, X.indices
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((data, indices, indptr), shape=(rows.n_read, X.shape[1]))


def _as_stored(X: Matrix, kind: str) -> Matrix:
    """Rows as a store of a kind has them: dense, or CSR."""
    if kind == "dense":
        return X if isinstance(X, np.ndarray) else X.toarray()
    return sp.csr_array(X) if isinstance(X, np.ndarray) else X
