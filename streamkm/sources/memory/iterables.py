"""Chunks that a program makes: iterables, generators, and callables that restart them.

Chunks are checked against each other, and cut or joined to the wanted size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, is_sparse
from streamkm.sources.chosen_columns import columns_of
from streamkm.sources.chunks import Access
from streamkm.sources.frames import order_of
from streamkm.sources.memory.arrays import SparseSource, open_array
from streamkm.sources.memory.tables import PassHash
from streamkm.sources.row_source import Rows, RowSource, restarted, row_ids_between, started
from streamkm.sources.stored import make_csr

MADE_COPIES = 3  # of a chunk, while a program makes it: itself, and values in float64 that it is made from


class IterableSource(RowSource):
    """Rows from chunks, dense or sparse but not both, that are made while they are read.

    `chunks`: arrays (rows, d) or sparse matrices, or tuples or lists that begin with one, such as rows and labels. An
    iterator is read once; any other iterable, and a callable that returns a fresh iterator, must give the same rows in
    the same order every time. The first chunk gives type and width, and is kept for the first pass; `n_features` widens
    sparse chunks. Rows are copies, so their buffers may be filled again.

    Raises InvalidInputError: no chunk, no matrix of real numbers, a data loader that shuffles; by `stream`, naming the
    chunk: another width or kind, a dtype that the first one's cannot hold, a second pass over an iterator.
    """

    name = "iterable of chunks"

    def __init__(self, chunks: Iterable[Any] | Callable[[], Iterable[Any]], *, n_features: int | None = None) -> None:
        self._chunks = chunks
        replayable = not isinstance(chunks, Iterator)
        self.access = Access(streams=True, replayable=replayable, in_process=True, read_factor=2.0)  # pieces wait
        self._passes = PassHash()
        if type(getattr(chunks, "sampler", None)).__name__ == "RandomSampler":
            raise InvalidInputError(
                f"{self.name} is a {type(chunks).__name__} that shuffles: every pass would give the rows in another "
                f"order, and labels would be of other rows; make it with shuffle=False"
            )
        iterator = started(self, chunks)
        first = next((chunk for chunk in iterator if not _is_empty(chunk)), None)
        if first is None:
            raise InvalidInputError(f"{self.name} gives no rows; at least 1 is needed")
        # which holds the first no longer than it must
        self._begun: Iterator[Any] | None = chain(iter([first]), iterator)
        opened = _open_chunk(first, f"chunk 0 of {self.name}")
        self.is_sparse = opened.is_sparse
        self.dtype, self.feature_names = opened.dtype, opened.feature_names
        # those of a list are there already
        is_made = callable(chunks) or not replayable or hasattr(chunks, "sampler")
        self.access = replace(self.access, producer_bytes=MADE_COPIES * (opened.n_bytes or 0) if is_made else 0)
        self.n_features = n_features if n_features is not None and opened.is_sparse else opened.n_features
        self._check(opened, 0)

    def details(self) -> dict[str, str]:
        how = "made anew for every pass" if self.access.replayable else "read only once"
        return {"format": f"chunks of a program, {how}"}

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        remedy = "make the same chunks for every pass, or pass a list of them"
        return self._passes.compared(self._merged_rows(target_bytes), self.name, remedy)

    def _merged_rows(self, target_bytes: int) -> Iterator[Rows]:
        iterator, self._begun = restarted(self, self._chunks, self._begun), None
        place = 0
        for X in _merged(self._pieces(iterator, target_bytes), target_bytes):
            yield Rows(X, row_ids_between(place, place + X.shape[0]))
            place += X.shape[0]

    def _pieces(self, iterator: Iterator[Any], target_bytes: int) -> Iterator[tuple[Matrix, int]]:
        """Yield copies of the chunks, cut if above `target_bytes`, and the bytes of each."""
        number = -1
        for values in iterator:  # not of enumerate, which holds what it gave last
            number += 1
            if _is_empty(values):
                continue
            opened = _open_chunk(values, f"chunk {number} of {self.name}")
            order = self._check(opened, number)
            for chunk in opened.chunks(target_bytes):
                X = opened.read(chunk).X if order is None else columns_of(opened.read(chunk).X, order)
                if isinstance(X, np.ndarray):
                    yield np.array(X, self.dtype), chunk.n_bytes
                else:
                    data = X.data.astype(self.dtype, copy=True)
                    width = self.n_features or X.shape[1]
                    yield make_csr(data, X.indices.copy(), X.indptr.copy(), n_features=width), chunk.n_bytes
                del X
            del values, opened  # before the next one is made

    def _check(self, chunk: RowSource, number: int) -> NDArray[np.int64] | None:
        """Compare a chunk with the first one; give the positions of the first one's columns if the order differs."""
        width, needed, kind = chunk.n_features or 0, self.n_features or 0, ("dense", "sparse")
        if chunk.is_sparse != self.is_sparse or width > needed or (width != needed and not self.is_sparse):
            remedy = "; pass n_features= as the width of the widest" if self.is_sparse else ""
            raise InvalidInputError(
                f"chunk {number} of {self.name} has {width:,} {kind[chunk.is_sparse]} features; {needed:,} "
                f"{kind[self.is_sparse]} ones are needed as before{remedy}"
            )
        order = order_of(chunk.feature_names, self.feature_names, f"chunk {number} of {self.name}", "chunk 0")
        if not np.can_cast(chunk.dtype, self.dtype, "safe"):
            raise InvalidInputError(
                f"chunk {number} of {self.name} holds {chunk.dtype}, which the {self.dtype} of chunk 0 cannot hold; "
                f"convert all chunks to one dtype"
            )
        return order


def _rows_of(values: Any) -> Any:
    """The rows of a chunk, which may be the first member of a tuple or list."""
    if isinstance(values, list | tuple) and values and len(getattr(values[0], "shape", ())) == 2:
        return values[0]
    return values


def _is_empty(values: Any) -> bool:
    values = _rows_of(values)
    shape = getattr(values, "shape", None)
    return len(shape) == 2 and shape[0] == 0 if shape is not None else hasattr(values, "__len__") and len(values) == 0


def _open_chunk(values: Any, name: str) -> RowSource:
    values = _rows_of(values)
    return SparseSource(values, name=name) if is_sparse(values) else open_array(values, name=name)


def _merged(pieces: Iterator[tuple[Matrix, int]], target_bytes: int) -> Iterator[Matrix]:
    """Join pieces while they fit into `target_bytes` together."""
    held: list[Matrix] = []
    held_bytes = 0
    for X, n_bytes in pieces:
        if held and held_bytes + n_bytes > target_bytes:
            yield _stack(held)
            held, held_bytes = [], 0
        held.append(X)
        held_bytes += n_bytes
    if held:
        yield _stack(held)


def _stack(matrices: list[Matrix]) -> Matrix:
    if len(matrices) == 1:
        return matrices[0]
    if isinstance(matrices[0], np.ndarray):
        return np.concatenate(matrices)
    return sp.csr_array(sp.vstack(matrices, format="csr"))
