"""A hypothetical source, for forecasts: it has chunks and sizes but no rows.

It describes itself as any source does, and refuses to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NoReturn

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.base import ChunkedSource, RowSource
from streamkm.sources.chunks import Chunk, ChunkRuns


class HypotheticalSource(ChunkedSource):
    """`source` with `n_rows` rows: as wide, as compressed, cut into chunks of the same size.

    Raises InvalidParameterError if `n_rows` is no whole number from 1. Raises InvalidInputError if the source has no
    chunks, or nothing says how many rows it has.
    """

    def __init__(self, source: RowSource, n_rows: Any) -> None:
        if isinstance(n_rows, bool) or not isinstance(n_rows, Integral) or n_rows < 1:
            raise InvalidParameterError(f"n_rows={n_rows!r}; needed: a whole number from 1")
        sampled = source.estimated_rows
        if not isinstance(source, ChunkedSource) or not sampled:
            raise InvalidInputError(
                f"{source.name} does not say how many rows it has, so it cannot be scaled to {n_rows:,}; "
                "give a file whose chunks can be read by themselves"
            )
        self._source, self._share = source, int(n_rows) / sampled
        self._estimated_rows = int(n_rows)
        self.take_after(
            source,
            name=f"{n_rows:,} rows like those of {source.name}",
            n_rows=None if source.n_rows is None else int(n_rows),
            n_bytes=None if source.n_bytes is None else round(source.n_bytes * self._share),
            resident_bytes=round(source.resident_bytes * self._share),
        )

    @property
    def estimated_rows(self) -> int:
        return self._estimated_rows

    @property
    def estimated_features(self) -> int | None:
        return self._source.estimated_features

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Say how many chunks there would be, and how large: all are alike, but for the last. O(1) memory.

        A chunk has the bytes of the source's largest, or `target_bytes` where the source is but one smaller chunk.
        """
        found = self._source.cut(target_bytes)
        total = max(1, round(found.total_bytes * self._share))
        largest = found.largest_bytes if len(found) > 1 else max(found.largest_bytes, target_bytes)
        return ChunkRuns.even(total, min(total, largest), 1)

    def read(self, chunk: Chunk) -> NoReturn:
        """Refuse: there are no rows here."""
        raise TypeError(f"{self.name}: there are no such rows; chunk {chunk.index} cannot be read")
