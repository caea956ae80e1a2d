"""Parquet files. A row group that is larger than a chunk is decoded once, where its pieces are read in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from streamkm.core.exceptions import SourceError
from streamkm.sources.stored import file_size
from streamkm.sources.tables.arrow import guarded, readable
from streamkm.sources.tables.columns import TableOptions
from streamkm.sources.tables.row_groups import RowGroupTable, Run, TableFile

_BATCH_BYTES = 1 << 21  # decoded, of what pyarrow gives at once
_BUFFER_BYTES = 1 << 18  # of a column that is read through a buffer, not whole
_PAGE_BYTES = 9 << 18  # a page of a column, its dictionary, and what they are unpacked from
_OTHERS_S = 0.02  # that another thread may take until it comes for the rows in front of those that are wanted
_OPEN_GROUPS = 1  # that stay open between two of their pieces: each holds a page of every column

Key = tuple[int, int]
"""A file and one of its row groups."""


class ParquetTable(RowGroupTable):
    """Rows of Parquet files; see `RowGroupTable`.

    Only the chosen columns are read, page by page. A piece of a row group continues where the piece in front of it
    ended, where that was read in this process; else the rows in front of it are decoded and dropped.
    """

    form = "Parquet"
    unit_name = "row groups"
    splits = True
    decodes = True
    read_factor = 2.5

    def __init__(self, paths: Sequence[str], options: TableOptions) -> None:
        self._n_columns: list[int] = []
        self._groups = OpenGroups()
        super().__init__(paths, options)

    def _look(self, part: int) -> TableFile:
        reader = _GroupReader(self.paths[part])
        with reader, guarded(self.paths[part], "Parquet"):
            meta, schema = reader.file.metadata, reader.file.schema_arrow
            rows = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
        self._n_columns.append(len(schema))
        return TableFile.of(schema, rows, self._options.keys_of(part))

    def _stored_bytes(self) -> int:
        """As if all columns of a file were alike: pyarrow ends the process where metadata of one are damaged."""
        n_chosen = len(self._layout.columns)
        sizes = [file_size(path) for path in self.paths]
        return sum(-(-size * n_chosen // count) for size, count in zip(sizes, self._n_columns, strict=True))

    def _decoder_bytes(self, largest_unit: int) -> int:
        # pages and dictionaries of every column, of a row group that ends and the one that begins
        return 2 * min(_PAGE_BYTES * len(self._layout.columns), 2 * largest_unit)

    def _batches(self, run: Run, names: list[str]) -> Iterator[Any]:
        path = self.paths[run.part]
        if self._is_piece(run) and names == self._row_names:
            yield from self._groups.take(path, (run.part, run.units[0]), run.skip, run.skip + run.n_rows, names)
            return
        with _GroupReader(path) as reader:
            reader.begin(run.units, names)
            yield from reader.take(run.skip, run.skip + run.n_rows)


class OpenGroups:
    """Row groups that some pieces have been read of, open behind the last of them. Thread-safe; pickles empty."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._idle: dict[Key, _GroupReader] = {}
        self._busy: dict[Key, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenGroups, ()

    def take(self, path: str, key: Key, start: int, stop: int, names: list[str]) -> list[Any]:
        """Read rows of a row group; waits for a reader that is about to come to them."""
        reader = self._acquire(key, start, stop)
        if reader is None:
            reader = _GroupReader(path)
        try:
            if reader.position is None:
                reader.__enter__()
                reader.begin([key[1]], names)
            batches = list(reader.take(start, stop))
        except BaseException:
            self._release(key, None)
            reader.close()
            raise
        self._release(key, reader)
        return batches

    def _acquire(self, key: Key, start: int, stop: int) -> _GroupReader | None:
        with self._turn:
            found = self._at(key, start)
            if found is not None:
                del self._idle[key]
            self._busy[key] = stop
            return found

    def _at(self, key: Key, start: int) -> _GroupReader | None:
        """The reader that is at a row, or in front of it where nobody comes for the rows between."""
        seen: tuple[_GroupReader, int] | None = None
        until = 0.0
        while True:
            while key not in self._idle and self._busy.get(key, start + 1) <= start:
                self._turn.wait()
            found = self._idle.get(key)
            if found is None or found.position is None or found.position > start:
                return None
            if seen != (found, found.position):
                seen, until = (found, found.position), time.monotonic() + _OTHERS_S
            left = until - time.monotonic()
            if found.position == start or left <= 0:
                return found
            self._turn.wait(left)

    def _release(self, key: Key, reader: _GroupReader | None) -> None:
        with self._turn:
            self._busy.pop(key, None)
            dropped = [each for each in (reader, self._idle.pop(key, None)) if each is not None]
            dropped.sort(key=lambda each: each.position or 0)
            if dropped and not dropped[-1].is_done:
                self._idle[key] = dropped.pop()
            while len(self._idle) > _OPEN_GROUPS:
                dropped.append(self._idle.pop(next(iter(self._idle))))
            self._turn.notify_all()
        for each in dropped:
            each.close()


class _GroupReader:
    """A Parquet file, open, and how far some of its row groups have been read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.file: Any = None
        self.position: int | None = None
        self._remote: Any = None
        self._batches: Any = None
        self._left: Any = None
        self._n_rows = 0
        self._where = ""

    def __enter__(self) -> _GroupReader:
        from pyarrow import parquet

        with guarded(self._path, "Parquet"):
            opened, self._remote = readable(self._path)
            # few large requests to servers, few bytes at a time of local files
            far = self._remote is not None
            buffer_size = 0 if far else _BUFFER_BYTES
            self.file = parquet.ParquetFile(
                opened, pre_buffer=far, buffer_size=buffer_size, page_checksum_verification=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        if self.file is not None:
            self.file.close(force=True)
        if self._remote is not None:
            self._remote.close()

    def begin(self, groups: list[int], names: list[str]) -> None:
        """Read some row groups, one after the other, from the first row on."""
        with guarded(self._path, "Parquet"):
            held = [self.file.metadata.row_group(number) for number in groups]
            n_columns = max(1, self.file.metadata.num_columns)
        n_rows = sum(group.num_rows for group in held)
        row_bytes = max(1, sum(group.total_byte_size for group in held) * len(names) // (max(1, n_rows) * n_columns))
        batch_rows = min(1 << 16, max(1 << 10, _BATCH_BYTES // row_bytes))
        self._where = f", row group {groups[0]:,}" + (f" to {groups[-1]:,}" if len(groups) > 1 else "")
        with guarded(self._path, "Parquet", self._where):
            self._batches = self.file.iter_batches(batch_rows, row_groups=groups, columns=names, use_threads=True)
        self.position, self._left, self._n_rows = 0, None, n_rows

    @property
    def is_done(self) -> bool:
        """Whether there are no more rows."""
        return self.position is None or self.position >= self._n_rows

    def take(self, start: int, stop: int) -> Iterator[Any]:
        """Yield rows start..stop-1, which none have been taken behind of."""
        while self.position is not None and self.position < stop:
            with guarded(self._path, "Parquet", self._where):
                batch = self._left if self._left is not None else next(self._batches, None)
            if batch is None:
                raise SourceError(
                    f"{self._path}{self._where} has {self.position:,} rows, and its metadata say {self._n_rows:,}; the "
                    f"file is damaged"
                )
            first = min(max(0, start - self.position), batch.num_rows)
            last = min(batch.num_rows, stop - self.position)
            self.position += last
            self._left = batch.slice(last) if last < batch.num_rows else None
            if last > first:
                yield batch.slice(first, last - first)
