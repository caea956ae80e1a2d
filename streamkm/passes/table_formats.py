"""CSV and Parquet as formats of a table of labels: where one may be, how a call writes a part, how parts are joined.

A part has all columns but the first, which names the rows: only whoever joins the parts knows how many rows come
before. Knows nothing of what the columns hold.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import check_local, check_new, check_new_directory, sync
from streamkm.core.exceptions import MissingDependencyError, OutputError

COLUMNS = ("label", "distance", "second_label", "second_distance", "outlier_score")
FILE_ROWS = 1 << 20
"""Rows from which on a file of a folder gets no further part."""
PART_NAME = "part-{}.parquet"
"""A file of a folder, by its number."""
_CSV_ROWS = 1 << 13  # that are Python objects at a time
_CSV_BYTES = 1 << 20  # of lines that are read from a part at a time

Columns = tuple[NDArray[Any], ...]
"""`COLUMNS` of some rows: -1 for no label, NaN for no number."""


class RowNames(Protocol):
    """What the rows of a table are called, in order."""

    column: str  # what the names are called

    def take(self, n_rows: int) -> Any:
        """Names of the next rows: int64 (n_rows,) or a pyarrow.ChunkedArray."""

    def end(self) -> None:
        """Refuse names that no row is left for."""


class TableFormat(Protocol):
    """A format of tables."""

    def write_part(self, file: BinaryIO, columns: Columns) -> None:
        """Write a part."""

    def join(self, file: BinaryIO, parts: Iterable[Path], names: RowNames) -> None:
        """Write the table of some parts; each is read before the next one is asked for."""

    def labels(self, path: Path) -> NDArray[np.int32]:
        """The labels of a table (n,)."""


class CsvFormat:
    """Lines of cells. A part has lines without the first cell, so joining parts formats no number again."""

    def write_part(self, file: BinaryIO, columns: Columns) -> None:
        """Write a part; nothing stands for no second label and for NaN."""
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        try:
            for start in range(0, len(columns[0]), _CSV_ROWS):
                labels, distances, seconds, second_distances, scores = (
                    column[start : start + _CSV_ROWS] for column in columns
                )
                second_labels = ["" if at < 0 else at for at in seconds.tolist()]
                cells = (_filled(distances), second_labels, _filled(second_distances), _filled(scores))
                writer.writerows(zip(labels.tolist(), *cells, strict=True))
        finally:
            text.detach()  # the caller closes the file

    def join(self, file: BinaryIO, parts: Iterable[Path], names: RowNames) -> None:
        """Write a line of names, and the parts' lines behind their first cells."""
        file.write(_FirstCells([names.column]).cells[0] + ",".join(COLUMNS).encode() + b"\n")
        for path in parts:
            with open(path, "rb") as part:
                while lines := part.readlines(_CSV_BYTES):
                    taken = names.take(len(lines))
                    if isinstance(taken, np.ndarray):
                        cells = [b"%d," % number for number in taken.tolist()]
                    else:
                        cells = _FirstCells(taken.to_pylist()).cells
                    file.write(b"".join([cell + line for cell, line in zip(cells, lines, strict=True)]))

    def labels(self, path: Path) -> NDArray[np.int32]:
        """Of the second cell of each line."""
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            next(lines)
            return np.fromiter((int(cells[1]) for cells in lines), np.int32)


class ParquetFormat:
    """Parquet. A part is an Arrow file, which is mapped to memory and encoded once."""

    def write_part(self, file: BinaryIO, columns: Columns) -> None:
        """Write a part; null stands for no second label and for NaN."""
        pa, _ = pyarrow_parquet()
        missing = (None, *(np.isnan(values) if values.dtype.kind == "f" else values < 0 for values in columns[1:]))
        batch = pa.record_batch(list(map(_arrow, columns, missing)), list(COLUMNS))
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)

    def join(self, file: BinaryIO, parts: Iterable[Path], names: RowNames) -> None:
        """Write a row group, or a few, of each part."""
        _, pq = pyarrow_parquet()
        writer = None
        try:
            for table in self._tables(parts, names):
                if writer is None:
                    writer = pq.ParquetWriter(file, table.schema)
                writer.write_table(table)
                del table
        finally:
            if writer is not None:
                writer.close()

    def labels(self, path: Path) -> NDArray[np.int32]:
        """Of their column alone."""
        _, pq = pyarrow_parquet()
        labels: NDArray[np.int32] = pq.read_table(path, columns=[COLUMNS[0]])[COLUMNS[0]].to_numpy()
        return labels

    def split(self, directory: Path, parts: Iterable[Path], names: RowNames) -> None:
        """Write whole parts to files of at least `FILE_ROWS` rows each, but for the last; they are on the disk then."""
        tables, n_files = self._tables(parts, names), 0
        while (first := next(tables, None)) is not None:
            path = directory / PART_NAME.format(f"{n_files:05}")
            self._write_file(path, first, tables)
            sync(path)
            n_files += 1

    @staticmethod
    def _write_file(path: Path, first: Any, tables: Iterator[Any]) -> None:
        """Write a table, and more of them until there are rows enough."""
        _, pq = pyarrow_parquet()
        n_rows = first.num_rows
        with pq.ParquetWriter(path, first.schema) as writer:
            writer.write_table(first)
            del first
            while n_rows < FILE_ROWS and (table := next(tables, None)) is not None:
                n_rows += table.num_rows
                writer.write_table(table)
                del table

    @staticmethod
    def _tables(parts: Iterable[Path], names: RowNames) -> Iterator[Any]:
        """What the file of each part holds, with the names of its rows; let go of each before the next."""
        pa, _ = pyarrow_parquet()
        for path in parts:
            with pa.memory_map(str(path)) as mapped:
                table = pa.ipc.open_file(mapped).read_all()
                taken = names.take(len(table))
                first = _arrow(taken) if isinstance(taken, np.ndarray) else taken
                yield table.add_column(0, names.column, first).replace_schema_metadata(None)
                del table  # a mapped file cannot be removed everywhere


FORMATS: dict[str, TableFormat] = {".csv": CsvFormat(), ".parquet": ParquetFormat()}
SUFFIXES = (*FORMATS, *(f"{suffix}/" for suffix in FORMATS))
"""Of places of tables; one that ends in a slash is a folder."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table is written: a path that ends in .csv or .parquet, and whether it becomes a folder of Parquet."""

    path: Path
    is_folder: bool = False

    def check(self, *, overwrite: bool) -> None:
        """Refuse a place that cannot be made or replaced. Raises as `check_table_place`."""
        if not self.path.parent.is_dir():
            missing = self.path.parent
            raise OutputError(f"{self.path} cannot be written: there is no directory {missing}; make it, and try again")
        if self.path.suffix == ".parquet":
            pyarrow_parquet()
        elif self.is_folder:
            raise OutputError(f"{self.path}/ would be a folder of CSV; leave the slash out, or choose NAME.parquet/")
        if self.is_folder:
            check_new_directory(self.path, PART_NAME.format("[0-9]{5,}"), overwrite=overwrite)
        else:
            check_new(self.path, overwrite=overwrite)


def check_table_place(path: str | os.PathLike[str], *, overwrite: bool) -> TablePlace:
    """The place of a table of labels that may be made, or replaced.

    Raises OutputError: a URL, no directory to write to, something there that may not be replaced, or a folder of CSV;
    MissingDependencyError: Parquet without pyarrow.
    """
    check_local(path)
    place = TablePlace(Path(path), os.fspath(path).endswith("/"))
    place.check(overwrite=overwrite)
    return TablePlace(place.path.absolute(), place.is_folder)


def pyarrow_parquet() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet.

    Raises MissingDependencyError.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError("labels in Parquet files need pyarrow; install streamkm[tables]") from error
    return pa, parquet


def _arrow(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> Any:
    """Values as an Arrow array, null where they are missing; `pyarrow.array` would import pandas, some 50 MiB."""
    import pyarrow as pa

    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def _filled(values: NDArray[np.float64]) -> list[Any]:
    """Numbers as cells: nothing for NaN."""
    return ["" if missing else value for value, missing in zip(values.tolist(), np.isnan(values).tolist(), strict=True)]


class _FirstCells:
    """What a csv.writer writes for rows of a first cell and an empty one: the first cells as bytes, a comma behind."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.cells: list[bytes] = []
        csv.writer(self, lineterminator="\n").writerows(zip(values, repeat("")))

    def write(self, line: str) -> None:
        self.cells.append(line[:-1].encode())
