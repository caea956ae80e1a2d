"""Labels that never pass this process: they stay where calls make them, and calls write them to a Zarr array.

What is done with labels in memory is assigning's work.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.atomic_io import (
    REPLACED,
    check_local,
    check_new_directory,
    file_tag,
    named,
    replace_tree,
    working_directory,
    writing,
)
from streamkm.core.exceptions import OutputError
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.passes import Map
from streamkm.passes.context import PassContext
from streamkm.passes.label_sinks import HeldLabels
from streamkm.passes.predict import nearest_labels
from streamkm.passes.reader import ValidRows

SKIPPED = "n_skipped"  # attribute of the Zarr array: how many labels are -1
OF_LABELS = r"zarr\.json|c"  # names in the directory of such an array
ROWS_PER_WRITE = 1 << 20  # labels of a storage chunk: one call writes one, so no two calls write the same file


def check_labels_place(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """The path of a Zarr array of labels that may be made, or replaced.

    Raises OutputError: a URL, another suffix than .zarr, or something there that may not be replaced.
    """
    check_local(path)
    target = Path(path)
    if target.suffix != ".zarr":
        raise OutputError(f"labels are written as .zarr, .csv or .parquet, not as {target.name}; choose such a name")
    check_new_directory(target, OF_LABELS, overwrite=overwrite)
    return target.absolute()


@dataclass(frozen=True, slots=True)
class Label(Map[tuple[NDArray[np.int32], int]]):
    """The labels of a chunk, -1 for invalid rows, and how many rows it has."""

    model: Model
    table: NearestCenters  # the model's

    def output(self, rows: ValidRows) -> tuple[NDArray[np.int32], int]:
        """Of one chunk."""
        return rows.spread(self.model.names(nearest_labels(self.model.place(rows.X), self.table)), -1), rows.n_read


def check_seen(executor: Executor, target: Path) -> None:
    """Refuse a path where a worker could not write labels, before anything is read.

    A directory that does not exist yet is made when labels are written: the one that it will be made in is looked at.

    Raises OutputError, DiskFullError: this process or a worker cannot write there; SourceNotFoundError: a worker does
    not see the directory; names both.
    """
    directory = next(each for each in target.absolute().parents if each.is_dir())
    with working_directory(directory / target.name) as place, named(place, target):
        executor.everywhere("place", check_directory, str(place))


def check_directory(path: str) -> None:
    """Refuse a directory that this process does not see, or cannot write to."""
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path} does not exist, so labels cannot be written there")
    with writing(path):
        probe = Path(path) / file_tag()
        probe.touch(exist_ok=False)
        probe.unlink()


def label_pass(context: PassContext, model: Model, stage: Stage) -> HeldLabels:
    """Read all rows once and label them."""
    handles, counts = context.executor.handles(), array("q")
    for handle, n_rows in context.held_outputs(Label(model, model.table()), stage):
        handles.append(handle)
        counts.append(n_rows)
    stage.rows = sum(counts)
    return HeldLabels(np.array(counts, np.int64), context.executor, handles)


def write_labels(executor: Executor, held: HeldLabels, target: Path, stage: Stage, *, overwrite: bool = False) -> None:
    """Have the labels written to a Zarr array, which appears when it is complete.

    `target`: visible to all workers. `overwrite`: whether labels that are there may be replaced. Raises OutputError,
    DiskFullError: it cannot be written here; SourceNotFoundError: a worker does not see the path; names both.

    Notes
    -----
    What travels are 4 bytes a row, from worker to worker where a storage chunk has labels of several.
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
    """Labels of sampled rows: looked up, or found again by the model where those of all rows were written."""
    if isinstance(labels, np.ndarray):
        return labels[sample.rows]
    X = sample.X
    return nearest_labels(model.place(X), model.table())


def n_writes(held: HeldLabels) -> int:
    """Calls that `write_labels` makes."""
    return -(-held.n_rows // ROWS_PER_WRITE)


def open_labels(path: Path) -> Any:
    """The array that was written (n,); ``[:]`` gathers it."""
    import zarr

    return zarr.open_array(str(path), mode="r")


def count_skipped(labels: Any) -> int:
    """Rows without a cluster among labels: an array, held labels that were counted, or what `open_labels` gives."""
    if isinstance(labels, HeldLabels):
        return labels.n_skipped
    return int(np.count_nonzero(labels < 0) if isinstance(labels, np.ndarray) else labels.attrs[SKIPPED])


def _storage_chunks(held: HeldLabels, bounds: NDArray[np.int64]) -> Iterator[list[Any]]:
    """First and last row of each storage chunk, labels before it in the first piece, and the pieces that have its."""
    for start in range(0, int(bounds[-1]), ROWS_PER_WRITE):
        stop = min(start + ROWS_PER_WRITE, int(bounds[-1]))
        first = int(np.searchsorted(bounds, start, side="right")) - 1
        last = int(np.searchsorted(bounds, stop))
        yield [start, stop, start - int(bounds[first]), *held.handles[first:last]]


def _write_item(item: list[Any], path: str) -> int:
    """Write one storage chunk; give how many of its rows were skipped."""
    import zarr

    start, stop, skipped, *pieces = item
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path} does not exist, so labels cannot be written there")
    array = zarr.open_array(path, mode="r+")
    labels = np.concatenate(pieces)[skipped : skipped + stop - start]
    with writing(path):
        array[start:stop] = labels
    return int(np.count_nonzero(labels < 0))
