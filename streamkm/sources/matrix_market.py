"""Matrix Market files, plain or compressed, by path or URL: the whole matrix is read when rows are first read.

The header tells the shape beforehand, so that a plan counts the memory of the matrix, or refuses it, before it is read.
SciPy's reader is not used: it ends the process if the text is damaged.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from operator import length_hint
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.base import ChunkedSource, Rows
from streamkm.sources.chunks import Chunk
from streamkm.sources.dense import cut_rows
from streamkm.sources.local import unchanged
from streamkm.sources.memory.arrays import ArraySource, SparseSource
from streamkm.sources.stored import file_size, name_of, open_binary, opened_path
from streamkm.sources.svmlight.compressed import compression_of, decompressor

_ENTRY_BYTES = 64  # of an entry of a sparse matrix while rows are made of it; measured, mirrored too
_LINE_BYTES, _BLOCK_LINES = 1 << 16, 1 << 16  # a line at most; lines parsed at a time
_HEADER = re.compile(
    rb"%%MatrixMarket\s+matrix\s+(coordinate|array)\s+(real|double|integer|unsigned-integer|pattern)\s+"
    rb"(general|symmetric|skew-symmetric)\s*", re.I,
)  # fmt: skip
_EXAMPLE = "'%%MatrixMarket matrix coordinate real general'"
_DAMAGE = (ValueError, TypeError, OverflowError, EOFError, OSError, MemoryError)


class MatrixMarketSource(ChunkedSource):
    """Rows of a matrix in a Matrix Market file: CSR of a coordinate file, dense of an array. Duplicates are summed.

    Raises SourceError, SourceNotFoundError, MissingDependencyError: missing, damaged, truncated, or of numbers that are
    not real; errors behind the header are raised by `read`. Raises InvalidInputError: no rows or columns.
    """

    in_process = True
    decodes = True
    n_rows: int
    n_features: int

    def __init__(self, path: str) -> None:
        self._path = opened_path(path)
        self.name, self.files = name_of((self._path,)), (self._path,)
        with self._text() as text:
            head, (_, line) = text.readline(_LINE_BYTES), next(_lines(text), (0, b""))
            if not (found := _HEADER.fullmatch(head)):
                raise ValueError(f"its first line is {head!r}; rows must be real, as of {_EXAMPLE}")
            form, self._field, self._symmetry = (each.lower() for each in found.groups())
            self.is_sparse, sizes = form == b"coordinate", line.split()
            if len(sizes) != 2 + self.is_sparse or not all(map(bytes.isdigit, sizes)):
                raise ValueError(f"Invalid integer values {line!r}; needed: {2 + self.is_sparse} sizes")
            n, d = self.n_rows, self.n_features = int(sizes[0]), int(sizes[1])
            self._n_entries = int(sizes[2]) if self.is_sparse else n * d
            if self._symmetry != b"general" and n != d:
                raise ValueError(f"a symmetric matrix is square, not of {n:,} x {d:,}")
        if min(n, d) < 1:
            raise InvalidInputError(f"{self._path} has {n:,} rows of {d:,} columns; needed: 1 of each")
        self.dtype = np.dtype(np.float64)
        self.n_bytes = file_size(self._path)
        self._turn = threading.Lock()
        self.producer_bytes = _ENTRY_BYTES * self._n_entries if self.is_sparse else 24 * n * d

    def __reduce__(self) -> tuple[Any, ...]:
        return MatrixMarketSource, (self._path,)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows, as if all had equally many entries; see `ChunkedSource.chunks`. O(1)."""
        row_bytes = 8 + 12 * self._n_entries // self.n_rows if self.is_sparse else 8 * self.n_features
        return cut_rows(self.n_rows, row_bytes, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`. The first call reads the file."""
        with self._turn:
            matrix = self._matrix
        return matrix.read(chunk)

    def details(self) -> dict[str, str]:
        """Say what the file is; see `RowSource.details`."""
        n_entries = f"{self._n_entries:,}, {self._n_entries / self.n_rows:,.1f} a row"
        form = "coordinates" if self.is_sparse else "array"
        return {"format": f"Matrix Market, {form}", "nnz": n_entries, "chunks": "none, read as a whole"}

    @cached_property
    def _matrix(self) -> ArraySource | SparseSource:
        with self._text() as text:
            n, shape = self.n_rows, (self.n_rows, self.n_features)
            mirrored, sign = self._symmetry != b"general", -1.0 if self._symmetry == b"skew-symmetric" else 1.0
            if self.is_sparse:
                entries = self._numbers(text, self._n_entries, 2 if self._field == b"pattern" else 3)
                i, j = ((entries[:, each] - 1).astype(sp.get_index_dtype(maxval=max(shape))) for each in (0, 1))
                values = np.ones(len(entries)) if self._field == b"pattern" else entries[:, 2].copy()
                del entries
                if mirrored:
                    off = i != j
                    values = np.concatenate([values, sign * values[off]])
                    i, j = np.concatenate([i, j[off]]), np.concatenate([j, i[off]])
                return SparseSource(sp.csr_array((values, (i, j)), shape=shape), name=self.name)
            if mirrored:
                X, places = np.zeros(shape), np.triu_indices(n, int(sign < 0))
                X.T[places] = self._numbers(text, len(places[0]), 1)[:, 0]  # by columns, from the diagonal down
                X[places] = sign * X.T[places]
            else:
                X = self._numbers(text, n * self.n_features, 1).reshape(-1, n).T
            return ArraySource(np.ascontiguousarray(X), name=self.name)

    def _numbers(self, text: io.BufferedReader, n_lines: int, n_columns: int) -> NDArray[np.float64]:
        """The numbers behind the header, a row of them a line; the first two are a place in the matrix, if sparse."""
        numbers, done, row = np.empty((n_lines, n_columns)), 0, np.dtype([("", np.float64)] * n_columns)
        lines = islice(_lines(text), 1, None)  # behind the sizes
        while block := list(islice(lines, _BLOCK_LINES)):
            if done + len(block) > n_lines:
                raise ValueError(f"Line {block[n_lines - done][0]:,}: Too many lines, the header tells {n_lines:,}")
            rest = iter([line for _, line in block])
            try:
                read = np.loadtxt(rest, row, comments=None, ndmin=1).view(np.float64).reshape(-1, n_columns)
            except ValueError as error:
                at, _ = block[len(block) - length_hint(rest) - 1]
                raise ValueError(f"Line {at:,}: {str(error).partition(' at row')[0]}") from None
            if self.is_sparse:
                places = read[:, :2]
                sound = ((places >= 1) & (places <= (self.n_rows, self.n_features)) & (places % 1 == 0)).all(axis=1)
                if not sound.all():
                    at, line = block[int(sound.argmin())]
                    raise ValueError(f"Line {at:,}: {line!r} is outside of {self.n_rows:,} x {self.n_features:,}")
            numbers[done : done + len(block)] = read
            done += len(block)
        if done < n_lines:
            raise ValueError(f"Truncated: {done:,} lines of numbers, the header tells {n_lines:,}")
        return numbers

    @contextmanager
    def _text(self) -> Iterator[io.BufferedReader]:
        """The text, decompressed; what fails within is worded for the file."""
        with unchanged(self._path), open_binary(self._path) as raw:
            text, failures = decompressor(self._path, compression_of(self._path, raw), raw)
            failures = (*_DAMAGE, *failures)
            try:
                yield io.BufferedReader(text)
            except failures as error:
                raise SourceError(
                    f"{self._path} cannot be read as Matrix Market, it is truncated or damaged: {error}"
                ) from error


def _lines(text: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Lines that are neither blank nor remarks, with their numbers in the text that is left."""
    lines = enumerate(iter(partial(text.readline, _LINE_BYTES), b""), 1)
    return (each for each in lines if each[1].strip() and not each[1].startswith(b"%"))
