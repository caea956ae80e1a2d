"""Documents in text files, plain or compressed: one a line, one a line of JSON, or one a record of CSV.

Responsible for opening, cutting and reading files; what a record is, the format says.
"""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.documents.base import SAMPLE_BYTES, Batch, ChunkedDocuments, Documents, check_target, count_words
from streamkm.sources.documents.records import Lines, MalformedTextError, TextFormat
from streamkm.sources.long_lines import LineCost, LineRoom, LineWatch, LongLine, find_long_lines
from streamkm.sources.stored import RawFile, name_of, opened_path
from streamkm.sources.svmlight.compressed import compression, describe_line, opened_text
from streamkm.sources.text_lines import LineReader, LongLineError, stop_at_long
from streamkm.sources.text_positions import PLACE_BITS, Fill, line_number, text_size

PROBES = 8
"""Places of plain text that are looked at, where its format allows to start anywhere."""

IDS_BYTES = 1 << 22
"""Text of which ids are taken at a time."""

STEP_BYTES, STEPS = 1 << 16, 1 << 16
"""Text between places where files of records with quoted line feeds can be cut: so much, or a part in so many."""


class TextFiles(Documents, ABC):
    """What plain and compressed text share.

    `paths`: in the order in which their documents count. Raises InvalidParameterError, SourceError,
    SourceNotFoundError: no path; a path that does not exist or is no regular file. Raises InvalidInputError if all
    files are empty.
    """

    n_rows = None

    def __init__(self, paths: Sequence[str | Path], text_format: TextFormat) -> None:
        self.files = self.paths = tuple(opened_path(os.fspath(path)) for path in paths)
        if not 0 < len(self.paths) <= 1 << (63 - PLACE_BITS):
            raise InvalidParameterError(f"1 to {1 << (63 - PLACE_BITS):,} files are needed, got {len(self.paths):,}")
        self.text_format = text_format
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes: int = sum(self.sizes)
        self.name = name_of(self.paths)
        self._line_bound: tuple[LineRoom, LineCost] | None = None
        self._columns: dict[int, tuple[int, ...] | None] = {}
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: empty, 0 bytes; at least 1 document is needed")

    @contextmanager
    def _open(self, part: int, offset: int = 0) -> Iterator[tuple[Fill, RawFile]]:
        """Give the text of a file from a byte on (of plain files), and the file itself."""
        with opened_text(self.paths[part], offset) as opened:
            yield opened

    def _records(self, part: int, fill: Fill, start: int = 0, stop: int = 1 << 62) -> Iterator[tuple[int, Any, int]]:
        """Yield (position, document, position of the next) for records that start in a range of bytes.

        `fill` gives the text from one byte in front of `start` on: a line feed there tells that a line starts.
        """
        watch = None
        if self._line_bound is not None:
            watch = LineWatch(self.paths[part], *self._line_bound, partial(self._line_number, part))
        reader = LineReader(fill, max(start - 1, 0), watch=watch)
        if start == 0 or reader.skip_line(stop):
            yield from self._records_of(part, reader, stop)

    def _records_of(self, part: int, reader: LineReader, stop: int = 1 << 62) -> Iterator[tuple[int, Any, int]]:
        """Yield what `_records` does, from where a reader is."""
        lines = Lines(reader)
        try:
            for position, document in self.text_format.records(lines, self._columns_of(part)):
                if position < stop:
                    yield position, document, lines.position
                if lines.position >= stop:
                    break
        except MalformedTextError as problem:
            raise InvalidInputError(f"{self.describe(part << PLACE_BITS | problem.byte)}: {problem.text}") from None

    def name_by(self, column: str | int) -> None:
        """Take a field or column for the documents' names. Raises InvalidInputError: the first documents have none."""
        self.id_column = str(column)
        self._ids = copy(self)
        self._ids.text_format, self._ids._columns = self.text_format.of_ids(column), {}
        first = next(self.ids(SAMPLE_BYTES), [])
        if first and all(each is None for each in first):
            raise InvalidInputError(f"{self.name}: the first {len(first):,} documents have no field {column!r}")

    def ids(self, text_bytes: int = IDS_BYTES) -> Iterator[list[str | None]]:
        """See `Documents.ids`: one pass over the text."""
        for batch in self._ids.stream(text_bytes):
            yield batch.documents

    def with_line_room(self, room: LineRoom, cost: LineCost) -> Documents:
        """Bound lines; see `Documents.with_line_room`."""
        bounded = copy(self)
        bounded._line_bound = room, cost
        return bounded

    def _columns_of(self, part: int) -> tuple[int, ...] | None:
        if part not in self._columns:
            with self._open(part) as (fill, _):
                self._columns[part] = self.text_format.columns(Lines(LineReader(fill, 0)))
        return self._columns[part]

    def describe(self, place: int) -> str:
        """Say where a document is: ``x.jsonl, line 7 (byte 512)``; lines are counted from 1."""
        return describe_line(self.paths, place)

    def _line_number(self, part: int, offset: int) -> int:
        with self._open(part) as (fill, _):
            return line_number(fill, offset)

    def taken(self) -> dict[str, Any]:
        """See `Documents.taken`."""
        return {"format": type(self.text_format).__name__, **asdict(cast("Any", self.text_format))}

    def details(self) -> dict[str, str]:
        """Say what the text is; see `RowSource.details`."""
        packed = {compression(path).replace("plain", "none") for path in self.paths}
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        return {"format": self.text_format.name + files, "compression": " and ".join(sorted(packed))}

    def _head(self) -> tuple[Batch, float]:
        """Documents at the beginning of the first files, and bytes of text for each stored byte there."""
        gathered, seen, used = _Gathered(), 0, 0
        for part, size in enumerate(self.sizes):
            if size == 0:
                continue
            with self._open(part) as (fill, raw):
                counted = _Counted(fill)
                self._add_head(gathered, part, LineReader(counted, 0, watch=stop_at_long))
                seen, used = seen + counted.n_bytes, used + raw.tell()
            if gathered.n_bytes >= SAMPLE_BYTES:
                break
        return gathered.batch(), seen / max(used, 1)

    def _add_head(self, gathered: _Gathered, part: int, reader: LineReader) -> None:
        """Add documents at the beginning of a file, up to a long line; from behind it on if it comes first."""
        for _ in range(PROBES):
            try:
                for position, document, following in self._records_of(part, reader):
                    gathered.add(part, position, document, following - position)
                    if gathered.n_bytes >= SAMPLE_BYTES:
                        return
            except LongLineError:
                if gathered.documents or not self.text_format.cut_anywhere or not reader.drop_line():
                    return
            else:
                return


class CompressedTextFiles(TextFiles):
    """Documents of files of which some or all are compressed, in order only."""

    def stream(self, text_bytes: int) -> Iterator[Batch]:
        """Yield all documents in order; pieces may span files. Places count bytes of the unpacked text."""
        check_target(text_bytes)
        gathered = _Gathered()
        for part in range(len(self.paths)):
            with self._open(part) as (fill, _):
                for position, document, following in self._records(part, fill):
                    gathered.add(part, position, document, following - position)
                    if gathered.n_bytes >= text_bytes:
                        yield gathered.batch()
                        gathered = _Gathered()
        if gathered.documents:
            yield gathered.batch()

    def sample(self) -> tuple[Batch, float | None]:
        batch, unpacked = self._head()
        return batch, self.n_bytes * unpacked


class PlainTextFiles(TextFiles, ChunkedDocuments):
    """Documents of plain files, cut at byte ranges.

    A chunk owns the records that start in its bytes. Where every line feed ends a record the files are cut anywhere
    and nothing is read beforehand. Otherwise (CSV, whose quoted fields may hold line feeds) a look at the whole text
    finds where records start, once, at some hundred times the speed of hashing; it is kept and pickled along.
    """

    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        """Cut the files at even byte offsets, or at the first record behind each of them."""
        check_target(text_bytes)
        return ChunkRuns.of(self._cuts(text_bytes))

    def _cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        for part, size in enumerate(self.sizes):
            n_chunks = -(-size // text_bytes)
            cuts = [size * i // n_chunks for i in range(n_chunks)] + [size] if size else []
            if not self.text_format.cut_anywhere and n_chunks > 1:
                starts, step = self._starts[part]
                cuts = sorted({0, size, *(int(starts[-(-cut // step)]) for cut in cuts[1:-1])})
            for start, stop in pairwise(cuts):
                yield part, start, stop, stop - start

    def read(self, chunk: Chunk) -> Batch:
        gathered = _Gathered()
        with self._open(chunk.part, max(chunk.start - 1, 0)) as (fill, _):
            for position, document, following in self._records(chunk.part, fill, chunk.start, chunk.stop):
                gathered.add(chunk.part, position, document, following - position)
        return gathered.batch()

    @cached_property
    def long_lines(self) -> tuple[LongLine, ...]:
        return find_long_lines(self.paths, self.sizes, count_words)

    def sample(self) -> tuple[Batch, float | None]:
        if not self.text_format.cut_anywhere:
            return self._head()[0], float(self.n_bytes)
        gathered = _Gathered()
        total, before, part = self.n_bytes, 0, 0
        for target in range(0, total, max(total // PROBES, SAMPLE_BYTES // PROBES)):
            while target - before >= self.sizes[part]:
                before, part = before + self.sizes[part], part + 1
            start = target - before
            end = min(start + SAMPLE_BYTES // PROBES, self.sizes[part])
            # in front of a long line, which is none of them
            of_part = [line.byte for line in self.long_lines if line.path == self.paths[part]]
            stop = min((byte for byte in of_part if start <= byte < end), default=end)
            if stop > start:
                gathered.extend(self.read(Chunk(0, part, start, stop, 0)))
        return gathered.batch() if gathered.documents else self._head()[0], float(total)

    @cached_property
    def _starts(self) -> tuple[tuple[NDArray[np.int64], int], ...]:
        """Starts of records behind the multiples of a step, for each file, and the step."""
        found = []
        for part, size in enumerate(self.sizes):
            step = max(STEP_BYTES, -(-size // STEPS))
            with self._open(part) as (fill, _):
                found.append((self.text_format.starts(fill, size, step), step))
        return tuple(found)


class _Counted:
    """A `Fill` that knows how much it has given."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self.n_bytes = 0

    def __call__(self, view: memoryview) -> int:
        n_read = self._fill(view)
        self.n_bytes += n_read
        return n_read


class _Gathered:
    """Documents that become a batch."""

    def __init__(self) -> None:
        self.documents: list[Any] = []
        self.places: list[int] = []
        self.n_bytes = 0

    def add(self, part: int, position: int, document: Any, n_bytes: int) -> None:
        self.documents.append(document)
        self.places.append(part << PLACE_BITS | position)
        self.n_bytes += n_bytes

    def extend(self, batch: Batch) -> None:
        self.documents += batch.documents
        self.places += batch.places.tolist()
        self.n_bytes += batch.n_bytes

    def batch(self) -> Batch:
        return Batch(self.documents, np.array(self.places, np.int64), self.n_bytes)
