"""The pass that counts in how many documents features occur; and a look at the words of a few documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import scipy.sparse as sp

from streamkm.core.progress import Progress
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Pass
from streamkm.passes.reader import ValidRows
from streamkm.sources.base import RowSource
from streamkm.sources.chunks import ChunkRuns
from streamkm.sources.documents.hashed import Batch, HashedText, hashed_text
from streamkm.text.tfidf import Frequencies
from streamkm.text.words import WordTable, joined_counts

COUNTING_COPIES = 24  # of the rows that documents become: texts, words, and entries, by two threads
PIECES, PIECE_BYTES = 32, 1 << 16  # of text


@dataclass(frozen=True, slots=True)
class CountFeatures(Pass[Frequencies, None, Frequencies]):
    """Count the rows in which each feature occurs."""

    @staticmethod
    def memory(target_bytes: int) -> PassMemory:
        """Memory of texts, words and entries that readers of documents hold for rows of so many bytes."""
        return PassMemory(kept=COUNTING_COPIES * target_bytes, reads=False)

    def start(self) -> Frequencies:
        """A state without counts."""
        return Frequencies.of(sp.csr_array((0, 1)))

    def step(self, state: Frequencies, rows: ValidRows) -> tuple[Frequencies, None]:
        """Count the rows of a chunk."""
        return self.join(state, Frequencies.of(rows.X)), None

    def join(self, first: Frequencies, second: Frequencies) -> Frequencies:
        """Add the counts of two states."""
        return Frequencies.joined([first, second])


def look_at_words(source: RowSource, progress: Progress) -> WordTable | None:
    """Words of evenly spread documents, or of the first ones of a stream: which ones depends on the data alone.

    This is no pass, but a stage of its own: "words". None for rows that are no documents, or can be read once only.
    """
    text = hashed_text(source)
    if text is None or not text.replayable:
        return None
    counts: dict[str, int] = {}
    with progress.stage("words") as stage:
        for batch in _pieces(text):
            counts = joined_counts(counts, text.hashing.count_words(batch.documents))
            stage.rows += len(batch.documents)
            stage.read_bytes += batch.n_bytes if text.files else 0
    return WordTable.of(counts, text.hashing)


def _pieces(text: HashedText) -> Iterator[Batch]:
    if text.streams:
        return islice(text.batches(PIECE_BYTES), PIECES)
    chunks = ChunkRuns.of(text.cuts(PIECE_BYTES))
    numbers = np.unique(np.linspace(0, len(chunks) - 1, PIECES).astype(int))
    return (text.batch(chunks[number]) for number in numbers.tolist())
