"""svmlight and libsvm text files, cut at byte ranges so that any piece can be read by itself, without a first scan.

A chunk owns the lines that start in its bytes: it looks one byte back to see whether its first byte starts a line, and
reads on behind its last byte to the end of a line.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.chunks import Access, Chunk, ChunkRuns, Origin
from streamkm.sources.compressed_text import PLAIN, compression, describe_line, opened_text, read_text
from streamkm.sources.remote import is_remote
from streamkm.sources.row_source import IndexedRows, Rows, RowSource
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.svmlight_rows import (
    LARGEST_INT64,
    BadTextError,
    RowBuilder,
    TextFormat,
    count_rows,
    index_text,
    line_cost,
)
from streamkm.sources.text_lines import (
    MAX_LINE_BYTES,
    PLACE_BITS,
    LineLimit,
    LineReader,
    text_size,
)

HEAD_BYTES = 1 << 20
"""Bytes of the head of a file, whose lines decide whether the input is zero-based."""

REMOTE_READ_FACTOR = 4.0  # a request's bytes are held beside the rows, twice while they arrive
PROBES, PROBE_BYTES = 16, 1 << 16
PROBED_FILES, PROBED_TEXT_BYTES = 4, 1 << 20  # of those that can be read from their beginning only


class SvmlightSource(RowSource):
    """Rows of plain svmlight text files, in the order of `paths`.

    `n_features`: columns, beyond which an index is an error; if None, a piece is as wide as its largest index.
    `zero_based` (bool or "auto"): whether column 0 is written as index 0; "auto" looks for an index 0 in the first
    `HEAD_BYTES` of the first file that has rows there, once for all files. `dtype`: float32 or float64; values are
    first rounded correctly to float64, as in scikit-learn. Raises InvalidParameterError: a wrong option, or no path;
    SourceNotFoundError, SourceError: a path is missing, no regular file, or too large; InvalidInputError: all files are
    empty.
    """

    is_sparse = True
    access = Access(decodes=True)
    n_bytes: int
    _kind: str | None = PLAIN  # of compression; None: that of each file

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        n_features: int | None = None,
        zero_based: bool | Literal["auto"] = "auto",
        dtype: DTypeLike = np.float64,
    ) -> None:
        self.dtype = np.dtype(dtype)
        is_width = isinstance(n_features, int | np.integer) and 1 <= n_features <= LARGEST_INT64
        for name, value, accepted, needed in (
            ("n_features", repr(n_features), n_features is None or is_width, "a positive integer or None"),
            ("zero_based", repr(zero_based), zero_based in (True, False, "auto"), 'True, False or "auto"'),
            ("dtype", self.dtype, self.dtype in (np.float32, np.float64), "float32 or float64"),
        ):
            if not accepted:
                raise InvalidParameterError(f"{name} must be {needed}, got {value}")
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = tuple(opened_path(os.fspath(path)) for path in given)
        if not self.paths:
            raise InvalidParameterError("paths must name at least one file, got none")
        if any(map(is_remote, self.paths)):
            self.access = replace(self.access, read_factor=REMOTE_READ_FACTOR, libraries=("fsspec",))
        self.n_features = None if n_features is None else int(n_features)
        self.zero_based = zero_based
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes = sum(self.sizes)
        self.name = name_of(self.paths)
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: empty, 0 bytes; svmlight text with at least one row is needed")
        self.line_limit: LineLimit | None = None

    def chunks(self, target_bytes: int) -> ChunkRuns:
        """Cut the files at even bytes, regardless of lines; decoded bytes are projected from a few probes."""
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

        Raises InvalidInputError for bad text, with file, line and byte; SourceError for an unreadable or changed file.
        """
        builder = RowBuilder(self._format)
        # one byte back, for the line feed that tells whether the first byte starts a line
        begin = max(chunk.start - 1, 0)
        with opened_text(self.paths[chunk.part], begin, chunk.stop, self._kind) as (fill, _):
            lines = LineReader(fill, begin, source=self, part=chunk.part)
            if chunk.start == 0 or lines.skip_line(chunk.stop):
                while lines.position < chunk.stop and _load(lines):
                    self._add(builder, lines, chunk.stop, chunk.part)
        return builder.finish()

    def index_rows(self, chunk: Chunk) -> IndexedRows | None:
        """Find rows by line feeds and last indices; None for the head of a file, where a byte order mark may be."""
        if chunk.start == 0:
            return None
        begin = chunk.start - 1
        with opened_text(self.paths[chunk.part], begin, chunk.stop, self._kind) as (fill, _):
            longest = MAX_LINE_BYTES if self.line_limit is None else self.line_limit.most_bytes
            return index_text(fill, begin, chunk, self._format, partial(self.read, chunk), longest)

    def _probes(self) -> Iterator[tuple[int, int, int]]:
        """File, first byte and number of bytes of a few places in the text."""
        begins = np.cumsum([0, *self.sizes])
        for target in range(0, self.n_bytes, max(self.n_bytes // PROBES, PROBE_BYTES)):
            part = int(np.searchsorted(begins, target, side="right")) - 1
            yield part, target - int(begins[part]), PROBE_BYTES

    @cached_property
    def _densities(self) -> tuple[float, float, float]:
        """Estimate rows, decoded bytes for each byte of text, and values."""
        seen = rows = colons = used = 0
        for part, start, n_bytes in self._probes():
            with opened_text(self.paths[part], start, None, self._kind) as (fill, raw):
                text = read_text(fill, n_bytes)
                used += raw.tell() - start
            seen += len(text)
            rows += count_rows(text, len(text) < n_bytes or start + len(text) == self.sizes[part])
            colons += text.count(b":")
        decoded = colons * (self.dtype.itemsize + 4) + rows * 12
        scale = seen * self.n_bytes / max(used, 1) / max(seen, 1)
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
        packed = sorted({self._kind or compression(path) for path in self.paths})
        base = "zero-based" if self._format.zero_based else "one-based"
        why = f", as the head has {'an' if base == 'zero-based' else 'no'} index 0" if self._format.guessed else ""
        return {
            "format": "svmlight text" + (f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""),
            "nnz": f"about {round(self._densities[2]):,}",
            "indices": base + why,
            "compression": " and ".join(packed).replace(PLAIN, "none"),
        }

    @cached_property
    def origin(self) -> Origin:  # type: ignore[override]
        """The files, and the index of column 0 there, unless it is 0: their head tells, when this is first asked."""
        return Origin(self.paths, made_with={} if self._format.zero_based else {"first_index": 1})

    @property
    def _format(self) -> TextFormat:
        guessed = self.zero_based == "auto"
        zero_based = self._head[1] if guessed else bool(self.zero_based)
        return TextFormat(self.n_features, zero_based, guessed, self.dtype)

    @cached_property
    def _head(self) -> tuple[int, bool]:
        """The width of the first file's head with rows, read from index 0, and whether column 0 has values."""
        for part, path in enumerate(self.paths):
            with opened_text(path, 0, HEAD_BYTES, self._kind) as (fill, _):
                text = read_text(fill, HEAD_BYTES)
            if len(text) == HEAD_BYTES:  # the last row counts as far as it goes
                text = text[: 1 + max(map(text.rfind, (b"\n", b" ", b"\t")))]
            builder = RowBuilder(TextFormat(None, True, True, self.dtype))
            lines = LineReader(io.BytesIO(text).readinto, 0)
            with suppress(BadTextError):  # reading the rows will say so
                while _load(lines):
                    builder.add(lines, HEAD_BYTES, part)
            if builder.n_rows:
                X: Any = builder.finish().X
                return X.shape[1], not bool(X.indices.all())
        return 0, False

    def with_line_limit(self, limit: LineLimit) -> RowSource:
        bounded = copy(self)
        bounded.line_limit = replace(limit, byte_cost=line_cost(self.dtype.itemsize))
        return bounded

    def _add(self, builder: RowBuilder, lines: LineReader, limit: int, part: int) -> None:
        try:
            builder.add(lines, limit, part)
        except BadTextError as bad:
            problem, byte = bad.args
            raise InvalidInputError(f"{self.describe(part << PLACE_BITS | byte)}: {problem}") from None

    def describe(self, place: int) -> str:
        return describe_line(self.paths, place)


class CompressedSvmlightSource(SvmlightSource):
    """Rows of svmlight files of which some or all are compressed, in order; see `SvmlightSource`.

    The first bytes of a file tell the compression, else its suffix (``.gz``, ``.bz2``, ``.xz``, ``.zst``). Places count
    the bytes of the decompressed text.
    """

    access = Access(decodes=True, streams=True)
    _kind = None
    chunks, read, index_rows = RowSource.chunks, RowSource.read, RowSource.index_rows

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        """Yield all rows in order; raises as `read`, also for truncated or corrupt files."""
        builder = RowBuilder(self._format)
        for part, path in enumerate(self.paths):
            with opened_text(path) as (fill, _):
                lines = LineReader(fill, 0, source=self, part=part)
                while _load(lines):
                    # text is about as long as what it decodes to
                    limit = lines.position + max(target_bytes - builder.n_bytes, 1)
                    self._add(builder, lines, limit, part)
                    if builder.n_bytes >= target_bytes:
                        yield builder.finish()
                        builder = RowBuilder(self._format)
        if builder.n_rows:
            yield builder.finish()

    def _probes(self) -> Iterator[tuple[int, int, int]]:
        n_probed = min(len(self.paths), PROBED_FILES)
        return ((len(self.paths) * i // n_probed, 0, PROBED_TEXT_BYTES) for i in range(n_probed))


def _load(lines: LineReader) -> bool:
    """Load lines; blank a byte order mark at the beginning of the file."""
    at_start, loaded = lines.position == 0, lines.load()
    if loaded and at_start and bytes(lines.text[:3]) == b"\xef\xbb\xbf":
        lines.text[:3] = 32  # blanks in front of a line mean nothing, and positions stay what they are
    return loaded
