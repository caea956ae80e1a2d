"""Labels of all rows: in an array, which a checkpoint may hold too; on the workers that made them; in a Zarr array."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Model
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.atomic_io import (
    REPLACED,
    check_local,
    check_new_directory,
    named,
    partial_name,
    replace_tree,
    working_directory,
    writing,
)
from streamkm.core.exceptions import ClusterError, OutputError
from streamkm.core.progress import Stage
from streamkm.engine import Executor, Folded
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.engine.passes import Map, Sink, held_outputs
from streamkm.engine.records import pack
from streamkm.passes.pass_context import PassContext
from streamkm.passes.predict import Values, nearest_labels
from streamkm.passes.reader import ValidRows

SKIPPED = "n_skipped"  # attribute of the Zarr array: how many labels are -1
OF_LABELS = r"zarr\.json|c"  # names in the directory of such an array
ROWS_PER_WRITE = 1 << 20  # labels of a storage chunk: one call writes one, so no two calls write the same file

logger = logging.getLogger(__name__)


class GatheredLabels:
    """Labels of all rows in memory, and in the checkpoint of `writer` if there is one."""

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
        """Read the labels of the first chunks; False if the checkpoint has fewer."""
        n_rows = int(self._bounds[n_items])
        if self._checkpoint is None or not self._checkpoint.read_labels(self.labels[:n_rows]):
            return False
        self.n_taken, self._n_written = n_items, n_rows
        return True

    def save(self, name: str, folded: Folded[Any]) -> None:
        """Write the new labels, then the record with the number of chunks."""
        if self._checkpoint is not None:
            stop = int(self._bounds[folded.n_items])
            self._checkpoint.write_labels(self._n_written, self.labels[self._n_written : stop])
            self._checkpoint.save(name, *pack(folded))
            self._n_written = stop


class HeldLabels(Sink[Any]):
    """Labels of all rows, on the workers that made them; no checkpoint holds them.

    `handles` are those of int32 labels, `rows` (chunks,) the labels of each; `n_skipped` are -1, after `count`.
    """

    held: ClassVar[bool] = True

    def __init__(self, rows: NDArray[np.int64], executor: Executor, handles: Sequence[Any] = ()):
        self.handles = list(handles)
        self.n_taken = len(self.handles)
        self.rows = rows
        self.n_skipped = 0
        self._executor = executor

    @property
    def labels(self) -> Self:
        """The object itself: no label is in this process."""
        return self

    @property
    def n_rows(self) -> int:
        """The number of labels."""
        return int(self.rows.sum())

    def count(self) -> Self:
        """Count labels that are -1 on the workers."""
        self.n_skipped = sum(self._executor.map("skipped", count_skipped, self.handles))
        return self

    def gather(self) -> NDArray[np.int32]:
        """All labels (n,). Raises ClusterError: the client is closed, or the cluster is out of reach."""
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
        """All labels as a Dask array with a block for each call; gathered if Dask's arrays take no futures."""
        from streamkm.engine.dask_calls import concatenated, parts_by_call
        from streamkm.sources.dask.dask_arrays import array_of_arrays

        try:
            return array_of_arrays(concatenated, parts_by_call(self.handles, self.rows.tolist()), np.dtype(np.int32))
        except NotImplementedError:
            logger.info("labels are gathered: Dask's arrays of expressions take no futures")
            return self.gather()

    def take(self, output: Any) -> None:
        """Take the handle of the next chunk's labels."""
        self.handles.append(output)
        self.n_taken += 1


def check_labels_place(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """The path of a Zarr array of labels; raises OutputError for a URL, another suffix, or files that must stay."""
    check_local(path)
    target = Path(path)
    if target.suffix != ".zarr":
        raise OutputError(f"labels are written as .zarr, .csv or .parquet, not as {path}; choose such a name")
    check_new_directory(target, OF_LABELS, overwrite=overwrite)
    return target.absolute()


@dataclass(frozen=True, slots=True)
class Label(Map[tuple[NDArray[np.int32], int]]):
    """The labels of a chunk, -1 for invalid rows, and the number of its rows."""

    values: Values  # by `nearest_labels`

    def output(self, rows: ValidRows) -> tuple[NDArray[np.int32], int]:
        """Labels and number of rows of one chunk."""
        return self.values.output(rows), rows.n_read


def check_seen(executor: Executor, target: Path) -> None:
    """Refuse a path that this process or a worker cannot write to, by the nearest directory that exists.

    Raises OutputError, DiskFullError, or SourceNotFoundError if a worker does not see the directory; names both.
    """
    directory = next(each for each in target.absolute().parents if each.is_dir())
    with working_directory(directory / target.name) as place, named(place, target):
        executor.everywhere("place", check_directory, str(place))


def check_directory(path: str) -> None:
    """Refuse a directory that this process cannot see or write to."""
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path} does not exist, so labels cannot be written there")
    with writing(path):
        probe = Path(path) / partial_name("probe")
        probe.touch(exist_ok=False)
        probe.unlink()


def label_pass(context: PassContext, model: Model, stage: Stage) -> HeldLabels:
    """Read all rows once and label them."""
    handles, counts, values = list[Any](), array("q"), Values(model, model.table(), nearest_labels)
    for handle, n_rows in held_outputs(Label(values), context.rows(), context.executor, stage):
        handles.append(handle)
        counts.append(n_rows)
    stage.rows = sum(counts)
    return HeldLabels(np.array(counts, np.int64), context.executor, handles)


def write_labels(executor: Executor, held: HeldLabels, target: Path, stage: Stage, *, overwrite: bool = False) -> None:
    """Have the workers write labels to a Zarr array, which appears when it is complete.

    Raises OutputError, DiskFullError, or SourceNotFoundError if a worker does not see the path; names both.
    """
    import zarr

    bounds = np.concatenate([[0], np.cumsum(held.rows)])
    n_rows = int(bounds[-1])
    with working_directory(target) as place:
        work, chunks = place / "labels", (min(ROWS_PER_WRITE, max(1, n_rows)),)
        with writing(target):
            array = zarr.create_array(str(work), shape=(n_rows,), chunks=chunks, dtype=np.int32)
        n_skipped = 0
        with named(work, target):
            for count in executor.map(stage.name, _write_item, _storage_chunks(held, bounds), str(work)):
                n_skipped += count
                stage.advance()
        with writing(target):
            array.attrs[SKIPPED] = n_skipped
            for left in work.rglob("*.partial"):  # of a worker that was killed
                left.unlink()
        check_labels_place(target, overwrite=overwrite)  # once more: the pass may have taken hours
        replace_tree(work, target, place / REPLACED)


def labels_of(sample: Sample, labels: Any, model: Model) -> NDArray[np.int32]:
    """Labels of sampled rows: looked up, or found again by the model if labels are not in this process."""
    if isinstance(labels, np.ndarray):
        return labels[sample.rows]
    return nearest_labels(model.place(sample.X), model.table())


def n_writes(held: HeldLabels) -> int:
    """Calls that `write_labels` makes."""
    return -(-held.n_rows // ROWS_PER_WRITE)


def open_labels(path: Path) -> Any:
    """The Zarr array of labels (n,); ``[:]`` gathers it."""
    import zarr

    return zarr.open_array(str(path), mode="r")


def count_skipped(labels: Any) -> int:
    """Labels that are -1, in an array, in held labels after `count`, or in the result of `open_labels`."""
    if isinstance(labels, HeldLabels):
        return labels.n_skipped
    return int(np.count_nonzero(labels < 0) if isinstance(labels, np.ndarray) else labels.attrs[SKIPPED])


def _storage_chunks(held: HeldLabels, bounds: NDArray[np.int64]) -> Iterator[list[Any]]:
    """First and last row of each storage chunk, labels before it in the first piece, and the pieces that cover it."""
    for start in range(0, int(bounds[-1]), ROWS_PER_WRITE):
        stop = min(start + ROWS_PER_WRITE, int(bounds[-1]))
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        last = int(np.searchsorted(bounds, stop))
        yield [start, stop, start - int(bounds[first]), *held.handles[first:last]]


def _write_item(item: list[Any], path: str) -> int:
    """Write one storage chunk; return the number of labels that are -1."""
    import zarr

    start, stop, skipped, *pieces = item
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path} does not exist, so labels cannot be written there")
    array = zarr.open_array(path, mode="r+")
    labels = np.concatenate(pieces)[skipped : skipped + stop - start]
    with writing(path):
        array[start:stop] = labels
    return count_skipped(labels)
