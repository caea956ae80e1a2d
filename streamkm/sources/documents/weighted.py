"""Rows of a source, weighted by tf-idf as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import working_dtype
from streamkm.sources.base import ChunkedSource, Rows, RowSource, WrappedSource
from streamkm.sources.chunks import Chunk
from streamkm.text import TfIdf


class TfIdfRows(WrappedSource):
    """Rows of another source, scaled by document frequencies and to unit norm, in order only.

    `source`: of sparse rows. `tfidf`: 12-16 bytes for each feature that occurs. Raises InvalidInputError if the source
    is dense.
    """

    def __init__(self, source: RowSource, tfidf: TfIdf) -> None:
        if not source.is_sparse:
            raise InvalidInputError(f"{source.name} is dense; tf-idf needs sparse rows")
        self.source = source
        made_with = {**(source.made_with or {}), "tfidf": tfidf.digest()}
        self.take_after(source, dtype=working_dtype(source.dtype), made_with=made_with, words=tfidf.words, tfidf=tfidf)

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        for rows in self.source.stream(target_bytes):
            yield self._weighted(rows)

    def details(self) -> dict[str, str]:
        counted = self.tfidf.frequencies
        return {
            **self.source.details(),
            "tf-idf": f"{len(counted.features):,} features of {counted.n_rows:,} rows, norm {self.tfidf.norm}",
        }

    def _weighted(self, rows: Rows) -> Rows:
        return Rows(self.tfidf.apply(rows.X), rows.places)


class ChunkedTfIdfRows(TfIdfRows, ChunkedSource):
    """The same where the source's pieces can be read in any order."""

    source: ChunkedSource

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        return self.source.chunks(target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        return self._weighted(self.source.read(chunk))


def weighted(source: RowSource, tfidf: TfIdf) -> TfIdfRows:
    """Weight the rows of a source: in any order where it can be read so."""
    return (ChunkedTfIdfRows if isinstance(source, ChunkedSource) else TfIdfRows)(source, tfidf)
