"""Documents in text files, plain or compressed: opening, cutting and reading; what a record is, the format says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.documents.base import SAMPLE_BYTES, Batch, Documents, Record, batch_of, batches
from streamkm.sources.documents.formats import NAMES, MalformedTextError, TextFormat
from streamkm.sources.long_lines import LineWatch
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.svmlight.compressed import compression, describe_line, opened_text
from streamkm.sources.text_lines import PLACE_BITS, LineReader, LongLineError, line_number, stop_at_long, text_size

PROBES = 8  # places of plain text that are looked at
IDS_BYTES = 1 << 22  # text of which ids are taken at a time
# text between places where CSV can be cut, whose quoted fields may hold line feeds: so much, or a part in so many
STEP_BYTES, STEPS = 1 << 16, 1 << 16
_EVERYTHING = 1 << 62


class TextFiles(Documents):
    """Documents of text files. If all are plain they are cut at byte ranges, of which each owns what starts in it.

    CSV is cut where records start: the whole text is read once to find these places, which are kept and pickled along.
    Places are bytes of the unpacked text. Raises InvalidParameterError, SourceError, SourceNotFoundError: no path; a
    path that does not exist or is no regular file. Raises InvalidInputError if all files are empty.
    """

    n_rows = None

    def __init__(self, paths: Sequence[str | os.PathLike[str]], text_format: TextFormat) -> None:
        self.files = self.paths = tuple(opened_path(os.fspath(path)) for path in paths)
        if not 0 < len(self.paths) <= 1 << (63 - PLACE_BITS):
            raise InvalidParameterError(f"1 to {1 << (63 - PLACE_BITS):,} files are needed, got {len(self.paths):,}")
        self.text_format = text_format
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes: int = sum(self.sizes)
        self.name = name_of(self.paths)
        packed = {compression(path).replace("plain", "none") for path in self.paths}
        self.packed, self.chunked = " and ".join(sorted(packed)), packed == {"none"}
        self._columns: dict[int, tuple[int, ...]] = {}
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: empty, 0 bytes; at least 1 document is needed")

    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        return ChunkRuns.of(self._cuts(text_bytes))

    def _cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        for part, size in enumerate(self.sizes):
            n_chunks = -(-size // text_bytes)
            cuts = [size * i // n_chunks for i in range(n_chunks)] + [size] if size else []
            if self.text_format.form == "csv" and n_chunks > 1:
                starts, step = self._starts[part]
                after = np.searchsorted(starts, [-(-cut // step) * step for cut in cuts[1:-1]])
                cuts = sorted({0, size, *np.append(starts, size)[after].tolist()})
            for start, stop in pairwise(cuts):
                yield part, start, stop, stop - start

    @cached_property
    def _starts(self) -> tuple[tuple[NDArray[np.int64], int], ...]:
        """Of each file the places of the first records behind the multiples of a step, and the step."""
        found = []
        for part, size in enumerate(self.sizes):
            step, starts = max(STEP_BYTES, -(-size // STEPS)), [0]
            for place, _, _ in self._records(part):
                position = place - (part << PLACE_BITS)
                if position // step > starts[-1] // step:
                    starts.append(position)
            found.append((np.array(starts, np.int64), step))
        return tuple(found)

    def read(self, chunk: Chunk) -> Batch:
        return batch_of(list(self._records(chunk.part, chunk.start, chunk.stop)))

    def stream(self, text_bytes: int) -> Iterator[Batch]:
        """Yield all documents in order; pieces may span files."""
        return batches(chain.from_iterable(map(self._records, range(len(self.paths)))), text_bytes)

    def _records(self, part: int, start: int = 0, stop: int = _EVERYTHING) -> Iterator[Record]:
        """Yield (place, document, bytes of text) for records that start in a range of bytes."""
        watch = None
        if self._line_bound is not None:
            watch = LineWatch(self.paths[part], *self._line_bound, partial(self._line_number, part))
        before = max(start - 1, 0)  # a line feed there tells that a line starts
        with opened_text(self.paths[part], before) as (fill, _):
            reader = LineReader(fill, before, watch=watch)
            if start == 0 or reader.skip_line(stop):
                yield from self._records_of(part, reader, stop)

    def _records_of(self, part: int, reader: LineReader, stop: int = _EVERYTHING) -> Iterator[Record]:
        """Yield what `_records` does, from where a reader is."""
        try:
            if part not in self._columns:
                with opened_text(self.paths[part]) as (fill, _):
                    self._columns[part] = self.text_format.columns(LineReader(fill, 0))
            for position, document, end in self.text_format.records(reader, self._columns[part]):
                if position < stop:
                    yield part << PLACE_BITS | position, document, end - position
                if end >= stop:
                    break
        except MalformedTextError as problem:
            raise InvalidInputError(f"{self.describe(part << PLACE_BITS | problem.byte)}: {problem.text}") from None

    def sample(self) -> tuple[Batch, float | None]:
        """Look at places all through plain lines, else at the beginning of the first files."""
        found: list[Record] = []
        unpacked = 1.0
        if self.chunked and self.text_format.form != "csv":
            total, before, part = self.n_bytes, 0, 0
            for target in range(0, total, max(total // PROBES, SAMPLE_BYTES // PROBES)):
                while target - before >= self.sizes[part]:
                    before, part = before + self.sizes[part], part + 1
                start = target - before
                self._look(found, part, start, min(start + SAMPLE_BYTES // PROBES, self.sizes[part]), _EVERYTHING)
        if not found:
            seen = used = 0
            for part in np.flatnonzero(self.sizes).tolist():
                n_seen, n_used = self._look(found, part)
                seen, used = seen + n_seen, used + n_used
                if sum(n_bytes for _, _, n_bytes in found) >= SAMPLE_BYTES:
                    break
            unpacked = 1.0 if self.chunked else seen / max(used, 1)
        return batch_of(found), self.n_bytes * unpacked

    def _look(
        self,
        found: list[Record],
        part: int,
        start: int = 0,
        stop: int = _EVERYTHING,
        most: int = SAMPLE_BYTES,
    ) -> tuple[int, int]:
        """Add documents up to a long line, or from behind it on if it comes first; bytes of text and of file read."""
        before, n_seen, size = max(start - 1, 0), 0, sum(n_bytes for _, _, n_bytes in found)

        def counted(view: memoryview) -> int:
            nonlocal n_seen
            n_read = fill(view)
            n_seen += n_read
            return n_read

        with opened_text(self.paths[part], before) as (fill, raw):
            reader = LineReader(counted, before, watch=stop_at_long)
            more = start == 0 or reader.skip_line(stop)
            for _ in range(PROBES if more else 0):
                try:
                    for record in self._records_of(part, reader, stop):
                        found.append(record)
                        size += record[2]
                        if size >= most:
                            break
                    break
                except LongLineError:
                    if found or self.text_format.form == "csv" or not reader.drop_line():
                        break
            return n_seen, raw.tell()

    def name_by(self, column: str | int) -> None:
        """Take a field or column for the documents' names. Raises InvalidInputError: the first documents have none."""
        self.id_column = str(column)
        self._ids = copy(self)
        self._ids.text_format, self._ids._columns = self.text_format.of(column), {}
        first = next(self.ids(SAMPLE_BYTES), [])
        if first and all(each is None for each in first):
            raise InvalidInputError(f"{self.name}: the first {len(first):,} documents have no field {column!r}")

    def ids(self, text_bytes: int = IDS_BYTES) -> Iterator[list[str | None]]:
        """See `Documents.ids`: one pass over the text."""
        for batch in self._ids.stream(text_bytes):
            yield batch.documents

    def describe(self, place: int) -> str:
        """Say where a document is: ``x.jsonl, line 7 (byte 512)``; lines are counted from 1."""
        return describe_line(self.paths, place)

    def _line_number(self, part: int, offset: int) -> int:
        with opened_text(self.paths[part]) as (fill, _):
            return line_number(fill, offset)

    def taken(self) -> dict[str, Any]:
        return asdict(self.text_format)

    def details(self) -> dict[str, str]:
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        return {"format": NAMES[self.text_format.form] + files, "compression": self.packed}
