"""Parquet and Arrow IPC files (Feather version 2).

A row group that is larger than a chunk is decoded once, where its pieces are read in turn. How many rows an Arrow
file's batch has stands in its header, a flatbuffer; pyarrow reads that with all of the batch only, so it is read here.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.arrow import guarded, readable
from streamkm.sources.stored import open_binary, read_fully
from streamkm.sources.tables.columns import TableOptions
from streamkm.sources.tables.row_groups import RowGroupTable, Run, TableFile, sliced

_BATCH_BYTES = 1 << 21  # decoded, of what pyarrow gives at once
_BUFFER_BYTES = 1 << 18  # of a column that is read through a buffer, not whole
_OTHERS_S = 0.02  # that another thread may take until it comes for the rows in front of those that are wanted
_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_RECORD_BATCHES, _HEADER, _LENGTH = 3, 2, 0  # slots of the tables Footer, Message and RecordBatch


class ParquetTable(RowGroupTable):
    """Rows of Parquet files; see `RowGroupTable`.

    Only the chosen columns are read, page by page. A piece of a row group continues where the piece in front of it
    ended, where that was read in this process; else the rows in front of it are decoded and dropped.
    """

    form = "Parquet"
    unit_name = "row groups"
    splits = True
    read_factor = 2.5
    page_bytes = 9 << 18  # a page of a column, its dictionary, and what they are unpacked from

    def __init__(self, paths: Sequence[str], options: TableOptions) -> None:
        self._open = OpenGroup()
        super().__init__(paths, options)

    def _look(self, path: str) -> TableFile:
        with _parquet(path) as file, guarded(path, "Parquet"):
            meta, schema = file.metadata, file.schema_arrow
            return TableFile(schema, schema.names, [meta.row_group(i).num_rows for i in range(meta.num_row_groups)])

    def _batches(self, run: Run, names: list[str]) -> Iterator[Any]:
        path, skip, n_rows = self.paths[run.part], run.skip, run.n_rows
        if len(run.units) == 1 and n_rows < run.n_stored:
            return iter(self._open.take(path, run.units[0], skip, skip + n_rows, run.n_stored, names))
        return sliced(_decoded(path, run.units, names), skip, n_rows)


class OpenGroup:
    """The row group that a piece was read of last, open behind that piece. Thread-safe; pickles empty."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenGroup, ()

    def _close(self) -> None:
        self._key: Any = None  # the row group, and its columns
        self._at = 0
        self._batches: Any = None
        self._left: Any = None  # of a batch

    def _waits_for(self, key: Any, start: int) -> Any:
        """Where the open row group is, while another thread may be about to go on there; None once none may."""
        in_front = self._key is not None and (self._at < start if key == self._key else start == 0)
        return (self._key, self._at) if in_front else None

    def take(self, path: str, group: int, start: int, stop: int, n_rows: int, names: list[str]) -> list[Any]:
        """Read rows of a row group that has `n_rows`; waits while another thread comes to the rows in front."""
        key, seen = (path, group, tuple(names)), None
        taken: list[Any] = []
        with self._turn:
            while (at := self._waits_for(key, start)) not in (None, seen):
                seen = at
                self._turn.wait(_OTHERS_S)
            try:
                if key != self._key or self._at > start:
                    self._close()
                    self._key, self._batches = key, _decoded(path, [group], names)
                while self._at < stop:
                    batch = next(self._batches) if self._left is None else self._left
                    taken += sliced([batch], max(0, start - self._at), stop - max(start, self._at))
                    held = min(batch.num_rows, stop - self._at)
                    self._at += held
                    self._left = batch.slice(held) if held < batch.num_rows else None
            except BaseException:
                self._close()
                raise
            finally:
                if self._at >= n_rows:
                    self._close()
                self._turn.notify_all()
        return taken


def _decoded(path: str, groups: list[int], names: list[str]) -> Iterator[Any]:
    """Batches of all rows of some row groups."""
    where = f", row group {groups[0]:,}" + (f" to {groups[-1]:,}" if len(groups) > 1 else "")
    with _parquet(path) as file:
        with guarded(path, "Parquet", where):
            held = [file.metadata.row_group(number) for number in groups]
            n_rows, n_bytes = (
                sum(sizes) for sizes in zip(*((each.num_rows, each.total_byte_size) for each in held), strict=True)
            )
            row_bytes = max(1, n_bytes * len(names) // (max(1, n_rows) * max(1, file.metadata.num_columns)))
            batch_rows = min(1 << 16, max(1 << 10, _BATCH_BYTES // row_bytes))
            batches = file.iter_batches(batch_rows, row_groups=groups, columns=names, use_threads=True)
        at = 0
        while at < n_rows:
            with guarded(path, "Parquet", where):
                batch = next(batches, None)
            if batch is None:
                raise SourceError(
                    f"{path}{where} has {at:,} rows, and its metadata say {n_rows:,}; the file is damaged"
                )
            at += batch.num_rows
            yield batch


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """Give a pyarrow.parquet.ParquetFile: few large requests to servers, few bytes at a time of local files."""
    with ExitStack() as closed:
        with guarded(path, "Parquet"):
            from pyarrow import parquet

            opened, remote = readable(path)
            closed.enter_context(remote or nullcontext())
            size = _BUFFER_BYTES if remote is None else 0
            how = {"pre_buffer": remote is not None, "buffer_size": size, "page_checksum_verification": True}
            file = parquet.ParquetFile(opened, **how)
            closed.callback(file.close, force=True)
        yield file


class ArrowTable(RowGroupTable):
    """Rows of Arrow IPC files; see `RowGroupTable`. Record batches are read whole, but for columns left out."""

    form = "Arrow IPC"
    unit_name = "record batches"
    splits = False
    read_factor = 3.0
    page_bytes = 0

    def _look(self, path: str) -> TableFile:
        import pyarrow as pa

        with _opened(path) as file:
            if file.read(len(_CONTINUATION)) == _CONTINUATION:
                raise InvalidInputError(
                    f"{path} is a stream of Arrow, not an Arrow file; give pyarrow.ipc.open_stream of it"
                )
            file.seek(0)
            with pa.ipc.open_file(file) as reader:
                return TableFile(reader.schema, reader.schema.names, batch_rows(path))

    def _batches(self, run: Run, names: list[str]) -> Iterator[Any]:
        fields = sorted(self._names[run.part].index(name) for name in names)
        return sliced(_loaded(self.paths[run.part], run.units, fields), run.skip, run.n_rows)


def _loaded(path: str, numbers: list[int], fields: list[int]) -> Iterator[Any]:
    """Some record batches of a file."""
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    with _opened(path) as file, pa.ipc.open_file(file, options=options) as reader:
        for number in numbers:
            batch = reader.get_batch(number)
            batch.validate()  # a damaged file may tell of more values than it has
            yield batch


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Give a file of pyarrow's; see `guarded` for errors."""
    with guarded(path, "Arrow IPC"):
        import pyarrow as pa

        opened, remote = readable(path)
        with remote or nullcontext(), pa.OSFile(opened) if remote is None else opened as file:
            yield file


def batch_rows(path: str) -> list[int]:
    """Rows of each record batch of an Arrow IPC file; reads the footer and the batches' headers. Raises SourceError."""
    rows = []
    with open_binary(path) as file:
        size = file.seek(0, 2)
        try:
            tail = _read(file, max(0, size - 10), min(10, size))
            if tail[4:] != _MAGIC:
                raise SourceError(f"{path} is truncated: it does not end as Arrow IPC files do; write it again")
            (footer_bytes,) = struct.unpack("<i", tail[:4])
            footer = _read(file, size - 10 - footer_bytes, footer_bytes)
            blocks = _field(footer, _pointed(footer, 0), _RECORD_BATCHES)
            at = _pointed(footer, blocks) if blocks else 0
            for number in range(_number("<I", footer, at) if at else 0):
                offset, n_bytes = struct.unpack_from("<qi", footer, at + 4 + 24 * number)
                header = _read(file, offset, n_bytes)
                header = header[8:] if header[:4] == _CONTINUATION else header[4:]
                batch = _field(header, _pointed(header, 0), _HEADER)
                if not batch:
                    raise ValueError("a header is missing")
                length = _field(header, _pointed(header, batch), _LENGTH)
                rows.append(_number("<q", header, length) if length else 0)
        except (struct.error, IndexError, ValueError) as error:
            raise SourceError(f"{path} cannot be read as Arrow IPC; truncated or damaged: {error}") from error
    if any(n_rows < 0 for n_rows in rows):
        raise SourceError(f"{path} cannot be read as Arrow IPC; a record batch says that it has {min(rows):,} rows")
    return rows


def _read(file: Any, start: int, size: int) -> bytes:
    if start < 0 or not 0 <= size <= 1 << 30:
        raise ValueError(f"{size:,} bytes at byte {start:,}")
    data = bytearray(size)
    if read_fully(file, memoryview(data), start) < size:
        raise ValueError(f"the file ends in front of byte {start + size:,}")
    return bytes(data)


def _number(form: str, data: bytes, at: int) -> int:
    return int(struct.unpack_from(form, data, at)[0])


def _pointed(data: bytes, at: int) -> int:
    """Where a flatbuffer's table or vector is that a field, or the beginning, points to."""
    return at + _number("<I", data, at)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table is, which begins with the distance back to its list of distances; 0: left out."""
    slots = table - _number("<i", data, table)
    given = 4 + 2 * number < _number("<H", data, slots)
    distance = _number("<H", data, slots + 4 + 2 * number) if given else 0
    return table + distance if distance else 0
