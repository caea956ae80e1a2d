"""Documents whose storage tells their row ids: rows of Parquet files, and text files of one document each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chunks import Access, Chunk, Origin
from streamkm.sources.documents.hashed import HashedText, TextBatch
from streamkm.sources.documents.memory_documents import (
    DocumentList,
    MalformedTextError,
    document_of,
    shown_names,
)
from streamkm.sources.documents.text_files import decoded
from streamkm.sources.formats import is_folder
from streamkm.sources.local import natural, opened
from streamkm.sources.paths import visible_files
from streamkm.sources.remote import remote_library
from streamkm.sources.row_source import row_ids_between
from streamkm.sources.stored import file_size, name_of, open_binary, opened_path
from streamkm.sources.tables.files import parquet_file
from streamkm.sources.text_lines import BLOCK_BYTES
from streamkm.text import FeatureHashing

_SAMPLE_ROWS = 256


class ParquetDocuments(DocumentList):
    """Documents in one or several columns. Row groups are never split; only the needed columns are read.

    `fields`: columns of strings or lists of strings; for counts, of numbers, strings, structs or maps. Raises
    MissingDependencyError; SourceError: missing or not Parquet; InvalidInputError: a missing column, or no rows.
    """

    def __init__(
        self, paths: Sequence[str], hashing: FeatureHashing, fields: Sequence[str], id_column: str | None = None
    ) -> None:
        self.paths = tuple(map(opened_path, paths))
        self.origin = Origin(self.paths, id_column=id_column)
        self.access = Access(decodes=True, libraries=("words", "pyarrow", *remote_library(*self.paths)))
        self.fields = [*fields]
        self.name = name_of(self.paths)
        # of each row group that has rows: file, number there, rows, decoded and stored bytes of the columns
        groups = [group for part in range(len(paths)) for group in self._groups_of(part)]
        self._groups = np.array(groups, np.int64).reshape(-1, 5)
        self._begins, self._ends = np.cumsum([0, *self._groups[:, 2]]), np.cumsum(self._groups[:, 3])
        self.n_rows, self.n_bytes = int(self._begins[-1]), int(self._groups[:, 4].sum())
        taken = {"format": "ParquetDocuments", "fields": self.fields, "input": hashing.input}
        stored = {"format": "Parquet", "chunks": f"{len(groups):,} row groups"}
        HashedText.__init__(self, hashing, stored, taken)

    def _groups_of(self, part: int) -> Iterator[tuple[int, ...]]:
        with parquet_file(self.paths[part]) as file:
            known = file.schema_arrow.names
            for field in (*self.fields, self.origin.id_column or self.fields[0]):
                if field not in known:
                    raise InvalidInputError(
                        f"{self.paths[part]}: column {field!r} is missing; it has {shown_names(known)}"
                    )
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                leaves = map(group.column, range(group.num_columns))
                read = [leaf for leaf in leaves if leaf.path_in_schema.split(".", 1)[0] in self.fields]
                if group.num_rows:
                    n_bytes = sum(leaf.total_uncompressed_size for leaf in read)
                    yield part, number, group.num_rows, n_bytes, sum(leaf.total_compressed_size for leaf in read)

    def cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Runs of row groups, as runs of rows."""
        for part, start, stop, n_bytes in super().cuts(text_bytes):
            yield part, *self._begins[[start, stop]].tolist(), n_bytes

    def batch(self, chunk: Chunk) -> TextBatch:
        documents: list[Any] = []
        here = self._groups[slice(*np.searchsorted(self._begins, [chunk.start, chunk.stop]))]
        for part, number in here[:, :2].tolist():
            with parquet_file(self.paths[part]) as file:
                table = file.read_row_group(number, columns=self.fields, use_threads=False)
            documents += self._of_rows(table, chunk.start + len(documents))
        return TextBatch(documents, row_ids_between(chunk.start, chunk.stop), chunk.n_bytes)

    def _ids(self, column: str) -> Iterator[list[str | None]]:
        for path in self.paths:
            with parquet_file(path) as file:
                for table in file.iter_batches(columns=[column], use_threads=False):
                    yield [None if each is None else str(each) for each in table.column(0).to_pylist()]

    def sample(self) -> tuple[TextBatch, float | None]:
        """Look at the first rows of the first row group."""
        part, number, n_rows, text, _ = self._groups[0].tolist()
        with parquet_file(self.paths[part]) as file:
            rows = file.iter_batches(_SAMPLE_ROWS, row_groups=[number], columns=self.fields, use_threads=False)
            documents = self._of_rows(next(rows), 0)
        n_bytes = max(1, round(text * len(documents) / n_rows))
        return TextBatch(documents, row_ids_between(0, len(documents)), n_bytes), float(self._ends[-1])

    def describe(self, place: int) -> str:
        parts = self._groups[:, 0]
        part = parts[np.searchsorted(self._begins, place, side="right") - 1]
        return f"row {place - self._begins[np.searchsorted(parts, part)]:,} of {self.paths[part]}"

    def _of_rows(self, table: Any, first: int) -> list[Any]:
        """Documents of rows; `first` is the place of the first one."""
        documents: list[Any] = []
        for record in table.to_pylist(maps_as_pydicts="lossy"):
            try:
                documents.append(document_of(record, self.fields, self.hashing.input))
            except MalformedTextError as problem:
                raise InvalidInputError(f"{self.describe(first + len(documents))}: {problem}") from None
        return documents


class WholeFiles(DocumentList):
    """Documents of one file each, in the order of their names; empty files are blank documents.

    `paths`: files, and folders of them. Raises SourceError: an unreadable file; InvalidInputError: no file has text.
    """

    access = HashedText.access

    def __init__(self, paths: Sequence[str], hashing: FeatureHashing, *, decode_error: str = "strict") -> None:
        found = {file for path in paths for file in (visible_files(path) if is_folder(path) else [path])}
        self.paths = tuple(opened(path) for path in sorted(found, key=natural))
        files = (str(paths[0]),) if len(paths) == 1 and is_folder(paths[0]) else self.paths
        self.name, self.origin = name_of(files or paths), Origin(files, id_column="file")
        self.n_rows = len(self.paths)
        self.decode_error = decode_error
        sizes = np.array([file_size(path) for path in self.paths], np.int64)
        self._ends, self.n_bytes = np.cumsum(sizes + 1), int(sizes.sum())  # an empty document takes time, too
        taken = {"format": "WholeFiles", "input": hashing.input, "decode_error": decode_error}
        HashedText.__init__(self, hashing, {"format": f"{self.n_rows:,} text files, a document each"}, taken)

    def document(self, number: int) -> Any:
        path = self.paths[number]
        with open_binary(path) as file:
            text = file.read()
        limit = self.line_limit
        if limit is not None and len(text) > max(BLOCK_BYTES, limit.room_bytes / limit.byte_cost):
            raise limit.refusal(path, len(text))
        try:
            document = decoded(text, 0, self.decode_error)
        except MalformedTextError as problem:
            raise InvalidInputError(f"{path} (byte {problem.args[1]:,}): {problem.args[0]}") from None
        return document if self.hashing.input == "text" else document.split()

    def ids(self) -> Iterator[list[str | None]]:
        """Yield paths relative to the given folder, or to the common folder of all files."""
        folders = [os.path.dirname(os.path.abspath(path)) for path in self.paths]
        files = self.origin.files
        folder = os.path.commonpath(folders) if files == self.paths else files[0]
        yield [os.path.relpath(path, folder).replace(os.sep, "/") for path in self.paths]

    def describe(self, place: int) -> str:
        return str(self.paths[place])
