"""Documents in columns of Parquet files, read by pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidInputError, MissingDependencyError, SourceError
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.documents.base import Batch, Documents, cut_at
from streamkm.sources.documents.formats import document_of, shown_names
from streamkm.sources.local import unchanged
from streamkm.sources.remote.objects import remote_library
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.text_lines import PLACE_BITS, part_and_byte
from streamkm.text.feature_hashing import Input

_SAMPLE_ROWS = 256


class ParquetDocuments(Documents):
    """Documents of one or several columns. A row group is never split; only the columns asked for are read.

    `fields`: columns of strings, of lists of strings, or for counts of numbers, strings, structs or maps. `ids_from`: a
    column that names documents. Raises MissingDependencyError; SourceError for files that are missing or no Parquet;
    InvalidInputError where a column is missing, or there are no rows.
    """

    def __init__(
        self, paths: Sequence[str | Path], fields: tuple[str, ...], kind: Input, ids_from: str | None = None
    ) -> None:
        self.files = self.paths = tuple(opened_path(os.fspath(path)) for path in paths)
        self.libraries = (*self.libraries, "pyarrow", *remote_library(*self.paths))
        self.fields, self.kind, self.id_column = fields, kind, ids_from
        self.name = name_of(self.paths)
        # of each file: rows, decoded bytes and stored bytes of the columns, for each row group (groups, 3)
        self._groups = tuple(self._groups_of(part) for part in range(len(self.paths)))
        self.n_rows, self._text_bytes, self.n_bytes = (int(n) for n in sum(each.sum(0) for each in self._groups))
        if self.n_rows == 0:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 document is needed")

    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        """Cut between row groups; starts and stops are rows of a file."""
        return ChunkRuns.of(self._cuts(text_bytes))

    def _cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        for part, groups in enumerate(self._groups):
            rows, text, _ = np.cumsum(groups, axis=0).T
            for first, last, n_bytes in cut_at(text, text_bytes):
                start, stop = int(rows[first] - groups[first, 0]), int(rows[last - 1])
                if stop > start:
                    yield part, start, stop, n_bytes

    def read(self, chunk: Chunk) -> Batch:
        ends = np.cumsum(self._groups[chunk.part][:, 0])
        first, last = np.searchsorted(ends, [chunk.start, chunk.stop - 1], side="right")
        with self._open(chunk.part) as file:
            table = file.read_row_groups(list(range(first, last + 1)), columns=list(self.fields), use_threads=False)
        return self._batch(table, chunk.part, chunk.start, chunk.n_bytes)

    def ids(self) -> Iterator[list[str | None]]:
        """See `Documents.ids`: one pass over that column."""
        for part in range(len(self.paths)):
            with self._open(part) as file:
                for table in file.iter_batches(columns=[self.id_column], use_threads=False):
                    yield [None if each is None else str(each) for each in table.column(0).to_pylist()]

    def sample(self) -> tuple[Batch, float | None]:
        """Look at the first rows of the first file that has any."""
        part = next(part for part, groups in enumerate(self._groups) if groups[:, 0].any())
        with self._open(part) as file:
            table = next(file.iter_batches(_SAMPLE_ROWS, columns=list(self.fields), use_threads=False))
        n_rows, text, _ = self._groups[part].sum(0)
        return self._batch(table, part, 0, max(1, round(text * table.num_rows / n_rows))), float(self._text_bytes)

    def describe(self, place: int) -> str:
        """Say where a document is: ``row 7 of x.parquet``; rows are counted from 0."""
        part, row = part_and_byte(place)
        return f"row {row:,} of {self.paths[part]}"

    def taken(self) -> dict[str, Any]:
        return {"format": "ParquetDocuments", "fields": list(self.fields), "input": self.kind}

    def details(self) -> dict[str, str]:
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        return {"format": f"Parquet{files}", "chunks": f"{sum(map(len, self._groups)):,} row groups"}

    def _batch(self, table: Any, part: int, start: int, n_bytes: int) -> Batch:
        columns = []
        for column in (table.column(field) for field in self.fields):
            is_map = str(column.type).startswith("map<")
            columns.append([dict(each) if is_map and each is not None else each for each in column.to_pylist()])
        places = part << PLACE_BITS | np.arange(start, start + table.num_rows, dtype=np.int64)
        documents = []
        for place, values in zip(places.tolist(), zip(*columns, strict=True), strict=True):
            try:
                documents.append(document_of(dict(zip(self.fields, values, strict=True)), self.kind))
            except ValueError as error:
                raise InvalidInputError(f"{self.describe(place)}: {error}") from None
        return Batch(documents, places, n_bytes)

    def _groups_of(self, part: int) -> Any:
        with self._open(part) as file:
            known = file.schema_arrow.names
            for field in (*self.fields, *(() if self.id_column is None else (self.id_column,))):
                if field not in known:
                    raise InvalidInputError(
                        f"{self.paths[part]}: column {field!r} is missing; it has {shown_names(known)}"
                    )
            groups = np.zeros((file.metadata.num_row_groups, 3), np.int64)
            for number, sizes in enumerate(groups):
                group = file.metadata.row_group(number)
                sizes[0] = group.num_rows
                for leaf in map(group.column, range(group.num_columns)):
                    if leaf.path_in_schema.split(".", 1)[0] in self.fields:
                        sizes[1:] += leaf.total_uncompressed_size, leaf.total_compressed_size
        return groups

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
