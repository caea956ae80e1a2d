"""The words behind hashed features that no pass has counted, from a few documents throughout the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamkm.core.progress import Progress
from streamkm.sources.base import RowSource
from streamkm.sources.documents.base import Batch, ChunkedDocuments, Documents
from streamkm.sources.documents.hashed import hashed_text
from streamkm.text.words import WordCounts, WordTable

PIECES, PIECE_BYTES = 32, 1 << 16  # of text


def look_at_words(source: RowSource, progress: Progress) -> WordTable | None:
    """Count words of some of the documents that rows are hashed of: which ones depends on the data alone.

    Reads evenly spread pieces if documents can be read in any order, else the first ones: about `PIECES` times
    `PIECE_BYTES` of text at most. This is no pass, but a stage of its own: "words".

    Parameters
    ----------
    source : RowSource
    progress : Progress

    Returns
    -------
    WordTable or None
        The words that the source knows already, if any. None for rows that are no documents, or can be read once only.
    """
    if source.words is not None:
        return source.words
    text = hashed_text(source)
    if text is None or not text.replayable:
        return None
    counts = WordCounts()
    with progress.stage("words") as stage:
        for batch in _pieces(text.documents):
            looked_at = np.ones(len(batch.documents), np.bool_)
            counts.add(text.hashing.apply_and_count(batch.documents, looked_at)[1])
            stage.rows += len(batch.documents)
            stage.read_bytes += batch.n_bytes if text.files else 0
    return WordTable.of(counts, text.hashing)


def _pieces(documents: Documents) -> Iterator[Batch]:
    if isinstance(documents, ChunkedDocuments):
        chunks = documents.chunks(PIECE_BYTES)
        for number in np.unique(np.linspace(0, len(chunks) - 1, PIECES).astype(int)).tolist():
            yield documents.read(chunks[number])
        return
    n_bytes = 0
    for batch in documents.stream(PIECE_BYTES):
        yield batch
        n_bytes += batch.n_bytes
        if n_bytes >= PIECES * PIECE_BYTES:
            break
