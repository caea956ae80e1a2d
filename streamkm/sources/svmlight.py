"""svmlight and libsvm text files, cut at byte ranges so that any piece can be read by itself.

A chunk owns the lines that start in its bytes: it looks one byte back to see whether its first byte starts a line,
and reads on behind its last byte to the end of a line. So nothing has to be scanned beforehand. May import errors,
the base contract, `svmlight_rows` and nothing else of streamkm.
"""

from __future__ import annotations

import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from streamkm.errors import InvalidInputError, InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.sources.base import Chunk, ChunkedSource, Rows, RowSource
from streamkm.sources.svmlight_rows import PLACE_BITS, BadText, LineReader, RowBuilder, TextFormat, check_options

Fill = Callable[[memoryview], int]

HEAD_BYTES = 1 << 20
"""Lines that start in so much of a file decide whether the input is zero-based."""

PROBES, PROBE_BYTES = 16, 1 << 16
_LEAST_READ_BYTES = 1 << 12
_MARKS = (
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
)


class SvmlightFiles(RowSource):
    """What plain and compressed svmlight sources share: paths, sizes, options, and words for errors.

    Parameters
    ----------
    paths : sequence of str or Path
        In the order in which their rows count.
    n_features : int, optional
        Columns; an index beyond them is an error. If None, a piece is as wide as its largest index demands.
    zero_based : bool or "auto"
        Whether column 0 is written as index 0. "auto" looks for an index 0 in the first `HEAD_BYTES` of the first
        file that has rows there, and decides once for all files.
    dtype : dtype
        float32 or float64. Values are correctly rounded to float64 first, as scikit-learn does.

    Raises
    ------
    InvalidParameterError
        For an option that is not accepted, or no path at all.
    SourceNotFoundError, SourceError
        If a path does not exist, is not a regular file, or is too large for its rows to have places.
    InvalidInputError
        If all files are empty.
    """

    is_sparse = True
    n_rows = None

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        n_features: int | None = None,
        zero_based: bool | Literal["auto"] = "auto",
        dtype: DTypeLike = np.float64,
    ) -> None:
        self.dtype = check_options(n_features, zero_based, dtype)
        self.paths = tuple(os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths))
        if not self.paths:
            raise InvalidParameterError("paths must name at least one file, got none")
        if len(self.paths) > 1 << (63 - PLACE_BITS):
            raise InvalidParameterError(f"paths must name at most {1 << (63 - PLACE_BITS):,} files")
        self.n_features = None if n_features is None else int(n_features)
        self.zero_based = zero_based
        self.sizes = tuple(_size(path) for path in self.paths)
        self.n_bytes = sum(self.sizes)
        self.name = self.paths[0] if len(self.paths) == 1 else f"{self.paths[0]} and {len(self.paths) - 1} more"
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: empty, 0 bytes; svmlight text with at least one row is needed")
        self._zero_based_found: bool | None = None if zero_based == "auto" else bool(zero_based)
        self._density: tuple[float, float] | None = None

    @abstractmethod
    def _open(self, part: int, offset: int = 0, hint: int = 1 << 62) -> Any:
        """Context manager of a function that fills a memoryview with the text of a file from a byte on.

        `hint` is a position that the reader means to reach; reading far beyond it would be wasted.
        """

    @abstractmethod
    def _probe(self) -> tuple[int, int, int, float]:
        """Look at a few places of the text: (bytes seen, rows, colons, bytes of text in all), a bounded effort."""

    def _densities(self) -> tuple[float, float]:
        """Estimate (rows, decoded bytes for each byte of text)."""
        if self._density is None:
            seen, rows, colons, text_bytes = self._probe()
            decoded = colons * (self.dtype.itemsize + 4) + rows * 12
            self._density = max(1.0, text_bytes * rows / max(seen, 1)), max(decoded / max(seen, 1), 0.01)
        return self._density

    @property
    def estimated_rows(self) -> int:
        """Rows, roughly: from the line feeds in at most `PROBES` pieces of the text."""
        return round(self._densities()[0])

    def _format(self) -> TextFormat:
        if self._zero_based_found is None:
            self._zero_based_found = self._find_zero_based()
        return TextFormat(self.n_features, self._zero_based_found, self.zero_based == "auto", self.dtype)

    def _find_zero_based(self) -> bool:
        probing = TextFormat(None, True, True, self.dtype)
        for part in range(len(self.paths)):
            builder = RowBuilder(probing)
            with self._open(part, hint=HEAD_BYTES) as fill:
                lines = LineReader(fill, 0)
                try:
                    while lines.position < HEAD_BYTES and self._load_checked(lines, part):
                        builder.add(lines, HEAD_BYTES, part)
                except BadText:
                    pass  # reading the rows will say so; those in front of it decide
            if builder.n_rows:
                return builder.has_column_0()
        return False

    def _load_checked(self, lines: LineReader, part: int) -> bool:
        """Load lines; see to byte order marks where the file begins."""
        at_start = lines.base == 0 and lines.end == 0
        try:
            loaded = lines.load()
        except InvalidInputError as error:
            line = self._line_number(part, lines.position)
            raise InvalidInputError(
                f"{self.paths[part]}, line {line:,} (byte {lines.position:,}): {error}"
            ) from None
        if loaded and at_start:
            head = bytes(lines.text[: min(lines.end, 8)])
            for mark, what in _MARKS:
                if head.startswith(mark):
                    remedy = "convert it to UTF-8" if "UTF" in what else "use CompressedSvmlightSource or unpack it"
                    raise InvalidInputError(f"{self.paths[part]}, line 1 (byte 0): {what}, not svmlight text; {remedy}")
            if head.startswith(b"\xef\xbb\xbf"):
                lines.text[:3] = 32  # blanks in front of a line mean nothing, and positions stay what they are
        return loaded

    def _add(self, builder: RowBuilder, lines: LineReader, limit: int, part: int) -> None:
        try:
            builder.add(lines, limit, part)
        except BadText as bad:
            line = self._line_number(part, bad.line_byte)
            raise InvalidInputError(
                f"{self.paths[part]}, line {line:,} (byte {bad.byte:,}): {bad.problem}"
            ) from None

    def _line_number(self, part: int, offset: int) -> int:
        """Count the line feeds in front of a byte: a scan, for messages only. Lines are counted from 1."""
        n_lines, view = 1, memoryview(bytearray(1 << 20))
        with self._open(part) as fill:
            while offset > 0:
                n_read = fill(view[: min(offset, len(view))])
                if n_read == 0:
                    break
                n_lines += bytes(view[:n_read]).count(b"\n")
                offset -= n_read
        return n_lines

    def describe(self, place: int) -> str:
        """Say where a row is: ``x.svm, line 7 (byte 512)``. Lines are counted from 1, blank and comment lines too."""
        part, offset = place >> PLACE_BITS, place & ((1 << PLACE_BITS) - 1)
        return f"{self.paths[part]}, line {self._line_number(part, offset):,} (byte {offset:,})"

    def _check_unchanged(self, part: int, size: int) -> None:
        if size != self.sizes[part]:
            raise SourceError(
                f"{self.paths[part]}: was {self.sizes[part]:,} bytes when the source was made and is {size:,} now; "
                "make the source again once the file is complete"
            )


class SvmlightSource(SvmlightFiles, ChunkedSource):
    """Rows of plain svmlight text files; see `SvmlightFiles` for parameters and errors.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "x.svm"
    >>> _ = path.write_text("1 1:0.5 3:2\\n-1 2:1e-3\\n")
    >>> source = SvmlightSource([path])
    >>> [source.read(chunk).X.toarray().tolist() for chunk in source.chunks(1 << 20)]
    [[[0.5, 0.0, 2.0], [0.0, 0.001, 0.0]]]
    """

    def chunks(self, target_bytes: int) -> tuple[Chunk, ...]:
        """Cut the files at even byte offsets, without regard to lines.

        Decoded bytes are projected from the density of colons and line feeds in the same probes that
        `estimated_rows` uses; a chunk of unusually dense text decodes to more.
        """
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        decoded_per_byte = self._densities()[1]
        chunks: list[Chunk] = []
        for part, size in enumerate(self.sizes):
            n_chunks = min(size, max(1, round(size * decoded_per_byte / target_bytes))) if size else 0
            for i in range(n_chunks):
                start, stop = size * i // n_chunks, size * (i + 1) // n_chunks
                decoded = int((stop - start) * decoded_per_byte) + 1
                chunks.append(Chunk(len(chunks), part, start, stop, decoded))
        return tuple(chunks)

    def read(self, chunk: Chunk) -> Rows:
        """Read the rows of the lines that start in a chunk.

        Raises
        ------
        InvalidInputError
            For bad text, with file, line and byte.
        SourceError
            If the file cannot be read, or has another size than when the source was made.
        """
        builder = RowBuilder(self._format())
        # one byte back, for the line feed that tells whether the first byte starts a line
        begin = max(chunk.start - 1, 0)
        with self._open(chunk.part, begin, chunk.stop) as fill:
            lines = LineReader(fill, begin)
            if chunk.start == 0 or lines.skip_line(chunk.stop):
                while lines.position < chunk.stop and self._load_checked(lines, chunk.part):
                    self._add(builder, lines, chunk.stop, chunk.part)
        return builder.finish()

    @contextmanager
    def _open(self, part: int, offset: int = 0, hint: int = 1 << 62) -> Iterator[Fill]:
        path, position = self.paths[part], offset
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below, whatever fails
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
        with file:
            self._check_unchanged(part, os.fstat(file.fileno()).st_size)
            file.seek(offset)

            def fill(view: memoryview) -> int:
                nonlocal position
                n_wanted = min(len(view), max(hint - position, _LEAST_READ_BYTES))
                try:
                    n_read = file.readinto(view[:n_wanted]) or 0
                except OSError as error:
                    raise SourceError(f"{path}: cannot be read at byte {position:,}: {error.strerror}") from error
                if n_read == 0:
                    self._check_unchanged(part, position)
                position += n_read
                return n_read

            yield fill

    def _probe(self) -> tuple[int, int, int, float]:
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
            rows += count_rows(text)
            colons += text.count(b":")
        return seen, rows, colons, float(text_bytes)


def count_rows(text: bytes) -> int:
    """Count the lines of a piece of text that can be rows, roughly: neither empty nor only a comment."""
    return text.count(b"\n") - text.count(b"\n\n") - text.count(b"\n#") + (not text.endswith(b"\n"))


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise SourceNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise SourceError(f"{path}: {kind}; name svmlight files, or a glob of them")
    if status.st_size >> PLACE_BITS:
        raise SourceError(f"{path}: {status.st_size:,} bytes; files of {1 << PLACE_BITS:,} bytes or more must be split")
    return status.st_size
