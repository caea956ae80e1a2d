"""Parquet and Arrow IPC files (Feather version 2); only chosen columns are read: by pages, or by record batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.arrow import guarded, readable
from streamkm.sources.chunks import Access
from streamkm.sources.remote import Address
from streamkm.sources.tables.columns import without
from streamkm.sources.tables.row_groups import HEAD_ROWS, RowGroupTable

_BATCH_BYTES = 1 << 21  # decoded, of what pyarrow gives at once
_BUFFER_BYTES = 1 << 18  # of a column that is read through a buffer, not whole


class ParquetTable(RowGroupTable):
    """Rows of Parquet files; see `RowGroupTable`."""

    form = "Parquet"
    unit_names = "row groups"
    access = Access(decodes=True, read_factor=2.5)
    page_bytes = 9 << 18  # a page of a column, its dictionary, and what they are unpacked from

    def _look(self, path: str) -> tuple[Any, list[str], list[int]]:
        with parquet_file(path) as file:
            meta, schema = file.metadata, file.schema_arrow
            return schema, schema.names, [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]

    def _batches(self, part: int, units: list[int], names: list[str]) -> Iterator[Any]:
        row_bytes = max(8 * len(names), self._layout.row_bytes)
        n_rows = min(1 << 16, max(1 << 10, _BATCH_BYTES // row_bytes))
        n_rows = n_rows if len(names) <= len(self._layout.columns) else HEAD_ROWS
        with parquet_file(self.paths[part], f", row group {units[0]:,} or later") as file:
            yield from file.iter_batches(n_rows, row_groups=units, columns=names, use_threads=True)

    def stored_rows(self, apart: str) -> Iterator[Any]:
        names = [*self._names[0], *without(self._options.keys.get(0, {}), self._names[0])]
        if apart in names or self._differ:
            wrong = (
                f"a column {apart!r}: rename it" if apart in names else "files of several schemas: name those of one"
            )
            raise InvalidInputError(f"{self.name} has {wrong}, to write rows by {apart}")
        return self._columns(names)


@contextmanager
def parquet_file(path: str, where: str = "") -> Iterator[Any]:
    """Give a pyarrow.parquet.ParquetFile with few large requests to servers, and small reads of local files."""
    is_remote = isinstance(path, Address)
    size = 0 if is_remote else _BUFFER_BYTES
    with guarded(path, "Parquet", where), readable(path) as opened:
        from pyarrow import parquet

        how = {"pre_buffer": is_remote, "buffer_size": size, "page_checksum_verification": True}
        with parquet.ParquetFile(opened, **how) as file:
            yield file


class ArrowTable(RowGroupTable):
    """Rows of Arrow IPC files; see `RowGroupTable`. Record batches are read whole, except columns left out."""

    form = "Arrow IPC"
    unit_names = "record batches"
    access = Access(decodes=True, read_factor=3.0)
    page_bytes = 0

    def _look(self, path: str) -> tuple[Any, list[str], list[int]]:
        with _arrow(path) as reader:
            schema, names = reader.schema, reader.schema.names  # which may be no text
        with _arrow(path, [0]) as reader:  # a column tells how many rows a batch has
            rows = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
        return schema, names, rows

    def _batches(self, part: int, units: list[int], names: list[str]) -> Iterator[Any]:
        with _arrow(self.paths[part], sorted(map(self._names[part].index, names))) as reader:
            for batch in map(reader.get_batch, units):
                batch.validate()  # a damaged one may tell of more values than it has
                yield batch


@contextmanager
def _arrow(path: str, fields: list[int] | None = None) -> Iterator[Any]:
    """Give a pyarrow.RecordBatchFileReader of some columns."""
    with guarded(path, "Arrow IPC"), readable(path) as opened:
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with pa.OSFile(opened) if isinstance(opened, str) else opened as file:
            yield pa.ipc.open_file(file, options=options)
