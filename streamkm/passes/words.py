"""The pass that counts in how many documents features and words occur; and a look at the words of a few documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from streamkm.core.matrix import Matrix
from streamkm.core.progress import Progress
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Pass
from streamkm.passes.reader import ReadItem, RowReader
from streamkm.sources.base import RowSource
from streamkm.sources.documents.base import Batch, Documents
from streamkm.sources.documents.hashed import hashed_text
from streamkm.text.tfidf import Frequencies
from streamkm.text.words import WordTable, joined_counts

COUNTING_COPIES = 24  # of the rows that documents become: texts, words, and entries, by two threads
PIECES, PIECE_BYTES = 32, 1 << 16  # of text


Counted: TypeAlias = tuple[Frequencies, Mapping[str, int]]
"""Number of rows in which each feature occurs, and of documents in which each word occurs."""


@dataclass(frozen=True, slots=True)
class CountFeatures(Pass[Counted, None, Counted]):
    """Count the rows in which each feature occurs, and the documents in which each word occurs."""

    @staticmethod
    def memory(target_bytes: int) -> PassMemory:
        """Memory of texts, words and entries that readers of documents hold for rows of so many bytes."""
        return PassMemory(kept=COUNTING_COPIES * target_bytes, reads=False)

    def start(self) -> Counted:
        """A state without counts."""
        return Frequencies.of(sp.csr_array((0, 1))), {}

    def read(self, reader: RowReader, item: ReadItem) -> tuple[Matrix, Mapping[str, int]]:
        """Read the valid rows of a chunk, and its words."""
        rows = reader.rows(item[0])
        return reader.checked(rows.X, rows.places).X, rows.words or {}

    def step(self, state: Counted, rows: tuple[Matrix, Mapping[str, int]]) -> tuple[Counted, None]:
        """Count the rows of a chunk."""
        return self.join(state, (Frequencies.of(rows[0]), rows[1])), None

    def join(self, first: Counted, second: Counted) -> Counted:
        """Add the counts of two states."""
        return Frequencies.joined([first[0], second[0]]), joined_counts(first[1], second[1])


def look_at_words(source: RowSource, progress: Progress) -> WordTable | None:
    """Words of evenly spread documents, or of the first ones of a stream: which ones depends on the data alone.

    This is no pass, but a stage of its own: "words". Gives the words that the source knows already, if any; None for
    rows that are no documents, or can be read once only.
    """
    if source.words is not None:
        return source.words
    text = hashed_text(source)
    if text is None or not text.replayable:
        return None
    counts: dict[str, int] = {}
    with progress.stage("words") as stage:
        for batch in _pieces(text.documents):
            looked_at = np.ones(len(batch.documents), np.bool_)
            counts = joined_counts(counts, text.hashing.apply_and_count(batch.documents, looked_at)[1])
            stage.rows += len(batch.documents)
            stage.read_bytes += batch.n_bytes if text.files else 0
    return WordTable.of(counts, text.hashing)


def _pieces(documents: Documents) -> Iterator[Batch]:
    if not documents.chunked:
        return islice(documents.stream(PIECE_BYTES), PIECES)
    chunks = documents.chunks(PIECE_BYTES)
    numbers = np.unique(np.linspace(0, len(chunks) - 1, PIECES).astype(int))
    return (documents.read(chunks[number]) for number in numbers.tolist())
