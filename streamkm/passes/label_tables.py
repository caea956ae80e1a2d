"""Labels as a table (CSV or Parquet): row number or id, label, distances to two centers; and rows written by cluster.

Rows are sorted by label as files are sorted that exceed memory: in runs on disk, which are read by ranges of labels.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model
from streamkm.cluster.rows import row_d2
from streamkm.core.atomic_io import check_local, check_new, replace_file, working_directory
from streamkm.core.exceptions import InvalidInputError, MissingDependencyError, OutputError
from streamkm.core.matrix import rows_between
from streamkm.core.progress import Stage
from streamkm.sources.arrow import one_chunk, stored_numbers
from streamkm.sources.row_source import RowSource

COLUMNS = ("label", "distance", "second_label", "second_distance")
N_VALUES = len(COLUMNS)  # of a row, as `nearest_two` gives them
SUFFIXES = (".csv", ".parquet")  # of places of tables
SCORE_BYTES = 1 << 24  # of distances to all centers that are held at a time
PIECE_ROWS = 1 << 16  # that are written at a time
PARTITION = "cluster"  # the key in the names of directories of rows
OF_PARTITIONS = rf"{PARTITION}=-?[0-9]+|centers\.(npy|arrow)"  # names beside each other

Piece = tuple[Any, list[Any]]
"""Names of some rows, and their values in each column, masked where they are missing."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing: rows, rows without a cluster, the stage of the pass, if it was timed, and files."""

    n_rows: int
    n_skipped: int
    stage: Stage | None = None
    n_files: int = 1


def check_table_place(place: str | os.PathLike[str], *, overwrite: bool) -> str:
    """The absolute place of a table of labels, if it can be written.

    Raises OutputError: a URL, no directory to write to, or something there that may not be replaced;
    MissingDependencyError: Parquet without pyarrow.
    """
    check_local(place)
    path = Path(place)
    if not path.parent.is_dir():
        raise OutputError(f"{path} cannot be written: there is no directory {path.parent}; make it, and try again")
    if path.suffix == ".parquet":
        pyarrow_parquet()
    check_new(path, overwrite=overwrite)
    with working_directory(path):  # which says whether one may write there
        return str(path.absolute())


def nearest_two(X: Any, table: NearestCenters) -> NDArray[np.float64]:
    """Labels and distances of rows to the nearest and the second nearest center, float64 (v, 4), for `map_rows`.

    Labels and the first distance are exact; the second center is chosen by products in float32, and NaN if k is 1.
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


class RowNames:
    """Numbers of a source's rows, from 0, or their ids, which come in pieces."""

    def __init__(self, source: RowSource) -> None:
        self.column = source.origin.id_column or "row"
        self._ids = None if source.origin.id_column is None else iter(source.ids())
        self._held: list[Any] = []
        self._n_taken = 0

    def take(self, n_rows: int) -> Any:
        """Names of the next rows: int64 (n_rows,) or a pyarrow.ChunkedArray."""
        self._n_taken += n_rows
        if self._ids is None:
            return np.arange(self._n_taken - n_rows, self._n_taken)
        pa, _ = pyarrow_parquet()
        while sum(map(len, self._held)) < n_rows:
            piece = next(self._ids, None)
            if piece is None:
                raise InvalidInputError("there are fewer ids than rows; data must not change while labels are written")
            piece = pa.array(piece, pa.string()) if isinstance(piece, list) else piece
            self._held += piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece]
        held = pa.chunked_array(self._held, None if self._held else pa.string())
        self._held = held.slice(n_rows).chunks
        return held.slice(0, n_rows)

    def end(self) -> None:
        """Refuse ids beyond the last row."""
        if self._ids is not None and any(map(len, [*self._held, *self._ids])):
            raise InvalidInputError("there are more ids than rows; data must not change while labels are written")


def write_table(
    found: Iterator[NDArray[np.float64]],
    model: Model,
    place: str,
    stage: Stage,
    names: RowNames,
    *,
    overwrite: bool = False,
) -> Written:
    """Write a table of the `nearest_two` of chunks of rows; readers see the old table or the whole new one.

    Raises InvalidInputError: there are not as many ids as rows; DiskFullError, OutputError: the old table is kept.
    """
    path, n_skipped = Path(place), 0

    def pieces() -> Iterator[Piece]:
        nonlocal n_skipped
        for chunk in found:
            n_skipped += int(np.isnan(chunk[:, 0]).sum())
            for start in range(0, len(chunk), PIECE_ROWS):
                values = chunk[start : start + PIECE_ROWS]
                yield names.take(len(values)), list(_columns(values, model))
        names.end()

    write = _write_csv if path.suffix == ".csv" else _write_parquet
    replace_file(path, lambda file: write(file, names.column, pieces()), overwrite=overwrite)
    return Written(stage.rows, n_skipped, stage)


def _columns(found: NDArray[np.float64], model: Model) -> Iterator[Any]:
    """Columns of some rows, missing values masked; a row without a cluster has the label -1."""
    missing = np.isnan(found)
    for at in range(N_VALUES):
        values = found[:, at]
        if at % 2 == 0:
            values = np.where(missing[:, at], -1, values).astype(np.int32)
            values[values >= 0] = model.names(values[values >= 0])
        yield np.ma.MaskedArray(values, missing[:, at] & (at > 0))


def _write_csv(file: BinaryIO, column: str, pieces: Iterator[Piece]) -> None:
    """Write lines; missing values are empty."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    try:
        lines.writerow((column, *COLUMNS))
        for names, columns in pieces:
            cells = [values.astype(object).filled("") for values in columns]
            first = names.tolist() if isinstance(names, np.ndarray) else names.to_pylist()
            lines.writerows(zip(first, *cells, strict=True))
    finally:
        text.detach()  # the caller closes the file


def _write_parquet(file: Any, column: str, pieces: Iterator[Piece]) -> None:
    """Write row groups."""
    pa, pq = pyarrow_parquet()
    writer = None
    try:
        for names, columns in pieces:
            first = _arrow(names) if isinstance(names, np.ndarray) else names
            values = [_arrow(each.data, each.mask) for each in columns]
            table = pa.Table.from_arrays([first, *values], [column, *COLUMNS])
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _arrow(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> Any:
    """Values as an Arrow array with nulls; `pyarrow.array` would import pandas, some 50 MiB."""
    import pyarrow as pa

    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing is not None and missing.any() else None
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))]
    )


def write_centers(centers: NDArray[np.float32], labels: NDArray[np.int32], place: Path) -> None:
    """Write the centers (k, m), and with their labels as a table of Arrow with lists of m values."""
    pa, _ = pyarrow_parquet()
    np.save(place / "centers.npy", centers)
    lists = pa.FixedSizeListArray.from_arrays(_arrow(centers.ravel()), centers.shape[1])
    table = pa.Table.from_arrays([_arrow(labels), lists], [PARTITION, "center"])
    with pa.ipc.new_file(os.fspath(place / "centers.arrow"), table.schema) as writer:
        writer.write_table(table)


def write_partitions(batches: Iterator[Any], labels: Path, place: Path, window_bytes: int) -> Written:
    """Write rows below ``cluster=LABEL``, in their order; `labels`: a file of int32; sorted runs go beside `place`.

    About four times `window_bytes` are held. A label has one file, or several of half a window and more.
    """
    pa, parquet = pyarrow_parquet()
    counts, runs, n_bytes = Counter[int](), list[str](), 0

    def window(batch: Any) -> int:
        nonlocal n_bytes
        n_bytes += batch.nbytes
        pa.default_memory_pool().release_unused()  # else freed memory stays with the threads that decode
        return n_bytes // window_bytes

    with open(labels, "rb") as file:
        for _, some in groupby(batches, window):
            table = pa.Table.from_batches(some)
            found = np.fromfile(file, np.int32, len(table))
            counts.update(found.tolist())
            runs.append(os.fspath(place.with_name(f"run-{len(runs)}")))
            table = table.append_column(PARTITION, _arrow(found)).unify_dictionaries().combine_chunks()
            table = table.sort_by(PARTITION)  # a stable sort
            with pa.ipc.new_file(runs[-1], table.schema) as writer:
                writer.write_table(table)
    most = max(1, counts.total() * window_bytes // (2 * n_bytes))
    before = dict(zip(sorted(counts), accumulate(counts[label] for label in sorted(counts)), strict=True))
    for _, near in groupby(before, lambda label: label if counts[label] > most else -2 - before[label] // most):
        asked, held = list(near), []
        for run in runs:
            pa.default_memory_pool().release_unused()
            with pa.memory_map(run) as file:
                table = pa.ipc.open_file(file).read_all()
                start, stop = np.searchsorted(_labels(table), [asked[0], asked[-1] + 1])
                held.append(table.take(_arrow(np.arange(start, stop))))  # a copy: what is mapped counts as memory
            if run == runs[-1] or (len(asked) == 1 and sum(map(len, held)) >= most):
                table, held = pa.concat_tables(held).unify_dictionaries().combine_chunks().sort_by(PARTITION), []
                for start, stop in pairwise(np.flatnonzero(np.diff(_labels(table), prepend=-2, append=-2)).tolist()):
                    folder = place / f"{PARTITION}={table.column(PARTITION)[start]}"
                    folder.mkdir(parents=True, exist_ok=True)
                    rows = table.slice(start, stop - start).drop_columns([PARTITION])
                    parquet.write_table(rows, folder / f"part-{len(os.listdir(folder))}.parquet")
    return Written(counts.total(), counts[-1], n_files=sum(1 for _ in place.rglob("*.parquet")))


def _labels(table: Any) -> NDArray[np.int32]:
    """The labels of rows that lie in one piece."""
    return stored_numbers(one_chunk(table.column(PARTITION)))


def pyarrow_parquet() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet; raises MissingDependencyError."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError("labels in Parquet files need pyarrow; install streamkm[tables]") from error
    return pa, parquet
