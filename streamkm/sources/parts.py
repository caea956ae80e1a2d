"""Several sources one after the other: a list of files, or a list of arrays.

May import base, csr_rows and errors. What the parts are is none of its business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from streamkm.errors import InvalidInputError
from streamkm.sources.base import Chunk, ChunkedSource, Rows
from streamkm.sources.csr_rows import make_csr


class PartsSource(ChunkedSource):
    """The rows of several sources, in order.

    Rows are given in the common dtype of the parts. Sparse parts may differ in width; they are given as wide as the
    widest. `Chunk.part` is the number of the part and `Chunk.start` a row of that part.

    Parameters
    ----------
    parts : sequence of ChunkedSource
        Each knows its number of rows.

    Raises
    ------
    InvalidInputError
        No parts, dense parts of different width, dense and sparse ones mixed.
    """

    def __init__(self, parts: Sequence[ChunkedSource]) -> None:
        if not parts:
            raise InvalidInputError("a list of 0 parts has no rows; at least 1 part is needed")
        first = parts[0]
        rows: list[int] = []
        widths: list[int] = []
        for number, part in enumerate(parts):
            if part.n_rows is None or part.n_features is None:
                raise InvalidInputError(f"part {number} ({part.name}) cannot tell its shape; open it alone")
            if part.is_sparse != first.is_sparse:
                kinds = ("dense", "sparse")
                raise InvalidInputError(
                    f"part {number} ({part.name}) is {kinds[part.is_sparse]} and part 0 ({first.name}) "
                    f"{kinds[first.is_sparse]}; all parts must be of one kind"
                )
            if not part.is_sparse and part.n_features != first.n_features:
                raise InvalidInputError(
                    f"part {number} ({part.name}) has {part.n_features:,} features and part 0 ({first.name}) "
                    f"{first.n_features:,}; dense parts must have equally many"
                )
            rows.append(part.n_rows)
            widths.append(part.n_features)
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *rows])
        self.name = f"{first.name} and {len(parts) - 1} more" if len(parts) > 1 else first.name
        self.n_rows: int = int(self._starts[-1])
        self.n_features: int = max(widths)
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.is_sparse = first.is_sparse
        sizes = [part.n_bytes for part in parts]
        self.n_bytes = None if None in sizes else sum(size or 0 for size in sizes)

    def chunks(self, target_bytes: int) -> tuple[Chunk, ...]:
        """Cut every part by itself; see `ChunkedSource.chunks`."""
        chunks: list[Chunk] = []
        for number, part in enumerate(self._parts):
            for chunk in part.chunks(target_bytes):
                chunks.append(replace(chunk, index=len(chunks), part=number))
        return tuple(chunks)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        rows = self._parts[chunk.part].read(replace(chunk, part=0))
        X = rows.X.astype(self.dtype, copy=False)
        if X.shape[1] != self.n_features and isinstance(X, sp.csr_array):
            X = make_csr(X.data, X.indices, X.indptr, n_features=self.n_features)
        return Rows(X, rows.places + self._starts[chunk.part])

    def describe(self, place: int) -> str:
        """Say where a row is, for messages: in which part, and its number there."""
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self._parts[number].describe(int(place - self._starts[number]))
