"""Documents in columns of Parquet files, read by pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, MissingDependencyError, SourceError
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.documents.base import Batch, ChunkedDocuments, check_target
from streamkm.sources.documents.formats import document_of
from streamkm.sources.local import unchanged
from streamkm.sources.remote.objects import remote_library
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.text_positions import PLACE_BITS, part_and_byte
from streamkm.text.feature_hashing import Input

_SAMPLE_ROWS = 256
_SHOWN_COLUMNS = 12


class ParquetDocuments(ChunkedDocuments):
    """Documents of one or several columns. A row group is never split; only the columns asked for are read.

    Parameters
    ----------
    paths : sequence of str or Path
    fields : tuple of str
        Columns: of strings, of lists of strings, or for counts of numbers, strings, structs or maps.
    kind : {"text", "tokens", "counts"}
        What documents are, as `FeatureHashing` has it.

    Raises
    ------
    MissingDependencyError
        If pyarrow is not installed.
    SourceError, SourceNotFoundError
        If a file does not exist, or is no Parquet file.
    InvalidInputError
        A column is missing, or there are no rows.
    """

    def __init__(self, paths: Sequence[str | Path], fields: tuple[str, ...], kind: Input) -> None:
        self.files = self.paths = tuple(opened_path(os.fspath(path)) for path in paths)
        self.libraries = (*self.libraries, "pyarrow", *remote_library(*self.paths))
        self.fields, self.kind = fields, kind
        self.name = name_of(self.paths)
        groups = [self._groups(part) for part in range(len(self.paths))]
        self._ends = tuple(np.cumsum([rows for rows, _, _ in group], dtype=np.int64) for group in groups)
        self._text = tuple(np.array([text for _, text, _ in group], np.int64) for group in groups)
        self.n_bytes = sum(stored for group in groups for _, _, stored in group)
        self.n_rows: int = sum(int(ends[-1]) for ends in self._ends if len(ends))
        if self.n_rows == 0:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 document is needed")

    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        """Cut between row groups; starts and stops are rows of a file."""
        check_target(text_bytes)
        return ChunkRuns.of(self._cuts(text_bytes))

    def _cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        for part, (ends, sizes) in enumerate(zip(self._ends, self._text, strict=True)):
            start = held = 0
            for end, size, following in zip(ends, sizes, [*sizes[1:], 1 << 62], strict=True):
                held += int(size)
                if held + following > text_bytes and end > start:
                    yield part, start, int(end), held
                    start, held = int(end), 0

    def read(self, chunk: Chunk) -> Batch:
        first, last = np.searchsorted(self._ends[chunk.part], [chunk.start, chunk.stop - 1], side="right")
        with self._open(chunk.part) as file:
            table = file.read_row_groups(list(range(first, last + 1)), columns=list(self.fields), use_threads=False)
        n_bytes = int(self._text[chunk.part][first : last + 1].sum())
        return self._batch(table, chunk.part, chunk.start, n_bytes)

    def name_by(self, column: str) -> None:
        """Take a column for the documents' names. Raises InvalidInputError: a file has no such column."""
        self.id_column = column
        named = copy(self)
        named.fields = (column,)
        for part in range(len(self.paths)):
            named._groups(part)

    def ids(self) -> Iterator[list[str | None]]:
        """See `Documents.ids`: one pass over that column."""
        for part in range(len(self.paths)):
            with self._open(part) as file:
                for table in file.iter_batches(columns=[self.id_column], use_threads=False):
                    yield [None if each is None else str(each) for each in table.column(0).to_pylist()]

    def sample(self) -> tuple[Batch, float | None]:
        """Look at the first rows of the first file that has any."""
        part = next(part for part, ends in enumerate(self._ends) if len(ends) and ends[-1])
        with self._open(part) as file:
            table = next(file.iter_batches(_SAMPLE_ROWS, columns=list(self.fields), use_threads=False))
        text = self._text[part].sum() * table.num_rows / int(self._ends[part][-1])
        return self._batch(table, part, 0, max(1, round(text))), float(sum(sizes.sum() for sizes in self._text))

    def describe(self, place: int) -> str:
        """Say where a document is: ``row 7 of x.parquet``; rows are counted from 0."""
        part, row = part_and_byte(place)
        return f"row {row:,} of {self.paths[part]}"

    def taken(self) -> dict[str, Any]:
        """See `Documents.taken`."""
        return {"format": "ParquetDocuments", "fields": list(self.fields), "input": self.kind}

    def details(self) -> dict[str, str]:
        n_groups = sum(len(ends) for ends in self._ends)
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        return {"format": f"Parquet{files}", "chunks": f"{n_groups:,} row groups"}

    def _batch(self, table: Any, part: int, start: int, n_bytes: int) -> Batch:
        columns = [_values(table.column(field)) for field in self.fields]
        places = part << PLACE_BITS | np.arange(start, start + table.num_rows, dtype=np.int64)
        return Batch(list(self._documents(columns, places)), places, n_bytes)

    def _documents(self, columns: list[list[Any]], places: NDArray[np.int64]) -> Iterator[Any]:
        for place, values in zip(places, zip(*columns, strict=True), strict=True):
            try:
                yield document_of(dict(zip(self.fields, values, strict=True)), self.kind)
            except ValueError as error:
                raise InvalidInputError(f"{self.describe(int(place))}: {error}") from None

    def _groups(self, part: int) -> list[tuple[int, int, int]]:
        """Rows, decoded bytes and stored bytes of the columns, for each row group."""
        with self._open(part) as file:
            known = file.schema_arrow.names
            for field in self.fields:
                if field not in known:
                    shown = ", ".join(known[:_SHOWN_COLUMNS]) + (", ..." if len(known) > _SHOWN_COLUMNS else "")
                    raise InvalidInputError(f"{self.paths[part]}: column {field!r} is missing; it has {shown}")
            found = []
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                leaves = [group.column(i) for i in range(group.num_columns)]
                mine = [leaf for leaf in leaves if leaf.path_in_schema.split(".", 1)[0] in self.fields]
                text, stored = (
                    sum(getattr(leaf, f"total_{kind}_size") for leaf in mine) for kind in ("uncompressed", "compressed")
                )
                found.append((group.num_rows, text, stored))
        return found

    @contextmanager
    def _open(self, part: int) -> Iterator[Any]:
        """Give a pyarrow file; its errors become SourceError."""
        path = self.paths[part]
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise MissingDependencyError(f"{path}: reading Parquet needs pyarrow; install streamkm[text]") from error
        try:
            with unchanged(path), parquet.ParquetFile(path, page_checksum_verification=True) as file:
                yield file
        except (SourceError, InvalidInputError):
            raise
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{path}: cannot be read as Parquet: {error}") from error


def _values(column: Any) -> list[Any]:
    """Python values of a column; maps become dicts."""
    values: list[Any] = column.to_pylist()
    if str(column.type).startswith("map<"):
        return [None if value is None else dict(value) for value in values]
    return values
