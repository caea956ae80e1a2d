"""Excerpts of a few rows for people: the first words of a document, the values of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.sources.base import RowSource
from streamkm.sources.documents.hashed import HashedText, hashed_text

T = TypeVar("T")

CHARACTERS = 160
VALUES = 8  # of a row
READ_BYTES = 1 << 22  # at a time


def rows_as_text(source: RowSource, wanted: Sequence[int], names: Sequence[str] | None) -> dict[int, str]:
    """Short text of wanted rows, numbers that ascend, in a walk up to the last; others are left out."""
    text = hashed_text(source)
    return _found(_rows(source, names) if text is None else _documents(text), wanted)


def rows_as_values(source: RowSource, wanted: Sequence[int]) -> dict[int, NDArray[Any]]:
    """As `rows_as_text`, with the rows' values (d,)."""
    return _found(_dense_rows(source), wanted)


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
    """Values of the id column for some rows, numbers that ascend; empty if there is none."""
    if source.id_column is None:
        return {}
    found = _found(((len(piece), piece.__getitem__) for piece in source.ids()), wanted)
    plain = {row: value.as_py() if hasattr(value, "as_py") else value for row, value in found.items()}
    return {row: str(value) for row, value in plain.items() if value is not None}


def _documents(source: HashedText) -> Iterator[tuple[int, Any]]:
    for batch in source.batches(READ_BYTES):
        yield len(batch.documents), lambda i, documents=batch.documents: _shortened(documents[i])


def _rows(source: RowSource, names: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    first = (source.made_with or {}).get("first_index", 0)
    for rows in source.stream(READ_BYTES):
        yield rows.X.shape[0], lambda i, X=rows.X: _values_text(X, i, names, first)


def _dense_rows(source: RowSource) -> Iterator[tuple[int, Any]]:
    for rows in source.stream(READ_BYTES):
        yield rows.X.shape[0], lambda i, X=rows.X: np.array(X[i] if isinstance(X, np.ndarray) else X[[i]].toarray()[0])


def _shortened(document: Any) -> str:
    """The beginning of a document, in one line."""
    text = document if isinstance(document, str) else " ".join(map(str, document))
    line = " ".join(text[: 4 * CHARACTERS].split())
    return line if len(line) <= CHARACTERS else f"{line[: CHARACTERS - 3]}..."


def _values_text(X: Matrix, row: int, names: Sequence[str] | None, first: int) -> str:
    """The first values of a dense row; the largest of a sparse one."""
    if isinstance(X, np.ndarray):
        features, values = np.arange(min(VALUES, X.shape[1])), X[row, :VALUES]
        more = X.shape[1] > VALUES
    else:
        entries = slice(X.indptr[row], X.indptr[row + 1])
        most = np.argsort(-np.abs(X.data[entries]), kind="stable")[:VALUES]
        features, values = X.indices[entries][most], X.data[entries][most]
        more = X.indptr[row + 1] - X.indptr[row] > VALUES
    pairs = zip(features.tolist(), values.tolist(), strict=True)
    told = (f"{f'x{number + first}' if names is None else names[number]}={value:.4g}" for number, value in pairs)
    return ", ".join(told) + (", ..." if more else "")
