"""Stored values of HDF5 files, read and decoded without the HDF5 library, by as many threads as there are.

Responsible for contiguous values and for storage chunks that are plain, deflated or shuffled, at places that the
library told. Not h5py.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import SourceError
from streamkm.sources.remote.file import RemoteFile
from streamkm.sources.stored import open_binary, read_fully

DEFLATE, SHUFFLE = 1, 2
"""Filter identifiers of the HDF5 file format."""


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Where the storage chunks of a dataset are; those of one dimension are seen as having one column."""

    chunk: tuple[int, int]  # rows and columns of a storage chunk
    # (chunks down, chunks across); where the stored bytes of a chunk are; size 0 is a chunk that was never written,
    # whose value the library knows. 16 bytes a chunk
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    is_uniform: bool = True  # whether every chunk went through all filters

    @property
    def n_bytes(self) -> int:
        """Stored bytes of all chunks."""
        return int(self.sizes.sum())

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Bytes of the file that rows `start` to `stop` lie in."""
        places = np.s_[start // self.chunk[0] : -(-stop // self.chunk[0])]
        offsets, sizes = self.offsets[places].ravel().tolist(), self.sizes[places].ravel().tolist()
        return ((at, at + size) for at, size in zip(offsets, sizes, strict=True) if size)


@dataclass(frozen=True, slots=True)
class DirectChunks:
    """A dataset in chunks."""

    path: str
    name: str
    dtype: np.dtype[Any]
    filters: tuple[int, ...]  # in the order in which they were applied
    table: ChunkTable

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> bool:
        """Fill `out` and say so; False where a chunk cannot be decoded, for the library to decide and to word why."""
        rows, columns = self.table.chunk
        table = out.reshape(stop - start, -1)
        with open_binary(self.path) as file:
            if isinstance(file, RemoteFile):
                file.expect(self.table.ranges(start, stop))
            for i in range(start // rows, -(-stop // rows)):
                low, high = max(start, i * rows), min(stop, (i + 1) * rows)
                for j in range(self.table.offsets.shape[1]):
                    place = table[low - start : high - start, j * columns : (j + 1) * columns]
                    values = self._stored_chunk(file, i, j)
                    if values is None:
                        return False
                    place[...] = values[low - i * rows : high - i * rows, : place.shape[1]]
        return True

    def _stored_chunk(self, file: Any, i: int, j: int) -> NDArray[Any] | None:
        chunk, size = self.table.chunk, int(self.table.sizes[i, j])
        n_bytes = chunk[0] * chunk[1] * self.dtype.itemsize
        if not 0 < size <= file.size:
            return None
        values: Any = bytearray(size)
        if read_fully(file, memoryview(values), int(self.table.offsets[i, j])) < size:
            return None
        if DEFLATE in self.filters:
            values = self._inflate(values, n_bytes)
        if values is None or len(values) != n_bytes:
            return None
        if SHUFFLE in self.filters:
            values = _unshuffle(np.frombuffer(values, np.uint8), self.dtype.itemsize)
        return np.frombuffer(values, self.dtype).reshape(chunk)

    def _inflate(self, stored: bytearray, n_bytes: int) -> bytes | None:
        """Inflate no more than a chunk holds: few bytes can claim to be terabytes."""
        try:
            values = zlib.decompressobj().decompress(stored, n_bytes + 1)
        except zlib.error:
            return None
        if len(values) > n_bytes:
            raise SourceError(f"a storage chunk of {self.name} inflates to more than the {n_bytes:,} bytes it holds")
        return values


def _unshuffle(values: NDArray[np.uint8], itemsize: int) -> NDArray[np.uint8]:
    """Put the bytes of each value together again: all first bytes were stored in front of all second ones.

    Plane by plane, NumPy moves three times as many bytes a second as by a transposition.
    """
    out = np.empty((len(values) // itemsize, itemsize), np.uint8)
    for i, plane in enumerate(values.reshape(itemsize, -1)):
        out[:, i] = plane
    return out
