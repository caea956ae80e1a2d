"""Arrow IPC files (Feather version 2): record batches, each read by itself.

How many rows a batch has stands in its header, a flatbuffer; pyarrow reads that with all of the batch only, so it is
read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.stored import open_binary, read_fully
from streamkm.sources.tables.arrow import guarded, readable
from streamkm.sources.tables.columns import TableOptions
from streamkm.sources.tables.row_groups import RowGroupTable, Run, TableFile

_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_RECORD_BATCHES, _HEADER, _LENGTH = 3, 2, 0  # slots of the tables Footer, Message and RecordBatch


class ArrowTable(RowGroupTable):
    """Rows of Arrow IPC files; see `RowGroupTable`. Record batches are read whole, but for columns left out."""

    form = "Arrow IPC"
    unit_name = "record batches"
    splits = False
    decodes = True
    read_factor = 3.0

    def __init__(self, paths: Sequence[str], options: TableOptions) -> None:
        self._fields: list[list[str]] = []
        super().__init__(paths, options)

    def _look(self, part: int) -> TableFile:
        import pyarrow as pa

        path = self.paths[part]
        with _opened(path) as file:
            if file.read(len(_CONTINUATION)) == _CONTINUATION:
                raise InvalidInputError(
                    f"{path} is a stream of Arrow, not an Arrow file; give pyarrow.ipc.open_stream of it"
                )
            file.seek(0)
            with pa.ipc.open_file(file) as reader:
                schema = reader.schema
                self._fields.append(list(schema.names))  # of bytes that may be no UTF-8
        return TableFile.of(schema, batch_rows(path), self._options.keys_of(part))

    def _stored_bytes(self) -> int:
        return sum(path.version.n_bytes for path in self.paths if path.version is not None)

    def _decoder_bytes(self, largest_unit: int) -> int:  # noqa: ARG002 - goes with chunks
        return 0

    def _batches(self, run: Run, names: list[str]) -> Iterator[Any]:
        import pyarrow as pa

        path, before = self.paths[run.part], 0
        fields = self._fields[run.part]
        options = pa.ipc.IpcReadOptions(included_fields=sorted(fields.index(name) for name in names), use_threads=False)
        with _opened(path) as file, pa.ipc.open_file(file, options=options) as reader:
            for number in run.units:
                batch = reader.get_batch(number)
                batch.validate()  # a damaged file may tell of more values than it has
                first = min(max(0, run.skip - before), batch.num_rows)
                last = min(batch.num_rows, run.skip + run.n_rows - before)
                before += batch.num_rows
                if last > first:
                    yield batch.slice(first, last - first)


def batch_rows(path: str) -> list[int]:
    """Rows of each record batch of an Arrow IPC file; reads the footer and the batches' headers. Raises SourceError."""
    with open_binary(path) as file:
        size = file.seek(0, 2)
        try:
            tail = _read(file, max(0, size - 10), min(10, size))
            if tail[4:] != _MAGIC:
                raise SourceError(f"{path} is truncated: it does not end as Arrow IPC files do; write it again")
            (footer_bytes,) = struct.unpack("<i", tail[:4])
            footer = _read(file, size - 10 - footer_bytes, footer_bytes)
            rows = []
            for offset, header_bytes in _blocks(footer):
                header = _read(file, offset, header_bytes)
                header = header[8:] if header[:4] == _CONTINUATION else header[4:]
                batch = _table(header, _slot(header, _root(header), _HEADER))
                rows.append(_long(header, batch, _LENGTH))
        except (struct.error, IndexError, ValueError) as error:
            raise SourceError(f"{path} cannot be read as Arrow IPC; truncated or damaged: {error}") from error
    if any(n_rows < 0 for n_rows in rows):
        raise SourceError(f"{path} cannot be read as Arrow IPC; a record batch says that it has {min(rows):,} rows")
    return rows


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Give a file of pyarrow's; see `guarded` for errors."""
    with guarded(path, "Arrow IPC"):
        import pyarrow as pa

        opened, remote = readable(path)
        with remote or nullcontext(), pa.OSFile(opened) if remote is None else opened as file:
            yield file


def _read(file: Any, start: int, size: int) -> bytes:
    if start < 0 or not 0 <= size <= 1 << 30:
        raise ValueError(f"{size:,} bytes at byte {start:,}")
    data = bytearray(size)
    if read_fully(file, memoryview(data), start) < size:
        raise ValueError(f"the file ends in front of byte {start + size:,}")
    return bytes(data)


# Flatbuffers: a table begins with the distance back to its list of slots, which has each slot's distance from the table


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, 0)[0])


def _slot(data: bytes, table: int, number: int) -> int:
    """Where a slot of a table is; 0 where it is left out."""
    slots = table - struct.unpack_from("<i", data, table)[0]
    (n_bytes,) = struct.unpack_from("<H", data, slots)
    if 4 + 2 * number >= n_bytes:
        return 0
    (distance,) = struct.unpack_from("<H", data, slots + 4 + 2 * number)
    return table + distance if distance else 0


def _table(data: bytes, at: int) -> int:
    if not at:
        raise ValueError("a header is missing")
    return at + int(struct.unpack_from("<I", data, at)[0])


def _long(data: bytes, table: int, number: int) -> int:
    at = _slot(data, table, number)
    return int(struct.unpack_from("<q", data, at)[0]) if at else 0


def _blocks(footer: bytes) -> Iterator[tuple[int, int]]:
    """Where each record batch's header is, and its bytes."""
    at = _slot(footer, _root(footer), _RECORD_BATCHES)
    if not at:
        return
    vector = _table(footer, at)
    (count,) = struct.unpack_from("<I", footer, vector)
    for number in range(count):
        offset, header_bytes = struct.unpack_from("<qi", footer, vector + 4 + 24 * number)
        yield offset, header_bytes
