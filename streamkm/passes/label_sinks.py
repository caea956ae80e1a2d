"""Sinks of labels: an array in memory, which a checkpoint may hold too, or labels that stay where they are made."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import ClusterError
from streamkm.engine import Executor, Folded
from streamkm.engine.passes import Sink
from streamkm.engine.records import pack
from streamkm.engine.saving import CheckpointWriter

logger = logging.getLogger(__name__)


class LabelSink(Sink[Any], Protocol):
    """Takes the labels of chunks, in order.

    `labels`: int32 (n,) or HeldLabels.
    """

    n_taken: int  # chunks so far

    @property
    def labels(self) -> Any:
        """What was taken."""


class GatheredLabels:
    """Labels of all rows in memory.

    `chunk_rows`: int64 (chunks,), rows of each chunk. `writer`: its checkpoint holds the labels, too, if it has one.
    """

    held: ClassVar[bool] = False

    def __init__(self, chunk_rows: NDArray[np.int64], writer: CheckpointWriter):
        self._bounds = np.concatenate([[0], np.cumsum(chunk_rows)])
        self._n_written = 0
        self._checkpoint = writer.checkpoint
        self.labels = np.empty(int(self._bounds[-1]), np.int32)
        self.n_taken = 0

    def take(self, output: NDArray[np.int32]) -> None:
        """Take the labels of the next chunk."""
        self.labels[self._bounds[self.n_taken] : self._bounds[self.n_taken + 1]] = output
        self.n_taken += 1

    def restore(self, n_items: int) -> bool:
        """Read the labels of so many chunks; False if the checkpoint has not so many."""
        n_rows = int(self._bounds[n_items])
        if self._checkpoint is None or not self._checkpoint.read_labels(self.labels[:n_rows]):
            return False
        self.n_taken, self._n_written = n_items, n_rows
        return True

    def save(self, name: str, folded: Folded[Any]) -> None:
        """Write the labels that are new, then the record that says how many chunks there are."""
        if self._checkpoint is not None:
            stop = int(self._bounds[folded.n_items])
            self._checkpoint.write_labels(self._n_written, self.labels[self._n_written : stop])
            self._checkpoint.save(name, *pack(folded))
            self._n_written = stop


class ScatteredLabels:
    """Labels of the valid rows of each chunk that has some, at their places among all rows; -1 for the others.

    `chunk_rows`: int64 (chunks,), rows of each chunk. `kept`: mapping of int to int64 (v,), numbers of the valid rows
    in each chunk that has others, by the number of the chunk.
    """

    held: ClassVar[bool] = False

    def __init__(self, chunk_rows: NDArray[np.int64], kept: Mapping[int, NDArray[np.int64]]):
        self._kept, self._ends = kept, np.cumsum(chunk_rows)
        n_valid = chunk_rows.copy()
        for number, rows in kept.items():
            n_valid[number] = len(rows)
        self._filled = iter(np.flatnonzero(n_valid).tolist())
        self.labels = np.full(int(chunk_rows.sum()), -1, np.int32)

    def take(self, output: NDArray[np.int32]) -> None:
        """Take the labels of the next chunk's valid rows."""
        number = next(self._filled)
        start, stop = self._ends[number - 1] if number else 0, self._ends[number]
        self.labels[start:stop][self._kept.get(number, slice(None))] = output

    def restore(self, n_items: int) -> bool:  # noqa: ARG002 - sketched rows are gone with the run that kept them
        """Nothing is saved."""
        return False

    def save(self, name: str, folded: Folded[Any]) -> None:
        """Nothing is saved: a run that continues sketches the rows anew."""


class HeldLabels:
    """Labels of all rows, where they were made.

    `handles`: of int32 labels, one for each chunk that was read. `rows`: int64 (chunks,), how many labels each has.
    `n_skipped`: labels that are -1; 0 until `count` was called.
    """

    held: ClassVar[bool] = True

    def __init__(self, rows: NDArray[np.int64], executor: Executor, handles: Sequence[Any] = ()):
        self.handles = executor.handles()
        self.handles.extend(handles)
        self.n_taken = len(self.handles)
        self.rows = rows
        self.n_skipped = 0
        self._executor = executor

    @property
    def labels(self) -> Self:
        """These: no label is in this process."""
        return self

    @property
    def n_rows(self) -> int:
        """How many there are."""
        return int(self.rows.sum())

    def count(self) -> Self:
        """Have labels that are -1 counted where they are."""
        self.n_skipped = sum(self._executor.map("skipped", _n_skipped, self.handles))
        return self

    def gather(self) -> NDArray[np.int32]:
        """All labels (n,), from each worker in turn.

        Raises ClusterError: the client is closed, or the cluster is out of reach.
        """
        labels, start = np.empty(self.n_rows, np.int32), 0
        try:
            for part in self._executor.values(self.handles):
                labels[start : start + len(part)] = part
                start += len(part)
        except ClusterError as error:
            raise ClusterError(
                f"the labels are on workers, and cannot be gathered: {error}; ask for labels_ before the client is "
                f"closed, or write them with fit(..., labels_to=...); predict finds them anew"
            ) from error
        return labels

    def to_dask(self) -> Any:
        """All labels as a Dask array of a block for each call that made some; nothing is gathered.

        Dask's arrays of expressions take no futures: with them, labels are gathered into an array in memory.
        """
        from streamkm.engine.dask_handles import parts_by_call
        from streamkm.engine.dask_tasks import concatenated
        from streamkm.sources.dask.arrays import array_of_arrays

        try:
            return array_of_arrays(concatenated, parts_by_call(self.handles, self.rows.tolist()), np.dtype(np.int32))
        except NotImplementedError:
            logger.info("labels are gathered: Dask's arrays of expressions take no futures")
            return self.gather()

    def take(self, output: Any) -> None:
        """Take the handle of the next chunk's labels."""
        self.handles.append(output)
        self.n_taken += 1

    def restore(self, n_items: int) -> bool:  # noqa: ARG002 - workers' memory is gone
        """They are gone with the run that made them."""
        return False

    def save(self, name: str, folded: Folded[Any]) -> None:
        """They cannot be saved: a run that continues makes them again."""


def _n_skipped(labels: NDArray[np.int32]) -> int:
    return int(np.count_nonzero(labels < 0))
