"""Documents as sparse rows, by a stateless `FeatureHashing`: the contract of their readers, and weights by tf-idf."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.sources.chunks import Access, Chunk, ChunkRuns
from streamkm.sources.prepared import CachedRows, PreparedRows
from streamkm.sources.row_source import Rows, RowSource, WrappedSource
from streamkm.sources.text_lines import BLOCK_BYTES, LineLimit
from streamkm.text import BadDocumentError, FeatureHashing, TfIdf

_VALUE_BYTES, _ROW_BYTES = 4, 12  # an index; a pointer and a place
_TOKEN_BYTES = 72  # a token as a Python object in a list
_DECODED_COPIES = 12  # bytes for each byte of a text: three copies, with 4 bytes a character
LONG_DENSITY = 1.0  # decoded bytes of a row for each byte of text, where documents are too long for a look at them


def _features_of_more(X: sp.csr_array, times: float) -> int:
    """The number of features in `times` as many documents: a power of their number, by Heaps' law.

    The power falls with the number of documents, so that an estimate from few is too high rather than too low.
    """
    n_half = len(np.unique(X.indices[: X.indptr[X.shape[0] // 2]]))
    n_whole = len(np.unique(X.indices))
    power = np.log2(n_whole / n_half) if n_half else 1.0
    return int(min(n_whole * max(times, 1.0) ** power, X.shape[1]))


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Documents as read."""

    documents: list[Any]  # of str, of lists of str, or of mappings
    row_ids: NDArray[np.int64]  # (documents,); as in `Rows`
    n_bytes: int  # text that they take up


class HashedText(RowSource):
    """Rows of hashed documents, which a reader gives in pieces of text; cheap to pickle unless they are in memory."""

    is_sparse = True
    access = Access(decodes=True, libraries=("words",))  # which take texts apart
    line_limit: LineLimit | None = None

    def __init__(self, hashing: FeatureHashing, stored: Mapping[str, str], taken: Mapping[str, Any] | None = None):
        self.hashing = hashing
        self.n_features: int = hashing.n_features
        self.dtype = np.dtype(hashing.dtype)
        self._stored = stored  # as of `details`
        self.origin = self.origin.also_made_with(documents=dict(taken or {}), hashing=asdict(hashing))
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name} has 0 bytes of text; at least 1 document is needed")

    @abstractmethod
    def sample(self) -> tuple[TextBatch, float | None]:
        """Look at a few documents; give these, and the total bytes of text if known. Bounded effort."""

    def cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Part, start, stop and bytes of text of chunks of about `text_bytes`."""
        raise NotImplementedError

    def batch(self, chunk: Chunk) -> TextBatch:
        """Documents of one chunk. Thread-safe and repeatable."""
        raise NotImplementedError

    def batches(self, text_bytes: int) -> Iterator[TextBatch]:
        """All documents in order, about `text_bytes` of text at a time."""
        return map(self.batch, ChunkRuns.of(self.cuts(text_bytes)))

    @cached_property
    def _densities(self) -> tuple[float, int | None, int | None]:
        """Decoded bytes for each byte of text, total rows and total features, estimated from a few documents."""
        batch, text_bytes = self.sample()
        if not batch.documents:  # long ones alone, of files
            return LONG_DENSITY, None if text_bytes is None else max(1, round(text_bytes / BLOCK_BYTES)), None
        X: sp.csr_array = self._rows(batch).X
        seen = max(batch.n_bytes, 1)
        decoded = X.nnz * (self.dtype.itemsize + _VALUE_BYTES) + X.shape[0] * _ROW_BYTES
        density = max(decoded / seen, 0.01)
        if text_bytes is None:
            return density, None, None
        times = text_bytes / seen
        return density, max(1, round(X.shape[0] * times)), _features_of_more(X, times)

    @property
    def estimated_rows(self) -> int | None:
        return self._densities[1] if self.n_rows is None else self.n_rows

    @property
    def estimated_occurring(self) -> int | None:
        return self._densities[2]

    def text_bytes(self, target_bytes: int) -> int:
        """Approximate bytes of text that become rows of `target_bytes`."""
        return max(1, round(target_bytes / self._densities[0]))

    def chunks(self, target_bytes: int) -> ChunkRuns:
        """Cut where the documents can be cut; bytes are projected from a sample of them."""
        if self.access.streams:
            return super().chunks(target_bytes)
        density = self._densities[0]
        chunks = ChunkRuns.of(self.cuts(self.text_bytes(target_bytes)))
        return chunks.resized(lambda n_bytes: np.rint(n_bytes * density) + 1)

    def read(self, chunk: Chunk) -> Rows:
        return super().read(chunk) if self.access.streams else self._rows(self.batch(chunk))

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        if not self.access.streams:
            return super().stream(target_bytes)
        return map(self._rows, self.batches(self.text_bytes(target_bytes)))

    def with_line_limit(self, limit: LineLimit) -> RowSource:
        bounded = copy(self) if self.origin.files else self
        bounded.line_limit = replace(limit, byte_cost=_line_cost(self.hashing))
        return bounded

    def details(self) -> dict[str, str]:
        hashing = self.hashing
        return {**self._stored, "hashing": f"{hashing.input} to {hashing.n_features:,} features, norm {hashing.norm}"}

    def _rows(self, batch: TextBatch) -> Rows:
        """Rows of documents; errors name the place."""
        try:
            return Rows(self.hashing.apply(batch.documents), batch.row_ids)
        except BadDocumentError as bad:
            raise InvalidInputError(f"{self.describe(int(batch.row_ids[bad.row]))}: {bad.problem}") from None


def _line_cost(hashing: FeatureHashing) -> float:
    """Memory for each byte of a long document, at most: its text, decoded, and all its tokens."""
    low, high = hashing.ngram_range if hashing.input == "text" else (1, 1)
    n_units = 0.5 if hashing.analyzer == "word" else 1.0  # a word takes a byte, and one in front of the next
    return _DECODED_COPIES + sum(n_units * _TOKEN_BYTES + length for length in range(low, high + 1))


def hashed_text(source: RowSource) -> HashedText | None:
    """The hashed documents behind rows; None for other rows."""
    while isinstance(source, CachedRows | PreparedRows | TfIdfRows):
        source = source.source
    return source if isinstance(source, HashedText) else None


class TfIdfRows(WrappedSource):
    """Rows of another source, weighted as they are read; `tfidf` takes 12-16 bytes for each feature that occurs.

    Raises InvalidInputError: dense rows; InvalidParameterError: ``sublinear_tf`` for rows that hashing scales.
    """

    def __init__(self, source: RowSource, tfidf: TfIdf) -> None:
        if not source.is_sparse:
            raise InvalidInputError(f"{source.name} is dense; tf-idf needs sparse rows")
        text = hashed_text(source)
        if tfidf.sublinear_tf and text is not None and text.hashing.norm is not None:
            raise InvalidParameterError(
                f"sublinear_tf takes logarithms of counts, and FeatureHashing(norm={text.hashing.norm!r}) makes "
                f"fractions of them; pass FeatureHashing(norm=None)"
            )
        self.source = source
        origin = source.origin.also_made_with(tfidf=tfidf.digest())
        self.take_after(source, dtype=working_dtype(source.dtype), origin=origin, tfidf=tfidf)

    def apply(self, X: Matrix) -> Matrix:
        weighted: Matrix = self.tfidf.apply(X)
        return weighted

    def details(self) -> dict[str, str]:
        counted = self.tfidf.frequencies
        weights = f"{len(counted.features):,} features of {counted.n_rows:,} rows, norm {self.tfidf.norm}"
        return {**self.source.details(), "tf-idf": weights}
