"""Storage chunks of HDF5 objects behind a URL that the library alone can decode, without its index of the file.

Responsible for having the library decode bytes that were fetched: it gets them in a file in memory that has a dataset
like theirs. So what it would look up in every process (where in the file the chunks are) is asked for once, at opening.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MissingDependencyError
from streamkm.sources.binary.hdf5_direct import ChunkTable
from streamkm.sources.remote.file import RemoteFile
from streamkm.sources.stored import open_binary, read_fully

_TOGETHER_BYTES = 1 << 22  # decoded; opening a file in memory takes as long as decoding some 100 KB
_NAME = "chunks"


@dataclass(frozen=True, slots=True)
class DecodedChunks:
    """A dataset in chunks, as `hdf5_direct.DirectChunks`; the library decodes, one thread at a time."""

    path: str
    name: str
    table: ChunkTable
    row_bytes: int  # decoded
    image: bytes  # an HDF5 file that holds a dataset of the same kind, without rows

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> bool:
        """Fill `out` and say so; False where a chunk cannot be decoded, for the library to decide and to word why."""
        with open_binary(self.path) as file:
            if isinstance(file, RemoteFile):
                file.expect(self.table.ranges(start, stop))
            for first, last in self._spans(start, stop):
                fetched = self._fetched(file, first, last)
                low = first * self.table.chunk[0]
                rows = np.s_[max(0, start - low) : min(stop - low, (last - first) * self.table.chunk[0])]
                place = out[low + rows.start - start : low + rows.stop - start]
                if fetched is None or not self._decode(fetched, (last - first) * self.table.chunk[0], rows, place):
                    return False
        return True

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Storage chunks down the rows that are decoded together: first, and one past the last."""
        height = self.table.chunk[0]
        step = max(1, _TOGETHER_BYTES // (height * self.row_bytes))
        last = -(-stop // height)
        return ((at, min(at + step, last)) for at in range(start // height, last, step))

    def _fetched(self, file: Any, first: int, last: int) -> list[_Stored] | None:
        """Stored chunks in the order of the file, but those that were never written; None where bytes are missing."""
        offsets, sizes = self.table.offsets[first:last], self.table.sizes[first:last]
        found = []
        for at in np.argsort(offsets, axis=None, kind="stable").tolist():
            i, j = divmod(at, offsets.shape[1])
            size = int(sizes[i, j])
            if size > file.size:
                return None
            values = bytearray(size)
            if read_fully(file, memoryview(values), int(offsets[i, j])) < size:
                return None
            if size:
                place = (i * self.table.chunk[0], j * self.table.chunk[1])
                found.append(_Stored(place, bytes(values), self.table.mask(first + i, j)))
        return found

    def _decode(self, stored: list[_Stored], n_rows: int, rows: slice, out: NDArray[Any]) -> bool:
        try:
            with h5py.File(io.BytesIO(self.image), "r+") as file:
                dataset = file[_NAME]
                require_filters(dataset, self.name)
                dataset.resize(n_rows, axis=0)
                for each in stored:
                    dataset.id.write_direct_chunk(each.place[: len(dataset.shape)], each.values, each.mask)
                read_rows(dataset, rows.start, rows.stop, out)
        except (OSError, RuntimeError, ValueError, TypeError, LookupError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Stored:
    """A storage chunk as it is stored: where it begins among those that are decoded with it, and filters left out."""

    place: tuple[int, int]
    values: bytes
    mask: int


def image_of(dataset: h5py.Dataset) -> bytes | None:
    """Make the `image` of a dataset; None where the library cannot make such a one."""
    made = io.BytesIO()
    with suppress(OSError, RuntimeError, ValueError, TypeError), h5py.File(made, "w") as file:
        shape = (0, *dataset.shape[1:])
        space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED, *dataset.shape[1:]))
        plist = dataset.id.get_create_plist()
        h5py.h5d.create(file.id, _NAME.encode(), dataset.id.get_type().copy(), space, plist)
        file.flush()
        return made.getvalue()
    return None


def read_rows(dataset: h5py.Dataset, start: int, stop: int, out: NDArray[Any]) -> None:
    """Have the library fill `out` with rows of a dataset, in `out`'s type."""
    if out.dtype == dataset.dtype:
        dataset.read_direct(out, np.s_[start:stop])
    else:
        out[...] = dataset[start:stop]


def require_filters(dataset: h5py.Dataset, name: str) -> None:
    """See to it that every filter of a dataset can be decoded; loads hdf5plugin where that helps.

    Raises MissingDependencyError naming the filter and the extra that brings it.
    """
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    missing = [(code, text) for code, _, _, text in filters if not h5py.h5z.filter_avail(code)]
    if not missing:
        return
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401  # registers its filters
    for code, text in missing:
        if not h5py.h5z.filter_avail(code):
            label = text.decode(errors="replace") or "unnamed"
            raise MissingDependencyError(
                f"{name} is compressed with HDF5 filter {code} ({label}), which is not installed; "
                f"pip install 'streamkm[hdf5plugin]', or write the data again with gzip"
            )
