"""Looks at a few rows, to show them to people: words of documents, the beginning of one, the values of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamkm.core.progress import Progress
from streamkm.sources.chunks import ChunkRuns
from streamkm.sources.documents.hashed import HashedText, TextBatch, hashed_text
from streamkm.sources.row_source import RowSource
from streamkm.text.words import WordTable, joined_counts

T = TypeVar("T")

CHARACTERS = 160
VALUES = 8  # of a row
READ_BYTES = 1 << 22  # at a time
PIECES, PIECE_BYTES = 32, 1 << 16  # of text


def rows_as_text(source: RowSource, wanted: Sequence[int], names: Sequence[str] | None) -> dict[int, str]:
    """Short text of the wanted rows (ascending numbers), read in order up to the last; missing rows are left out."""
    text = hashed_text(source)
    if text is not None:
        batches = (batch.documents for batch in text.batches(READ_BYTES))
        return _found(((len(each), partial(_shortened, each)) for each in batches), wanted)
    first = source.origin.made_with.get("first_index", 0)

    def of_row(X: Any, number: int) -> str:
        values = X[number] if isinstance(X, np.ndarray) else X[[number]].toarray()[0]
        return _values_text(values, source.is_sparse, names, first)

    return _found(((len(rows.row_ids), partial(of_row, rows.X)) for rows in source.stream(READ_BYTES)), wanted)


def _found(pieces: Iterable[tuple[int, Callable[[int], T]]], wanted: Sequence[int]) -> dict[int, T]:
    """Results for the wanted rows, from consecutive pieces and a function of each."""
    found: dict[int, T] = {}
    first, at = 0, 0
    for n_rows, given in pieces:
        while at < len(wanted) and wanted[at] < first + n_rows:
            found[wanted[at]] = given(wanted[at] - first)
            at += 1
        first += n_rows
        if at == len(wanted):
            break
    return found


def row_ids(source: RowSource, wanted: Sequence[int]) -> dict[int, str]:
    """Values of the id column for some rows (ascending numbers); empty if there is none."""
    if source.origin.id_column is None:
        return {}
    found = _found(((len(piece), piece.__getitem__) for piece in source.ids()), wanted)
    plain = {row: value.as_py() if hasattr(value, "as_py") else value for row, value in found.items()}
    return {row: str(value) for row, value in plain.items() if value is not None}


def _shortened(documents: Sequence[Any], number: int) -> str:
    """The beginning of a document, in one line."""
    document = documents[number]
    text = document if isinstance(document, str) else " ".join(map(str, document))
    line = " ".join(text[: 4 * CHARACTERS].split())
    return line if len(line) <= CHARACTERS else f"{line[: CHARACTERS - 3]}..."


def _values_text(values: NDArray[Any], is_sparse: bool, names: Sequence[str] | None, first: int) -> str:
    """The first values of a dense row; the largest of a sparse one."""
    features = np.arange(len(values))
    if is_sparse:
        features = np.flatnonzero(values)
        features = features[np.argsort(-np.abs(values[features]), kind="stable")]
    shown = features[:VALUES].tolist()
    told = [f"{f'x{n + first}' if names is None else names[n]}={values[n]:.4g}" for n in shown]
    return ", ".join(told + ["..."] * (len(features) > VALUES))


def look_at_words(source: RowSource, progress: Progress) -> WordTable | None:
    """Words of evenly spread documents, or of the first of a stream; None without documents to read again."""
    text = hashed_text(source)
    if text is None or not text.access.replayable:
        return None
    counts: dict[str, int] = {}
    with progress.stage("words") as stage:
        for batch in _pieces(text):
            counts = joined_counts(counts, text.hashing.count_words(batch.documents))
            stage.rows += len(batch.documents)
            stage.read_bytes += batch.n_bytes if text.origin.files else 0
    return WordTable.of(counts, text.hashing)


def _pieces(text: HashedText) -> Iterator[TextBatch]:
    if text.access.streams:
        return islice(text.batches(PIECE_BYTES), PIECES)
    chunks = ChunkRuns.of(text.cuts(PIECE_BYTES))
    numbers = np.unique(np.linspace(0, len(chunks) - 1, PIECES).astype(int))
    return (text.batch(chunks[number]) for number in numbers.tolist())
