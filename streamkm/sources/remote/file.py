"""An object behind a URL as a file: few large requests, whatever sizes the reader asks for."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from streamkm.core.exceptions import SourceError
from streamkm.sources.remote.objects import Address, fetch, opened

READ_AHEAD_BYTES = 8 << 20
"""Fetched ahead at most, and with one read; a window has twice as much."""

LEAST_BYTES = 1 << 16
"""Asked for at once, at least; smaller objects are fetched whole."""

_GAP_BYTES = 1 << 13  # between what is expected, at least: fetched along
_KEPT_BYTES = 1 << 22


class RemoteFile(io.RawIOBase):
    """An object, read at any place. Not thread-safe; making one asks for nothing.

    fsspec's caches fetch ahead what `expect` named, and blocks of `block_bytes` around small reads elsewhere; large
    reads elsewhere are a request each.

    `address`: with the version that was opened. Raises SourceError by any reading method.
    """

    def __init__(self, address: Address, block_bytes: int = LEAST_BYTES) -> None:
        super().__init__()
        from fsspec.caching import BlockCache

        self.address = opened(address)
        if self.address.version is None:
            raise SourceError(f"{address} is a directory; name objects, or a glob of them")
        self.name = str(address)
        self.size = self.address.version.n_bytes
        self._position = 0
        self._blocks = BlockCache(block_bytes, self._fetch, self.size, _KEPT_BYTES // block_bytes)
        self._ahead: Any = None
        self._expected: list[tuple[int, int]] = []

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Say which bytes [start, stop) will be read; what lies between near ones is fetched along."""
        self._expected, gap = [], max(_GAP_BYTES, self._blocks.blocksize)
        for start, stop in sorted(ranges):
            if self._expected and start <= self._expected[-1][1] + gap:
                first, last = self._expected[-1]
                self._expected[-1] = first, min(max(last, stop), self.size)
            else:
                self._expected.append((start, min(stop, self.size)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or as much of it as there are bytes left."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and self._position < self.size:
            wanted = min(len(view) - done, READ_AHEAD_BYTES, self.size - self._position)
            piece = self._bytes(self._position, self._position + wanted)
            view[done : done + len(piece)] = piece
            done += len(piece)
            self._position += len(piece)
        return done

    def _fetch(self, start: int, stop: int) -> bytes:
        return fetch(self.address, start, min(stop, self.size))  # blocks end behind the object

    def _bytes(self, start: int, stop: int) -> bytes:
        """Bytes from `start` on, not always all of them."""
        end = next((last for first, last in self._expected if first <= start < last), None)
        if end is None or self.size <= self._blocks.blocksize:
            is_large = self._blocks.blocksize <= stop - start < self.size
            return self._fetch(start, stop) if is_large else self._blocks._fetch(start, stop)
        if self._ahead is None or self._ahead.size != end:
            from fsspec.caching import ReadAheadCache

            # of objects that are read in order, a look at the head fetches little
            first = self._blocks.blocksize if (0, end) == (start, self.size) else READ_AHEAD_BYTES
            self._ahead = ReadAheadCache(first, self._fetch, end)
        elif start >= self._ahead.end:
            self._ahead.blocksize = READ_AHEAD_BYTES
        data: bytes = self._ahead._fetch(start, stop)
        return data
