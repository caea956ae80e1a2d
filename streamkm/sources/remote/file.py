"""An object behind a URL as a file: few large requests, whatever sizes the reader asks for.

Responsible for how much a request asks for and for what is kept of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from streamkm.core.exceptions import SourceError
from streamkm.sources.remote.objects import Address, fetch, opened

REQUEST_BYTES = 1 << 24
"""Asked for at once, at most: a round trip is little beside the time that so much takes."""

LEAST_BYTES = 1 << 16
"""Asked for at once, at least; smaller objects are fetched whole."""

_KEPT_WINDOWS = 256


class RemoteFile(io.RawIOBase):
    """An object, read at any place. Not thread-safe; making one asks for nothing.

    What is asked for is as large as what the reader expects (see `expect`); else twice as much as the last time where
    it goes on, so what is read in order comes in large pieces and what is read here and there in small ones. The last
    pieces are kept: 256 at most, and a quarter of `REQUEST_BYTES` in all besides the newest.

    `least_bytes`: of a request. `address`: with the version that was opened. Raises SourceError by any reading method.
    """

    def __init__(self, address: Address, least_bytes: int = LEAST_BYTES) -> None:
        super().__init__()
        self.address = opened(address)
        if self.address.version is None:
            raise SourceError(f"{address} is a directory; name objects, or a glob of them")
        self.name = str(address)
        self.size = self.address.version.n_bytes
        self._least_bytes = least_bytes
        self._position = 0
        self._windows: list[tuple[int, bytes, bool]] = []  # the newest last; whether it was expected
        self._expected: list[tuple[int, int]] = []

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Say which bytes [start, stop) will be read; what lies between near ones is fetched along."""
        self._expected = []
        for start, stop in sorted(ranges):
            if self._expected and start <= self._expected[-1][1] + self._least_bytes:
                first, last = self._expected[-1]
                self._expected[-1] = first, max(last, stop)
            else:
                self._expected.append((start, stop))

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
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and self._position < self.size:
            start, data = self._window(len(view) - done)
            piece = memoryview(data)[self._position - start :][: len(view) - done]
            view[done : done + len(piece)] = piece
            done += len(piece)
            self._position += len(piece)
        return done

    def _window(self, wanted: int) -> tuple[int, bytes]:
        """Give fetched bytes that the position is among."""
        ahead = self._least_bytes
        for start, data, expected in self._windows:
            end = start + len(data)
            if start <= self._position < end:
                return start, data
            # what lies behind something expected need not go on
            if end <= self._position <= end + self._least_bytes and not expected:
                ahead = max(ahead, 2 * len(data))
        ends = [last for first, last in self._expected if first <= self._position < last]
        if ends:
            ahead = ends[0] - self._position
        start, stop = self._position, min(self._position + min(max(wanted, ahead), REQUEST_BYTES), self.size)
        if self.size <= self._least_bytes:
            start, stop = 0, self.size
        window = start, fetch(self.address, start, stop), bool(ends)
        room = REQUEST_BYTES // 4
        kept: list[tuple[int, bytes, bool]] = []
        for old in reversed(self._windows[1 - _KEPT_WINDOWS :]):
            if len(old[1]) <= room:
                kept.append(old)
                room -= len(old[1])
        self._windows = [*reversed(kept), window]
        return window[:2]
