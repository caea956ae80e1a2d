"""Entries of a matrix that come in any order, gathered by groups of rows in a temporary file.

Knows neither text nor chunks. The file has no name, so that nothing is left of it however the process ends.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from array import array
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import writing
from streamkm.sources.stored import read_fully

GROUP_BYTES = 4 << 20  # of the entries of a group of rows, about
MOST_GROUPS = 1024
_BLOCK_BYTES = 1 << 14  # of a group's entries that are held back, to be written together
HELD_BYTES = 2 * MOST_GROUPS * _BLOCK_BYTES
"""Memory that gathering takes at most, about."""


class GroupedEntries:
    """Rows, columns and values; first they are added, then read, by any thread.

    `n_entries`: about as many will come. `group_rows`: rows of a group, but for the last. `n_of_group` (int64
    (groups,)): entries of each.
    """

    def __init__(self, shape: tuple[int, int], n_entries: int) -> None:
        index = np.int32 if max(shape) < 1 << 31 else np.int64
        self.dtype = np.dtype([("row", index), ("column", index), ("value", np.float64)])
        wanted = -(-max(n_entries * self.dtype.itemsize, 8 * shape[0]) // GROUP_BYTES)
        self.group_rows = -(-shape[0] // max(1, min(wanted, MOST_GROUPS, shape[0])))
        n_groups = -(-shape[0] // self.group_rows)
        self.n_of_group = np.zeros(n_groups, np.int64)
        self._held: list[list[bytes]] = [[] for _ in range(n_groups)]
        self._held_bytes = [0] * n_groups
        self._places = [array("q") for _ in range(n_groups)]  # where blocks begin, and how long they are, by turns
        self._end = 0
        self._file = tempfile.TemporaryFile(prefix="streamkm-", buffering=0)  # noqa: SIM115
        self._turn = threading.Lock()
        weakref.finalize(self, self._file.close)

    @property
    def n_bytes(self) -> int:
        """Bytes of all entries."""
        return int(self.n_of_group.sum()) * self.dtype.itemsize

    def add(self, rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add entries, counted from 0. Raises DiskFullError, OutputError."""
        entries = np.empty(len(rows), self.dtype)
        entries["row"], entries["column"], entries["value"] = rows, columns, values
        groups = rows // self.group_rows
        if len(groups) and (groups[1:] < groups[:-1]).any():
            order = np.argsort(groups, kind="stable")
            entries, groups = entries[order], groups[order]
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        for start, stop in pairwise([*starts.tolist(), len(groups)]):
            group = int(groups[start])
            self.n_of_group[group] += stop - start
            self._held[group].append(entries[start:stop].tobytes())
            self._held_bytes[group] += len(self._held[group][-1])
            if self._held_bytes[group] >= _BLOCK_BYTES:
                self._write(group)

    def finish(self) -> None:
        """Write what is held back; nothing is added after that. Raises DiskFullError, OutputError."""
        for group in range(len(self._held)):
            self._write(group)

    def read(self, first: int, stop: int) -> NDArray[np.void]:
        """Entries of some groups that follow each other, those of a group in the order in which they came."""
        out = np.empty(int(self.n_of_group[first:stop].sum()), self.dtype)
        view, done = memoryview(out.view(np.uint8).data), 0
        for places in self._places[first:stop]:
            for start, n_bytes in zip(places[::2], places[1::2], strict=True):
                with self._turn:
                    read_fully(self._file, view[done : done + n_bytes], start)
                done += n_bytes
        return out

    def _write(self, group: int) -> None:
        if not self._held[group]:
            return
        block = b"".join(self._held[group])
        with writing(tempfile.gettempdir(), len(block)):
            done = 0
            while done < len(block):
                done += self._file.write(memoryview(block)[done:]) or 0
        places = self._places[group]
        if places and places[-2] + places[-1] == self._end:
            places[-1] += len(block)
        else:
            places.extend((self._end, len(block)))
        self._end += len(block)
        self._held[group], self._held_bytes[group] = [], 0
