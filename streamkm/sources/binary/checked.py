"""Arrays of sketch stores: every storage chunk that is read is compared with its checksum.

Responsible for reading whole storage chunks and for naming the one that is damaged or missing. Where checksums come
from is the store's business.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import SourceError
from streamkm.core.matrix import raw
from streamkm.sources.binary.zarr import ZarrArray


class CheckedArray(ZarrArray):
    """An array of a store, read in whole storage chunks, each of which must have its checksum.

    `checksums` (storage chunks,): None: whoever reads all of it compares that.
    """

    def __init__(self, array: Any, name: str, checksums: NDArray[np.uint32] | None = None) -> None:
        super().__init__(array, name)
        self._checksums, self.missing_chunks = checksums, ""  # which is an error

    def _get(self, start: int, stop: int) -> NDArray[Any]:
        unit = self.unit_rows
        first, last = start // unit * unit, min(-(-stop // unit) * unit, self.shape[0])
        values = np.empty((last - first, *self.shape[1:]), self.dtype)
        self._fill(first, last, values)
        return values[start - first : stop - first]

    def _fill(self, first: int, last: int, out: NDArray[Any]) -> None:
        """Fill `out` with whole storage chunks, the last of which may be cut short by the end of the array."""
        unit = self.unit_rows
        for at in range(first, last, unit):
            piece = out[at - first : at - first + unit]
            try:
                piece[...] = super()._get(at, min(at + unit, last))
            except SourceError as error:
                if error.__cause__ is None:
                    raise
                raise self._damaged(at // unit, str(error.__cause__)) from error
            if self._checksums is not None and zlib.crc32(raw(piece)) != self._checksums[at // unit]:
                raise self._damaged(at // unit, "it has not the bytes that were written")

    def _damaged(self, number: int, why: str) -> SourceError:
        key = self._array.metadata.encode_chunk_key((number, *(0 for _ in self.shape[1:])))
        file = Path(os.path.join(self._array.store.root, self._array.path, key))
        start = number * self.unit_rows
        stop = min(start + self.unit_rows, self.shape[0])
        return SourceError(
            f"storage chunk {number:,} of {self.name} is {'damaged' if file.exists() else 'missing'}: {file}: {why} "
            f"({'rows' if len(self.shape) == 2 else 'values'} {start:,}-{stop - 1:,}); restore the file, or sketch the "
            f"data again"
        )
