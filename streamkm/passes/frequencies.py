"""The pass that counts document frequencies: in how many rows each feature occurs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamkm.core.matrix import Matrix
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Pass
from streamkm.passes.reader import ReadItem, RowReader
from streamkm.text import IdfFit, WordCounts
from streamkm.text.tfidf import Frequencies

COUNTING_COPIES = 24  # of the rows that documents become: texts, words, and entries, by two threads


@dataclass(frozen=True, slots=True)
class _Counted:
    """Number of rows in which each feature occurs, and of documents in which each word occurs."""

    frequencies: Frequencies | None
    words: WordCounts


@dataclass(frozen=True, slots=True)
class CountFeatures(Pass[_Counted, None, _Counted]):
    """Count the rows in which each feature occurs, and the documents in which each word occurs."""

    fit: IdfFit

    @staticmethod
    def memory(target_bytes: int) -> PassMemory:
        """Memory of texts, words and entries that readers of documents hold for rows of so many bytes."""
        return PassMemory(kept=COUNTING_COPIES * target_bytes, reads=False)

    def start(self) -> _Counted:
        """A state without counts."""
        return _Counted(None, WordCounts())

    def read(self, reader: RowReader, item: ReadItem) -> tuple[Matrix, Mapping[str, int]]:
        """Read the valid rows of a chunk, and its words."""
        rows = reader.rows(item[0])
        return reader.checked(rows.X, rows.places).X, rows.words or {}

    def step(self, state: _Counted, rows: tuple[Matrix, Mapping[str, int]]) -> tuple[_Counted, None]:
        """Count the rows of a chunk."""
        X, words = rows
        state.words.add(words)
        return _Counted(self.fit.step(state.frequencies, X), state.words), None

    def join(self, first: _Counted, second: _Counted) -> _Counted:
        """Add the counts of two states."""
        assert first.frequencies is not None
        assert second.frequencies is not None  # runs have chunks
        frequencies = self.fit.join([first.frequencies, second.frequencies])
        return _Counted(frequencies, WordCounts.joined([first.words, second.words]))
