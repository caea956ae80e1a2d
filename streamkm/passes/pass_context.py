"""Values that all passes of a run share, as one argument; `fitting.context` adds those of a fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.held_rows import Spill
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.engine.passes import Pass, Sink, run
from streamkm.passes.reader import RowReader, SourceRows

Output = TypeVar("Output")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """Executor, reader, weights and checkpoint of a run, which its passes share."""

    executor: Executor  # runs the calls that read rows
    reader: RowReader
    # (n,) or (0,), weights of the rows; (0,): each weighs 1
    weights: NDArray[np.float64] = field(default_factory=lambda: NO_WEIGHTS)
    # saves the progress of passes; by default nothing
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)
    spill: Spill | None = None  # disk space for sketched rows that do not fit in memory

    def rows(self, chunk_rows: NDArray[np.int64] | None = None, n_before: int = 0) -> SourceRows:
        """The rows after `n_before` chunks; `chunk_rows` (chunks,): rows of each chunk, from an earlier pass."""
        return SourceRows(self.reader, self.weights, chunk_rows, n_before)

    def run(
        self,
        pass_: Pass[Any, Output, Result],
        stage: Stage,
        chunk_rows: NDArray[np.int64] | None = None,
        *,
        sink: Sink[Output] | None = None,
        record: str | None = None,
    ) -> Result:
        """Read all rows once; see `engine.passes.run`. `record`: name under which the state is saved, or None."""
        writer = None if record is None or self.writer.checkpoint is None else self.writer
        rows = self.rows(chunk_rows)
        return run(pass_, rows, self.executor, stage, sink=sink, writer=writer, record=record or "")
