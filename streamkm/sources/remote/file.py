"""An object behind a URL as a file: few large requests, whatever sizes the reader asks for."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from streamkm.core.exceptions import SourceError
from streamkm.sources.remote.objects import Address, fetch, opened

READ_AHEAD_BYTES = 8 << 20
"""Fetched ahead at most, and with one read."""

LEAST_BYTES = 1 << 16
"""Asked for at once, at least, where nothing is expected."""

_GAP_BYTES = 1 << 13  # between what is expected, at least: fetched along
_KEPT_BYTES = 1 << 22


class RemoteFile(io.RawIOBase):
    """An object, read at any place by caches of fsspec. Not thread-safe; making one asks for nothing.

    Reads of what `expect` named fetch ahead up to its end; other reads fetch blocks of `block_bytes`. `address`: with
    the version that was opened. Raises SourceError by any reading method.
    """

    def __init__(self, address: Address, block_bytes: int = LEAST_BYTES) -> None:
        super().__init__()
        from fsspec.caching import BlockCache

        self.address = opened(address)
        if self.address.version is None:
            raise SourceError(f"{address} is a directory; name objects, or a glob of them")
        self.name, self.size = str(address), self.address.version.n_bytes
        self._position = 0
        self._blocks = BlockCache(block_bytes, self._fetch, self.size, _KEPT_BYTES // block_bytes)
        self._ahead: Any = None
        self._expected: list[tuple[int, int]] = []

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Say which bytes [start, stop) will be read; what lies between near ones is fetched along."""
        self._expected, gap = [], max(_GAP_BYTES, self._blocks.blocksize)
        for start, stop in sorted(ranges):
            first, last = self._expected[-1] if self._expected else (start, -gap - 1)
            if start <= last + gap:
                self._expected[-1:] = [(first, max(stop, last))]
            else:
                self._expected.append((start, stop))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or as much of it as there are bytes left."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and self._position < self.size:
            piece = self._bytes(self._position, min(len(view) - done, READ_AHEAD_BYTES, self.size - self._position))
            view[done : done + len(piece)] = piece
            done += len(piece)
            self._position += len(piece)
        return done

    def _bytes(self, start: int, n_bytes: int) -> Any:
        """Bytes from `start` on, not always all of them."""
        from fsspec.caching import ReadAheadCache

        end = next((stop for first, stop in self._expected if first <= start < stop), None)
        if end is None:
            is_large = n_bytes >= self._blocks.blocksize
            return (self._fetch if is_large else self._blocks._fetch)(start, start + n_bytes)
        if self._ahead is None or self._ahead.size != min(end, self.size):
            self._ahead = ReadAheadCache(READ_AHEAD_BYTES, self._fetch, min(end, self.size))
        return self._ahead._fetch(start, start + n_bytes)

    def _fetch(self, start: int, stop: int) -> bytes:
        return fetch(self.address, start, min(stop, self.size))  # blocks end behind the object
