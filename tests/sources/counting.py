"""Stored arrays that count, so that 'every storage chunk once a pass' is a test."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.sources.stored import StoredArray


class CountingArray(StoredArray):
    """An array in memory that plays a stored one and counts how often each storage chunk is touched."""

    def __init__(self, values: NDArray[Any], unit_rows: int, name: str) -> None:
        self._values = values
        self._lock = threading.Lock()
        self.name = name
        self.shape = values.shape
        self.dtype = values.dtype
        self.unit_rows = unit_rows
        self.n_bytes = values.nbytes
        self.touched: Counter[int] = Counter()

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        if stop > start:
            with self._lock:
                self.touched.update(range(start // self.unit_rows, -(-stop // self.unit_rows)))
        out[...] = self._values[start:stop]

    @property
    def n_chunks(self) -> int:
        return -(-len(self._values) // self.unit_rows)

    def most(self) -> int:
        """Times that the storage chunk was read that was read most; all of them must have been read."""
        assert len(self.touched) == self.n_chunks
        return max(self.touched.values())


def counting_csr(X: Any, unit: int | tuple[int, int, int]) -> tuple[CountingArray, CountingArray, CountingArray]:
    """Give data, indices and indptr of X as counting arrays with storage chunks of `unit` values."""
    units = (unit, unit, unit) if isinstance(unit, int) else unit
    names = ("data", "indices", "indptr")
    data, indices, indptr = (
        CountingArray(np.asarray(getattr(X, name)), size, name) for name, size in zip(names, units, strict=True)
    )
    return data, indices, indptr


class LoggedArray(StoredArray):
    """An array of a .npy file that plays a stored one; every process that reads it adds a line to a log."""

    def __init__(self, file: Path, unit_rows: int) -> None:
        self._file, self._log = file, file.with_suffix(".log")
        values = self._values()
        self.name, self.shape, self.dtype, self.n_bytes = file.stem, values.shape, values.dtype, values.nbytes
        self.unit_rows = unit_rows

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        touched = range(start // self.unit_rows, -(-stop // self.unit_rows))
        with open(self._log, "a") as log:
            log.write("".join(f"{os.getpid()} {chunk}\n" for chunk in touched))
        out[...] = self._values()[start:stop]

    def reads(self) -> float:
        """Times that storage chunks were read since this was asked last, on average; by all processes together."""
        lines = self._log.read_text().splitlines()
        self._log.write_text("")
        return len(lines) / -(-self.shape[0] // self.unit_rows)

    def _values(self) -> NDArray[Any]:
        return np.load(self._file, mmap_mode="r")


def logged_csr(X: Any, unit: int, folder: Path) -> tuple[LoggedArray, LoggedArray, LoggedArray]:
    """Give data, indices and indptr of X as logged arrays with storage chunks of `unit` values."""
    arrays = []
    for name in ("data", "indices", "indptr"):
        np.save(folder / f"{name}.npy", getattr(X, name))
        arrays.append(LoggedArray(folder / f"{name}.npy", unit))
    return arrays[0], arrays[1], arrays[2]
