"""Storage chunks of Zarr arrays, read and decoded without zarr, by the thread that asks.

Responsible for arrays in a local directory whose storage chunks hold whole rows and went through Blosc alone, as those
of sketch stores do. Whatever else zarr reads is left to it: there, every read costs an event loop and two threads.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, BytesCodec
from zarr.storage import LocalStore

_HEADER_BYTES = 16  # of what Blosc writes; so much longer than the values it may be, at most


@dataclass(frozen=True, slots=True)
class DirectChunks:
    """The storage chunks of an array, each a file."""

    folder: str  # of the array
    chunk: tuple[int, ...]  # shape of a storage chunk
    dtype: np.dtype[Any]  # as stored, in this machine's byte order
    fill_value: Any  # of storage chunks that have no file
    # around the number of a storage chunk in the name of its file
    prefix: str
    suffix: str

    @classmethod
    def of(cls, array: Any) -> DirectChunks | None:
        """The storage chunks of a `zarr.Array`; None where zarr must read them."""
        metadata, dtype, chunk = array.metadata, np.dtype(array.dtype), tuple(array.chunks)
        if (
            not isinstance(array.store, LocalStore)
            or metadata.zarr_format != 3
            or array.shards is not None
            or len(chunk) not in (1, 2)
            or chunk[1:] != tuple(array.shape[1:])
            or dtype.kind not in "iuf"
            or not dtype.isnative
        ):
            return None
        codecs = tuple(metadata.codecs)
        if len(codecs) != 2 or not isinstance(codecs[0], BytesCodec) or not isinstance(codecs[1], BloscCodec):
            return None
        order = getattr(codecs[0].endian, "value", codecs[0].endian)  # a word itself in later versions of zarr
        native = np.dtype("<u2").isnative
        if dtype.itemsize > 1 and (order is None or (order == "little") != native):
            return None
        mark = 10**18  # a number that nothing else in the key is
        prefix, found, suffix = metadata.encode_chunk_key((mark, *(0 for _ in chunk[1:]))).partition(str(mark))
        if not found:
            return None
        return cls(os.path.join(array.store.root, array.path), chunk, dtype, array.fill_value, prefix, suffix)

    def file(self, number: int) -> str:
        """Where a storage chunk is."""
        return os.path.join(self.folder, f"{self.prefix}{number}{self.suffix}")

    def read_into(self, number: int, out: NDArray[Any]) -> None:
        """Fill `out`, C-contiguous and of the stored dtype, with the first rows of a storage chunk.

        Raises OSError, ValueError, RuntimeError: the file cannot be read, or what it holds is not what Blosc made of
        such values.
        """
        n_bytes = int(np.prod(self.chunk)) * self.dtype.itemsize
        try:
            with open(self.file(number), "rb", buffering=0) as file:
                stored = _read_whole(file, n_bytes + _HEADER_BYTES)
        except FileNotFoundError:
            out[...] = self.fill_value
            return
        # the decoder takes both lengths from here and does not know how many bytes there are
        lengths = np.frombuffer(stored[:_HEADER_BYTES], "<u4") if len(stored) >= _HEADER_BYTES else None
        if lengths is None or int(lengths[3]) != len(stored) or int(lengths[1]) != n_bytes:
            raise ValueError(f"its {len(stored):,} bytes are not those that Blosc makes of {n_bytes:,}")
        if out.nbytes == n_bytes:
            blosc.decompress(stored, out)
        else:
            whole = np.empty(self.chunk, self.dtype)
            blosc.decompress(stored, whole)
            out[...] = whole[: len(out)]


def _read_whole(file: Any, most_bytes: int) -> memoryview:
    """All bytes of a file, in memory that this thread's next call uses again."""
    size = os.fstat(file.fileno()).st_size
    if size > most_bytes:
        raise ValueError(f"its {size:,} bytes are more than the {most_bytes:,} that a storage chunk has at most")
    if len(getattr(_MINE, "buffer", b"")) < size:
        _MINE.buffer = bytearray(most_bytes)
    view, done = memoryview(_MINE.buffer)[:size], 0
    while done < size:
        got = file.readinto(view[done:])
        if not got:
            raise ValueError(f"it ends at byte {done:,} of {size:,}")
        done += got
    return view


_MINE = threading.local()
