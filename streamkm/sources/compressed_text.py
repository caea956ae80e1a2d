"""Text files, plain or in gzip, bzip2, xz or zstd; zstandard is imported on demand. Knows no format of text."""

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

from streamkm.core.exceptions import MissingDependencyError, SourceError
from streamkm.sources.formats import COMPRESSED, signed
from streamkm.sources.remote import check_same
from streamkm.sources.stored import RawFile, open_binary
from streamkm.sources.text_lines import PLACE_BITS, Fill, filled, line_number

PLAIN = "plain"

_SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
# a compressed block can hold 128 KiB in 4 bytes: so much at a time bounds what hostile data unpack to at once
_ZSTD_FEED_BYTES = 1 << 11
_LEAST_READ_BYTES = 1 << 12
_LINE_BYTES = 1 << 15  # behind the end of a chunk: one request brings its last line too, unless that is longer
WHOLE = 1 << 62


def read_text(fill: Fill, n_bytes: int) -> bytes:
    """Read up to `n_bytes` of text; less only at the end."""
    view = memoryview(bytearray(n_bytes))
    return bytes(view[: filled(fill, view)])


def compression(path: str) -> str:
    """Detect how a file is compressed: gzip, bzip2, xz, zstd or plain."""
    with open_binary(path) as raw:
        return compression_of(path, raw)


def describe_line(paths: Sequence[str], place: int) -> str:
    """Name the place of a row of text: ``x.csv, line 7 (byte 512)``. Lines are counted from 1, headers included."""
    part, byte = place >> PLACE_BITS, place & ((1 << PLACE_BITS) - 1)
    with opened_text(paths[part]) as (fill, _):
        return f"{paths[part]}, line {line_number(fill, byte):,} (byte {byte:,})"


@contextmanager
def opened_text(
    path: str, offset: int = 0, stop: int | None = WHOLE, kind: str | None = None
) -> Iterator[tuple[Fill, RawFile]]:
    """Open a file that may be compressed: give its text, and the file itself, whose position shows the bytes used.

    `offset`: first byte of the text; 0 for compressed files. `stop`: position up to which bytes are fetched; None for a
    short look. `kind`: the result of `compression`, if known. Raises SourceError, naming the byte of the text:
    unreadable, changed, truncated or corrupt; MissingDependencyError: zstandard is needed.
    """
    position, end = offset, WHOLE if stop is None else stop
    with open_binary(path, offset, stop if stop is None else stop + _LINE_BYTES) as raw:
        kind = kind or compression_of(path, raw)
        raw.seek(offset)
        text, failures = (raw, (OSError,)) if kind == PLAIN else decompressor(path, kind, raw)

        def fill(view: memoryview) -> int:
            nonlocal position
            try:
                n_read = int(text.readinto(view[: max(end - position, _LEAST_READ_BYTES)]) or 0)
            except SourceError:
                raise
            except failures as error:
                check_same(path)
                problem = f"truncated or corrupt {kind} file, behind byte {position:,} of its text"
                if kind == PLAIN:
                    problem = f"cannot be read at byte {position:,}"
                raise SourceError(f"{path}: {problem}: {error}") from error
            position += n_read
            return n_read

        with text:
            yield fill, raw


def compression_of(path: str, raw: RawFile) -> str:
    """Detect gzip, bzip2, xz, zstd or plain by the first bytes, else by the suffix; leaves `raw` at its beginning."""
    head = raw.read(8)
    raw.seek(0)
    signature = signed(head)
    return signature if signature in COMPRESSED else _SUFFIXES.get(os.path.splitext(path)[1].lower(), PLAIN)


def decompressor(path: str, kind: str, raw: Any) -> tuple[Any, tuple[type[Exception], ...]]:
    """A file-like object with the text, and the exceptions that mean a damaged file."""
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

    zstandard's own reader ends silently where a file is cut off; its decompression objects know if a frame is complete.
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
