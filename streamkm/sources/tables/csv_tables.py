"""The readers of CSV files: plain ones in chunks, compressed ones in order.

A chunk of a plain file owns the records that start in its bytes, so nothing is scanned beforehand; only where fields
may hold line feeds, a look at the whole text finds where records start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.base import ChunkedSource, Rows
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.csv_boundaries import record_starts
from streamkm.sources.stored import open_binary, read_fully
from streamkm.sources.svmlight.compressed import opened_text
from streamkm.sources.tables.csv_files import CsvFiles, read_text
from streamkm.sources.tables.csv_parser import padded
from streamkm.sources.text_lines import MAX_LINE_BYTES
from streamkm.sources.text_positions import PLACE_BITS

_MORE_BYTES = 1 << 16  # behind the end of a chunk, at a time, until a line ends
_MOST_BYTES = 1 << 26  # of unpacked text at a time
_PIECE_BYTES = 1 << 18  # of text that is unpacked at once
_LINE_FEED = 10
_STEP_BYTES, _STEPS = 1 << 16, 1 << 16  # between places where records are looked for: so much, or a part in so many


class CsvTable(CsvFiles, ChunkedSource):
    """Rows of plain CSV files; see `CsvFiles`."""

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut the files at even bytes, without regard to lines, or where records start; see `ChunkedSource.chunks`."""
        return ChunkRuns.of(self._cuts(self._text_of(target_bytes)))

    def _cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        for part, size in enumerate(self.sizes):
            begin = self._starts[part]
            n_chunks = -(-(size - begin) // text_bytes) if size > begin else 0
            cuts = [begin + (size - begin) * i // n_chunks for i in range(n_chunks)] + [size] if n_chunks else []
            if self._format.newlines_in_values and n_chunks > 1:
                starts, step = self._records[part]
                cuts = sorted({begin, size, *(max(begin, int(starts[-(-cut // step)])) for cut in cuts[1:-1])})
            for start, stop in pairwise(cuts):
                yield part, start, stop, self._decoded(stop - start)

    def read(self, chunk: Chunk) -> Rows:
        """Read the records that start in a chunk; see `ChunkedSource.read`."""
        text, start, end, base = self._lines(chunk)
        return self._parse(chunk.part, text, start, end, base)

    def _pieces(self, text_bytes: int) -> Iterator[tuple[int, NDArray[np.uint8], int, int, int]]:
        for chunk in self.chunks(text_bytes):
            yield chunk.part, *self._lines(chunk)

    def _lines(self, chunk: Chunk) -> tuple[NDArray[np.uint8], int, int, int]:
        """Text of the lines that start in a chunk: it, their first byte in it, behind the last one, place of byte 0."""
        path, size = self.paths[chunk.part], self.sizes[chunk.part]
        # one byte back, for the line feed that tells whether the first byte starts a line
        begun = chunk.start == self._starts[chunk.part]
        base = chunk.start if begun else chunk.start - 1
        room = _MORE_BYTES
        while True:
            until = min(size, chunk.stop + room)
            text, n_read = _read_range(path, base, until)
            start = 0 if begun else _behind_line_feed(text, 0, n_read)
            end = n_read if chunk.stop == size else _behind_line_feed(text, chunk.stop - 1 - base, n_read)
            if not start <= chunk.stop - base or start < 0:
                return text, 0, 0, base  # one line goes through all of it
            if end > 0 or until == size:
                break
            if room > MAX_LINE_BYTES:
                raise InvalidInputError(
                    f"{path}: a line behind byte {chunk.stop:,} is longer than {MAX_LINE_BYTES:,} bytes, the most that "
                    f"is accepted"
                )
            room *= 8
        if end <= 0 or (end == n_read and n_read > 0 and text[n_read - 1] != _LINE_FEED):  # the last line of the file
            text[n_read] = _LINE_FEED
            end = n_read + 1
        return text, start, end, base

    @cached_property
    def _records(self) -> tuple[tuple[NDArray[np.int64], int], ...]:
        """Starts of records behind the multiples of a step, for each file, and the step."""
        found = []
        for part, size in enumerate(self.sizes):
            step = max(_STEP_BYTES, -(-size // _STEPS))
            with opened_text(self.paths[part]) as (fill, _):
                starts = record_starts(fill, size, step, self._format.delimiter)
            crossed = np.flatnonzero(starts - step * np.arange(len(starts)) > MAX_LINE_BYTES)
            if len(crossed):  # refused before all of it is in memory: most likely, its quotes do not end
                # the record starts in front of the first such place, behind the start that was found for the one before
                known = max(int(starts[crossed[0] - 1]), self._starts[part])
                text, n_read = _read_range(self.paths[part], known, step * int(crossed[0]))
                begun = known + self._format.records(text, 0, n_read)[1]
                raise InvalidInputError(
                    f"{self.describe(part << PLACE_BITS | begun)}: a record is longer than {MAX_LINE_BYTES:,} bytes, "
                    f"the most that is accepted; a field in quotes does not end, or a quote in a field is not doubled"
                )
            found.append((starts, step))
        return tuple(found)


class CompressedCsvTable(CsvFiles):
    """Rows of CSV files of which some or all are compressed, in order; see `CsvFiles`. Places count unpacked bytes."""

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        """Yield all rows in order; see `RowSource.stream`."""
        for part, text, start, end, base in self._pieces(min(self._text_of(target_bytes), _MOST_BYTES)):
            rows = self._parse(part, text, start, end, base)
            if len(rows.places):
                yield rows

    def _pieces(self, text_bytes: int) -> Iterator[tuple[int, NDArray[np.uint8], int, int, int]]:
        for part in range(len(self.paths)):
            with opened_text(self.paths[part]) as (fill, _):
                held, base, more = b"", 0, b"\n"
                while more:
                    more = read_text(fill, max(text_bytes - len(held), _PIECE_BYTES if held else 1))
                    text = held + more if more else held + b"\n" * (held != b"")
                    begin = max(0, self._starts[part] - base)
                    end = len(text)
                    if more:  # else what is left is the last record
                        end = self._format.last_end(text, begin) if begin < len(text) else 0
                    if end > begin:
                        yield part, padded(text), begin, end, base
                    elif len(text) > MAX_LINE_BYTES:
                        raise InvalidInputError(
                            f"{self.paths[part]}: a line behind byte {base:,} is longer than {MAX_LINE_BYTES:,} bytes, "
                            f"the most that is accepted"
                        )
                    held, base = text[end:], base + end


def _read_range(path: str, start: int, stop: int) -> tuple[NDArray[np.uint8], int]:
    """Bytes of a file, with a byte and what kernels read behind them; how many there are."""
    text = np.empty(stop - start + 1 + WINDOW, np.uint8)
    with open_binary(path, start, stop) as file:
        n_read = read_fully(file, memoryview(text.data)[: stop - start], start)
    text[n_read:] = 0
    return text, n_read


def _behind_line_feed(text: NDArray[np.uint8], start: int, stop: int) -> int:
    """Behind the first line feed from `start` on; -1 if there is none."""
    for begin in range(start, stop, _MORE_BYTES):
        found = text[begin : min(stop, begin + _MORE_BYTES)].tobytes().find(b"\n")
        if found >= 0:
            return begin + found + 1
    return -1
