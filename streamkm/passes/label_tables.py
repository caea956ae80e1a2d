"""Labels as a table (CSV, Parquet, or a folder of Parquet): row number or id, label, distances and an outlier score.

Each call writes its chunk's rows to a part in a hidden directory beside the table. This process puts row numbers or ids
before the rows, joins the parts in order, and shows the table when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model
from streamkm.cluster.rows import row_d2
from streamkm.core.atomic_io import (
    REPLACED,
    file_tag,
    named,
    replace_file,
    replace_tree,
    sync,
    working_directory,
    writing,
)
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import rows_between
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map
from streamkm.passes.context import PassContext
from streamkm.passes.labels import SKIPPED, check_directory
from streamkm.passes.predict import Values
from streamkm.passes.reader import ValidRows
from streamkm.passes.table_formats import FORMATS, ParquetFormat, RowNames, TableFormat, TablePlace, pyarrow_parquet

N_VALUES = 4  # of a row, as `nearest_two` gives them
SCORE_BYTES = 1 << 24  # of distances to all centers that are held at a time


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: rows, how many of them have no cluster, and the pass that it took, where that was timed."""

    n_rows: int
    n_skipped: int
    stage: Stage | None = None


def nearest_two(X: Any, table: NearestCenters) -> NDArray[np.float64]:
    """Labels and distances of rows to the nearest and the second nearest center, for `predict.Values`.

    Returns float64 (v, 4): label, distance, second label and second distance; NaN for the last two where k is 1. Labels
    and the first distance are exact; which center is second is as far as products of float32 tell.
    """
    n_rows, k = X.shape[0], table.n_clusters
    out = np.full((n_rows, N_VALUES), np.nan)
    step = max(1, SCORE_BYTES // (4 * k))
    for start in range(0, n_rows, step):
        part = rows_between(X, start, min(start + step, n_rows))
        here = out[start : start + step]
        labels = table.labels(part)
        here[:, 0], here[:, 1] = labels, np.sqrt(row_d2(part, labels, table))
        if k > 1:
            scores = table.scores(part)
            scores[np.arange(len(labels)), labels] = np.inf
            seconds = scores.argmin(axis=1).astype(np.int32)
            here[:, 2], here[:, 3] = seconds, np.sqrt(row_d2(part, seconds, table))
    return out


class RowNumbers:
    """Numbers of rows, from 0."""

    column = "row"

    def __init__(self) -> None:
        self._n_taken = 0

    def take(self, n_rows: int) -> NDArray[np.int64]:
        """Of the next rows."""
        self._n_taken += n_rows
        return np.arange(self._n_taken - n_rows, self._n_taken)

    def end(self) -> None:
        """There are as many as rows."""


class RowIds:
    """Ids of rows.

    `column`: what they are called. `pieces`: of all rows, in order.
    """

    def __init__(self, column: str, pieces: Iterable[Any]) -> None:
        self.column = column
        self._pieces = iter(pieces)
        self._held: list[Any] = []
        self._n_held = 0

    def take(self, n_rows: int) -> Any:
        """Of the next rows."""
        pa, _ = pyarrow_parquet()
        while self._n_held < n_rows:
            piece = next(self._pieces, None)
            if piece is None:
                raise InvalidInputError(
                    "there are fewer ids than rows; the data must not change while labels are written"
                )
            if isinstance(piece, list):
                piece = pa.array(piece, pa.string())
            self._held += piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece]
            self._n_held += len(piece)
        held = pa.chunked_array(self._held) if self._held else pa.chunked_array([], pa.string())
        self._held, self._n_held = held.slice(n_rows).chunks, self._n_held - n_rows
        return held.slice(0, n_rows)

    def end(self) -> None:
        """Refuse ids that no row is left for."""
        if self._n_held or any(len(piece) for piece in self._pieces):
            raise InvalidInputError("there are more ids than rows; data must not change while labels are written")


@dataclass(frozen=True, slots=True)
class Part:
    """The name of a part's file, how many rows it has, and how many of them have no cluster."""

    name: str
    n_rows: int
    n_skipped: int


@dataclass(frozen=True, slots=True)
class WritePart(Map[Part]):
    """Write a chunk's rows of the table to a part."""

    values: Values  # of `nearest_two`
    usual: NDArray[np.float64] | None  # (k,): see `write_table`
    format: TableFormat
    directory: str  # of the parts

    def output(self, rows: ValidRows) -> Part:
        """The part of a chunk; a call that Dask repeats writes another part, under another name."""
        found = self.values.output(rows)
        part = Part(file_tag(), len(found), int(np.isnan(found[:, 0]).sum()))
        with writing(self.directory), open(os.path.join(self.directory, part.name), "xb") as file:
            self.format.write_part(file, _columns(found, self.usual, self.values.model))
        return part


def write_table(
    context: PassContext,
    model: Model,
    place: TablePlace,
    stage: Stage,
    usual: NDArray[np.float64] | None,
    names: RowNames,
    *,
    overwrite: bool = False,
) -> Written:
    """Read all rows once and write a table of their labels; readers see the old file or the whole new one.

    `place`: all workers see its directory. `usual`: float64 (k,), mean distance of each cluster's rows to the center:
    what distances are divided by for outlier scores, which are left empty without it. `names`: row numbers or ids.
    `overwrite`: whether a table that is there may be replaced. Raises InvalidInputError: if there are not as many ids
    as rows; DiskFullError, OutputError: the old file is as it was; SourceNotFoundError: a worker does not see the
    directory; nothing was read.
    """
    path, table_format = place.path, FORMATS[place.path.suffix]
    values = Values(model, model.table(), nearest_two)
    n_skipped = 0

    def parts(hidden: Path) -> Iterator[Path]:
        nonlocal n_skipped
        context.executor.everywhere("place", check_directory, str(hidden))
        for part in context.outputs(WritePart(values, usual, table_format, str(hidden)), stage):
            stage.rows += part.n_rows
            n_skipped += part.n_skipped
            yield hidden / part.name
            (hidden / part.name).unlink()

    def write(file: BinaryIO) -> None:
        with working_directory(path) as hidden, named(hidden, path):
            table_format.join(file, parts(hidden), names)
        names.end()

    if place.is_folder:
        _write_folder(place, parts, names, overwrite=overwrite)
    else:
        replace_file(path, write, overwrite=overwrite)
    return Written(stage.rows, n_skipped)


@dataclass(frozen=True, slots=True)
class TableLabels:
    """Labels of a table that workers wrote, read when they are asked for: ``[:]`` gathers them, int32 (n,)."""

    path: Path
    n_rows: int
    n_skipped: int = 0  # rows without a cluster

    @property
    def shape(self) -> tuple[int]:
        """The number of rows."""
        return (self.n_rows,)

    @property
    def dtype(self) -> np.dtype[np.int32]:
        """That of labels."""
        return np.dtype(np.int32)

    @property
    def attrs(self) -> dict[str, int]:
        """What `labels.open_labels` says of an array."""
        return {SKIPPED: self.n_skipped}

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: Any) -> Any:
        return FORMATS[self.path.suffix].labels(self.path)[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        labels: NDArray[np.int32] = self[:]
        return labels.astype(dtype or np.int32, copy=bool(copy))


def _write_folder(
    place: TablePlace, parts: Callable[[Path], Iterator[Path]], names: RowNames, *, overwrite: bool
) -> None:
    """Write a folder of Parquet files, which appears when it is complete."""
    path = place.path
    with working_directory(path) as hidden, named(hidden, path), writing(path):
        made = hidden / "table"
        made.mkdir()
        ParquetFormat().split(made, parts(hidden), names)
        names.end()
        sync(made)
        place.check(overwrite=overwrite)  # once more: the pass may have taken hours
        replace_tree(made, path, hidden / REPLACED)


def _columns(part: NDArray[np.float64], usual: NDArray[np.float64] | None, model: Model) -> tuple[NDArray[Any], ...]:
    """The columns of some rows, but the first; -1 for no label, NaN for no number."""
    labels, seconds = (np.where(np.isnan(part[:, at]), -1, part[:, at]).astype(np.int32) for at in (0, 2))
    scores = np.full(len(part), np.nan)
    if usual is not None:
        own = usual[labels]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.where(part[:, 1] == 0, 0.0, part[:, 1] / own)
        scores[labels < 0] = np.nan
    for numbers in (labels, seconds):
        numbers[numbers >= 0] = model.names(numbers[numbers >= 0])
    return labels, part[:, 1], seconds, part[:, 3], scores
