"""svmlight and libsvm text files, cut at byte ranges so that any piece can be read by itself.

A chunk owns the lines that start in its bytes: it looks one byte back to see whether its first byte starts a line, and
reads on behind its last byte to the end of a line. So nothing has to be scanned beforehand.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.base import ChunkedSource, IndexedRows, Rows, RowSource
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.formats import COMPRESSED, data_name, signed
from streamkm.sources.long_lines import LineRoom, refuse_long
from streamkm.sources.remote import is_remote
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.svmlight.rows import (
    LARGEST_INT64,
    BadTextError,
    RowBuilder,
    TextFormat,
    count_rows,
    index_text,
    line_memory,
)
from streamkm.sources.text_lines import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    NO_HINT,
    PLACE_BITS,
    Fill,
    LineReader,
    LongLineError,
    line_number,
    opened_bytes,
    part_and_byte,
    stop_at_long,
    text_size,
)

HEAD_BYTES = 1 << 20
"""Lines that start in so much of a file decide whether the input is zero-based."""

REMOTE_READ_FACTOR = 4.0  # a request's bytes are held beside the rows, twice while they arrive
PROBES, PROBE_BYTES = 16, 1 << 16


class SvmlightSource(ChunkedSource):
    """Rows of plain svmlight text files.

    `paths`: in the order in which their rows count. `n_features`: columns, beyond which an index is an error; else
    a piece is as wide as its largest index demands. `zero_based` (bool or "auto"): whether column 0 is written as index
    0; "auto" looks for an index 0 in the first `HEAD_BYTES` of the first file that has rows there, and decides once for
    all files. `dtype`: float32 or float64; values are correctly rounded to float64 first, as scikit-learn does. Raises
    InvalidParameterError: an option that is not accepted, or no path. Raises SourceNotFoundError, SourceError: a path
    does not exist, is no regular file, or is too large. Raises InvalidInputError: all files are empty.
    """

    is_sparse = True
    decodes = True
    n_rows = None

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        n_features: int | None = None,
        zero_based: bool | Literal["auto"] = "auto",
        dtype: DTypeLike = np.float64,
    ) -> None:
        if n_features is not None and not (
            isinstance(n_features, int | np.integer) and 1 <= n_features <= LARGEST_INT64  # type: ignore[redundant-expr]
        ):
            raise InvalidParameterError(f"n_features must be a positive integer or None, got {n_features!r}")
        if not (zero_based is True or zero_based is False or zero_based == "auto"):
            raise InvalidParameterError(f'zero_based must be True, False or "auto", got {zero_based!r}')
        if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise InvalidParameterError(f"dtype must be float32 or float64, got {np.dtype(dtype)}")
        self.dtype = np.dtype(dtype)
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = tuple(opened_path(os.fspath(path)) for path in given)
        if not self.paths:
            raise InvalidParameterError("paths must name at least one file, got none")
        if len(self.paths) > 1 << (63 - PLACE_BITS):
            raise InvalidParameterError(f"paths must name at most {1 << (63 - PLACE_BITS):,} files")
        self.files = self.paths
        if any(map(is_remote, self.paths)):
            self.read_factor, self.libraries = REMOTE_READ_FACTOR, ("fsspec",)
        self.n_features = None if n_features is None else int(n_features)
        self.zero_based = zero_based
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes = sum(self.sizes)
        self.name = name_of(self.paths)
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: empty, 0 bytes; svmlight text with at least one row is needed")
        self._line_room: LineRoom | None = None

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut the files at even bytes, without regard to lines; decoded bytes are projected from a few probes."""
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        return ChunkRuns.of(self._cuts(target_bytes, self._densities[1]))

    def _cuts(self, target_bytes: int, decoded_per_byte: float) -> Iterator[tuple[int, int, int, int]]:
        """Part, start, stop and decoded bytes of each chunk."""
        for part, size in enumerate(self.sizes):
            n_chunks = min(size, math.ceil(size * decoded_per_byte / target_bytes))
            for i in range(n_chunks):
                start, stop = size * i // n_chunks, size * (i + 1) // n_chunks
                yield part, start, stop, int((stop - start) * decoded_per_byte) + 1

    def read(self, chunk: Chunk) -> Rows:
        """Read the rows of the lines that start in a chunk.

        Raises InvalidInputError for bad text, with file, line and byte. Raises SourceError if the file cannot be read,
        or was changed since the source was made.
        """
        builder = RowBuilder(self._format)
        # one byte back, for the line feed that tells whether the first byte starts a line
        begin = max(chunk.start - 1, 0)
        with self._open(chunk.part, begin, chunk.stop) as fill:
            lines = self._lines(fill, begin, chunk.part)
            if chunk.start == 0 or lines.skip_line(chunk.stop):
                while lines.position < chunk.stop and self._load_checked(lines, chunk.part):
                    self._add(builder, lines, chunk.stop, chunk.part)
        return builder.finish()

    def index_rows(self, chunk: Chunk) -> IndexedRows | None:
        """Find rows by line feeds and last indices; None for the head of a file, where a byte order mark may be."""
        if chunk.start == 0:
            return None
        begin = chunk.start - 1
        with self._open(chunk.part, begin, chunk.stop) as fill:
            longest = MAX_LINE_BYTES if self._line_room is None else BLOCK_BYTES  # a longer one is read, and watched
            return index_text(fill, begin, chunk, self._format, partial(self.read, chunk), longest)

    @contextmanager
    def _open(self, part: int, offset: int = 0, hint: int = NO_HINT) -> Iterator[Fill]:
        """Give a function that fills a memoryview with the text of a file from a byte on.

        `hint` is a position that the reader means to reach; reading far beyond it would be wasted.
        """
        with opened_bytes(self.paths[part], offset, hint) as fill:
            yield fill

    def _compression(self, part: int) -> str:  # noqa: ARG002
        """Name what a file is compressed with; "none" for plain text."""
        return "none"

    def _probe(self) -> tuple[int, int, int, float]:
        """Look at a few places of the text: (bytes seen, rows, colons, bytes of text in all), a bounded effort."""
        text_bytes = sum(self.sizes)
        seen = rows = colons = 0
        part, before = 0, 0
        step = max(text_bytes // PROBES, PROBE_BYTES)
        for target in range(0, text_bytes, step):
            while target - before >= self.sizes[part]:
                before += self.sizes[part]
                part += 1
            view = memoryview(bytearray(PROBE_BYTES))
            with self._open(part, target - before) as fill:
                text = bytes(view[: fill(view)])
            seen += len(text)
            rows += count_rows(text, target - before + len(text) == self.sizes[part])
            colons += text.count(b":")
        return seen, rows, colons, float(text_bytes)

    @cached_property
    def _densities(self) -> tuple[float, float, float]:
        """Estimate (rows, decoded bytes for each byte of text, values)."""
        seen, rows, colons, text_bytes = self._probe()
        decoded = colons * (self.dtype.itemsize + 4) + rows * 12
        scale = text_bytes / max(seen, 1)
        return max(1.0, rows * scale), max(decoded / max(seen, 1), 0.01), colons * scale

    @property
    def estimated_rows(self) -> int:
        return round(self._densities[0])

    @property
    def estimated_features(self) -> int | None:
        if self.n_features is not None:
            return self.n_features
        width = self._head[0] - (not self._format.zero_based)  # it was read from index 0
        return width if width > 0 else None

    def details(self) -> dict[str, str]:
        """Say what the text is like; see `RowSource.details`. Reads the head, for which base the indices have."""
        packed = sorted({self._compression(part) for part in range(len(self.paths))})
        base = "zero-based" if self._format.zero_based else "one-based"
        why = f", as the head has {'an' if base == 'zero-based' else 'no'} index 0" if self._format.guessed else ""
        return {
            "format": "svmlight text" + (f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""),
            "nnz": f"about {round(self._densities[2]):,}",
            "indices": base + why,
            "compression": " and ".join(packed),
        }

    @cached_property
    def made_with(self) -> dict[str, int] | None:  # type: ignore[override]
        """The number that the file gives to column 0, unless that is 0; see `RowSource.made_with`."""
        return None if self._format.zero_based else {"first_index": 1}

    @property
    def _format(self) -> TextFormat:
        guessed, is_named = self.zero_based == "auto", self.feature_names is not None
        zero_based = self._head[1] if guessed else bool(self.zero_based)
        return TextFormat(self.n_features, zero_based, guessed, self.dtype, is_named)

    @cached_property
    def _head(self) -> tuple[int, bool]:
        """Columns in the head of the first file that has rows there, read from index 0; whether column 0 has values."""
        for part in range(len(self.paths)):
            builder = RowBuilder(TextFormat(None, True, True, self.dtype))
            self._read_head(builder, part)
            if builder.n_rows:
                has_column_0 = builder.has_column_0()
                return builder.finish().X.shape[1], has_column_0
        return 0, False

    def _read_head(self, builder: RowBuilder, part: int) -> None:
        """Add the rows at the head of a file, and the beginning of a long one; no plan knows yet what is left."""
        with self._open(part, hint=HEAD_BYTES) as fill, suppress(BadTextError):  # reading the rows will say so
            lines = LineReader(fill, 0, watch=stop_at_long)
            try:
                while lines.position < HEAD_BYTES and self._load_checked(lines, part):
                    builder.add(lines, HEAD_BYTES, part)
            except LongLineError:
                lines.take_beginning()
                if self._load_checked(lines, part):
                    builder.add(lines, HEAD_BYTES, part)

    def with_line_room(self, room: LineRoom) -> RowSource:
        bounded = copy(self)
        bounded._line_room = room
        return bounded

    def _lines(self, fill: Fill, offset: int, part: int) -> LineReader:
        """Lines of a file, whose rows are read; long ones are refused where there is no room for them."""
        watch = None
        if self._line_room is not None:
            cost = partial(line_memory, itemsize=self.dtype.itemsize)
            watch = partial(refuse_long, lambda byte: self.describe(part << PLACE_BITS | byte), self._line_room, cost)
        return LineReader(fill, offset, watch=watch)

    def _load_checked(self, lines: LineReader, part: int) -> bool:
        """Load lines; see to byte order marks where the file begins."""
        at_start = lines.position == 0
        try:
            loaded = lines.load()
        except InvalidInputError as error:
            raise self._refused(part, lines.position, lines.position, error) from None
        if loaded and at_start:
            head = bytes(lines.text[: min(lines.end, 8)])
            signature = signed(head)
            if signature in COMPRESSED or signature == "utf-16":
                remedy = "convert it to UTF-8" if signature == "utf-16" else "use CompressedSvmlightSource or unpack it"
                raise self._refused(part, 0, 0, f"{data_name(signature)}, not svmlight text; {remedy}")
            if head.startswith(b"\xef\xbb\xbf"):
                lines.text[:3] = 32  # blanks in front of a line mean nothing, and positions stay what they are
        return loaded

    def _add(self, builder: RowBuilder, lines: LineReader, limit: int, part: int) -> None:
        try:
            builder.add(lines, limit, part)
        except BadTextError as bad:
            raise self._refused(part, bad.line_byte, bad.byte, bad.problem) from None

    def _refused(self, part: int, line_byte: int, byte: int, problem: object) -> InvalidInputError:
        line = self._line_number(part, line_byte)
        return InvalidInputError(f"{self.paths[part]}, line {line:,} (byte {byte:,}): {problem}")

    def _line_number(self, part: int, offset: int) -> int:
        with self._open(part) as fill:
            return line_number(fill, offset)

    def describe(self, place: int) -> str:
        """Say where a row is: ``x.svm, line 7 (byte 512)``. Lines are counted from 1, blank and comment lines too."""
        part, offset = part_and_byte(place)
        return f"{self.paths[part]}, line {self._line_number(part, offset):,} (byte {offset:,})"
