"""Several sources one after the other: a list of files, or a list of arrays, of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chosen_columns import ChosenColumns
from streamkm.sources.chunks import Access, Chunk, ChunkRuns
from streamkm.sources.frames import order_of
from streamkm.sources.row_source import Rows, RowSource
from streamkm.sources.stored import make_csr


class PartsSource(RowSource):
    """The rows of several sources in order, in their common dtype; sparse parts are as wide as the widest.

    `Chunk.part` is the number of the part and `Chunk.start` a row of it. Raises InvalidInputError: no parts, parts of
    unknown shape, dense parts of different width, dense and sparse ones mixed.
    """

    n_features: int

    def __init__(self, parts: Sequence[RowSource]) -> None:
        if not parts:
            raise InvalidInputError("a list of 0 parts has no rows; at least 1 part is needed")
        first = parts[0]
        taken: list[RowSource] = []
        for number, part in enumerate(parts):
            if part.n_rows is None or part.n_features is None:
                raise InvalidInputError(f"part {number} ({part.name}) cannot tell its shape; open it alone")
            if part.is_sparse != first.is_sparse or (not part.is_sparse and part.n_features != first.n_features):
                kind = {True: "sparse", False: "dense"}
                raise InvalidInputError(
                    f"part {number} ({part.name}) has {part.n_features:,} {kind[part.is_sparse]} features and part 0 "
                    f"({first.name}) {first.n_features:,} {kind[first.is_sparse]} ones; all parts must be sparse, or "
                    f"dense with equally many"
                )
            order = order_of(part.feature_names, first.feature_names, f"part {number}", "part 0")
            taken.append(part if order is None else ChosenColumns(part, order.tolist()))
        self.parts = parts = tuple(taken)
        self._starts = np.cumsum([0, *(part.n_rows or 0 for part in parts)])  # (parts + 1,); rows in front of each part
        sizes = [part.n_bytes for part in parts]
        access = Access.joined([part.access for part in parts])
        if any(part.computed for part in parts):  # graphs of Dask arrays may hold rows too
            access = replace(access, in_process=True)
        self.take_after(
            first,
            access=access,
            origin=first.origin.joined([part.origin for part in parts]),
            name=f"{first.name} and {len(parts) - 1} more" if len(parts) > 1 else first.name,
            n_rows=int(self._starts[-1]),
            n_features=max(part.n_features or 0 for part in parts),
            dtype=np.result_type(*(part.dtype for part in parts)),
            n_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        )

    def chunks(self, target_bytes: int) -> ChunkRuns:
        return ChunkRuns.joined(part.chunks(target_bytes) for part in self.parts)

    def read(self, chunk: Chunk) -> Rows:
        rows = self.parts[chunk.part].read(replace(chunk, part=0))
        X = rows.X.astype(self.dtype, copy=False)
        if X.shape[1] != self.n_features and isinstance(X, sp.csr_array):
            X = make_csr(X.data, X.indices, X.indptr, n_features=self.n_features)
        return Rows(X, rows.row_ids + self._starts[chunk.part])

    def details(self) -> dict[str, str]:
        of_parts = [part.details() for part in self.parts]
        details = {"parts": f"{len(of_parts):,}"}
        for label, text in of_parts[0].items():
            alike = all(part.get(label) == text for part in of_parts)
            details[label] = text if alike else f"{text} (first part)"
        return {**details, **super().details()}

    def describe(self, place: int) -> str:
        """Name the place of a row by its part and its number there."""
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        part = self.parts[number]
        described = part.describe(int(place - self._starts[number]))
        # arrays have no names of their own
        return f"{described} (number {number:,} of the list)" if part.access.in_process else described

    def remote_view(self) -> RowSource:
        if not self.access.in_process:
            return self
        sent = copy(self)
        sent.parts = tuple(part.remote_view() for part in self.parts)
        return sent
