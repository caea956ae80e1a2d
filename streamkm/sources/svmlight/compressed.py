"""svmlight text in gzip, bzip2, xz or zstd files: read in order only, since none of them can be entered anywhere.

The text itself is the business of the svmlight modules. And zstandard on demand.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streamkm.core.exceptions import InvalidParameterError, MissingDependencyError, SourceError
from streamkm.sources.base import Rows, RowSource
from streamkm.sources.formats import COMPRESSED, signed
from streamkm.sources.remote import check_same
from streamkm.sources.stored import RawFile, open_binary
from streamkm.sources.svmlight.rows import RowBuilder, count_rows
from streamkm.sources.svmlight.source import SvmlightSource
from streamkm.sources.text_lines import NO_HINT, Fill, line_number, part_and_byte

_SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
# a compressed block can hold 128 KiB in 4 bytes: so much at a time bounds what hostile data unpack to at once
_ZSTD_FEED_BYTES = 1 << 11
_PROBED_FILES, _PROBED_TEXT_BYTES = 4, 1 << 20


class CompressedSvmlightSource(SvmlightSource):
    """Rows of svmlight files of which some or all are compressed; see `SvmlightSource` for parameters and errors.

    A file's first bytes say how, else its suffix (``.gz``, ``.bz2``, ``.xz``, ``.zst``); other files are plain.
    Places count the bytes of the text after decompression.
    """

    @property
    def streams(self) -> bool:
        return True

    chunks, read, index_rows = RowSource.chunks, RowSource.read, RowSource.index_rows

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        """Yield all rows in order; see `RowSource.stream`.

        Raises InvalidInputError for bad text, with file, line and byte of the text. Raises SourceError if a file cannot
        be read, is truncated or corrupt, or was changed. Raises MissingDependencyError if a file needs zstandard and it
        is not installed.
        """
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        fmt = self._format
        builder = RowBuilder(fmt)
        for part in range(len(self.paths)):
            with self._open(part) as fill:
                lines = self._lines(fill, 0, part)
                while self._load_checked(lines, part):
                    # text is about as long as what it decodes to
                    limit = lines.position + max(target_bytes - builder.n_bytes, 1)
                    self._add(builder, lines, limit, part)
                    if builder.n_bytes >= target_bytes:
                        yield builder.finish()
                        builder = RowBuilder(fmt)
        if builder.n_rows:
            yield builder.finish()

    @contextmanager
    def _open(self, part: int, offset: int = 0, hint: int = 1 << 62) -> Iterator[Fill]:  # noqa: ARG002
        with self._open_counted(part) as (fill, _):
            yield fill

    @contextmanager
    def _open_counted(self, part: int) -> Iterator[tuple[Fill, RawFile]]:
        """Give the text of a file, and the file itself, whose position says how much of it has been used."""
        with opened_text(self.paths[part]) as opened:
            yield opened

    def _compression(self, part: int) -> str:
        return compression(self.paths[part]).replace("plain", "none")

    def _probe(self) -> tuple[int, int, int, float]:
        seen = rows = colons = used = 0
        n_probed = min(len(self.paths), _PROBED_FILES)
        for i in range(n_probed):
            part = len(self.paths) * i // n_probed
            with self._open_counted(part) as (fill, raw):
                text = read_text(fill, _PROBED_TEXT_BYTES)
                used += raw.tell()
            seen += len(text)
            rows += count_rows(text, len(text) < _PROBED_TEXT_BYTES)
            colons += text.count(b":")
        return seen, rows, colons, seen * sum(self.sizes) / max(used, 1)


def read_text(fill: Fill, n_bytes: int) -> bytes:
    """As much text as there is, up to `n_bytes`."""
    view = memoryview(bytearray(n_bytes))
    done = 0
    while done < n_bytes and (n_read := fill(view[done:])):
        done += n_read
    return bytes(view[:done])


def compression(path: str) -> str:
    """Tell how a file is compressed: gzip, bzip2, xz, zstd or plain."""
    with open_binary(path) as raw:
        return compression_of(path, raw)


def describe_line(paths: Sequence[str], place: int) -> str:
    """Say where a row of text is: ``x.csv, line 7 (byte 512)``. Lines are counted from 1, a header too."""
    part, byte = part_and_byte(place)
    with opened_text(paths[part]) as (fill, _):
        return f"{paths[part]}, line {line_number(fill, byte):,} (byte {byte:,})"


@contextmanager
def opened_text(path: str, offset: int = 0) -> Iterator[tuple[Fill, RawFile]]:
    """Open a file that may be compressed: give its text, and the file itself, whose position says how much was used.

    `offset`: byte that the text begins at; 0 for compressed files. Raises SourceError: it cannot be read, or is
    truncated or corrupt; names the byte of the text. Raises MissingDependencyError: it needs zstandard.
    """
    position = offset
    with open_binary(path, offset, NO_HINT) as raw:
        kind = compression_of(path, raw)
        raw.seek(offset)
        text, failures = decompressor(path, kind, raw)

        def fill(view: memoryview) -> int:
            nonlocal position
            try:
                n_read = int(text.readinto(view) or 0)
            except SourceError:
                raise
            except failures as error:
                check_same(path)
                raise SourceError(
                    f"{path}: truncated or corrupt {kind} file, behind byte {position:,} of its text: {error}"
                ) from error
            position += n_read
            return n_read

        with text:
            yield fill, raw


def compression_of(path: str, raw: RawFile) -> str:
    """Tell gzip, bzip2, xz, zstd or plain by the first bytes, else by the suffix; leaves `raw` at its beginning."""
    head = raw.read(8)
    raw.seek(0)
    signature = signed(head)
    return signature if signature in COMPRESSED else _SUFFIXES.get(os.path.splitext(path)[1].lower(), "plain")


def decompressor(path: str, kind: str, raw: Any) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a file-like object with the text, and the exceptions that mean that the file is damaged."""
    if kind == "gzip":
        return gzip.GzipFile(fileobj=raw), (OSError, EOFError, zlib.error)
    if kind == "bzip2":
        return bz2.BZ2File(raw), (OSError, EOFError, ValueError)
    if kind == "xz":
        return lzma.LZMAFile(raw), (OSError, EOFError, lzma.LZMAError)
    if kind == "zstd":
        try:
            import zstandard
        except ImportError as error:
            raise MissingDependencyError(
                f"{path}: reading zstd files needs zstandard; install streamkm[zstd]"
            ) from error
        return _ZstdText(raw, zstandard), (OSError, EOFError, zstandard.ZstdError)
    return io.BufferedReader(raw), (OSError,)


class _ZstdText(io.RawIOBase):
    """Text of a zstd file of any number of frames.

    zstandard's own reader ends silently where a file is cut off; its decompression objects know whether their frame
    is complete.
    """

    def __init__(self, raw: Any, zstandard: Any) -> None:
        super().__init__()
        self._raw, self._new_frame = raw, zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._packed = b""
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int:
        while not self._text:
            if not self._packed:
                self._packed = self._raw.read(_ZSTD_FEED_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the file ends inside a frame")
                return 0
            if self._frame is None:
                self._frame = self._new_frame()
            self._text = memoryview(self._frame.decompress(self._packed))
            self._packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        n_bytes = min(len(view), len(self._text))
        view[:n_bytes] = self._text[:n_bytes]
        self._text = self._text[n_bytes:]
        return n_bytes
