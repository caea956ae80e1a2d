"""Rows on their way into a stream: read here, chunk by chunk; then waiting until their part is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.sampling.coreset import Part
from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import check_weights


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that wait until their part is complete."""

    X: Matrix
    row_ids: NDArray[np.int64]
    weights: NDArray[np.float64]


def together(pieces: list[Piece]) -> Piece:
    """Rows of several pieces in the order of their row ids."""
    if len(pieces) == 1:
        return pieces[0]
    row_ids = np.concatenate([piece.row_ids for piece in pieces])
    weights = np.concatenate([piece.weights for piece in pieces])
    X = stacked([piece.X for piece in pieces])
    if pieces[0].row_ids[-1] < pieces[-1].row_ids[0]:
        return Piece(X, row_ids, weights)
    order = np.argsort(row_ids, kind="stable")
    return Piece(X[order], row_ids[order], weights[order])


def check_rows(part: Part | Piece, n_features: int) -> None:
    """Raise ValueError for rows of a file that kernels do not take."""
    X, n_rows = part.X, len(part.row_ids)
    for name, array, dtype in (("places", part.row_ids, np.int64), ("weights", part.weights, np.float64)):
        if array.dtype != dtype or array.shape != (n_rows,):
            raise ValueError(f"{name} of {array.dtype} {array.shape}; needed: {np.dtype(dtype)} ({n_rows},)")
    least = n_features if isinstance(X, np.ndarray) else 0
    is_wide = X.ndim == 2 and least <= X.shape[1] <= n_features
    if not is_wide or X.shape[0] != n_rows or not np.issubdtype(X.dtype, np.number):
        raise ValueError(f"rows of {X.dtype} {X.shape}; needed: numbers ({n_rows}, {n_features})")
    if not isinstance(X, np.ndarray):
        X.check_format(full_check=True)


def feed(
    take: Callable[[Matrix, NDArray[np.float64]], None],
    reader: RowReader,
    weights: NDArray[np.float64],
    factor: float = 1.0,
) -> NDArray[np.int64]:
    """Take all rows of a source, read here, chunk by chunk; return the rows of each, invalid ones included.

    If `take` refuses a chunk, those before it have been taken. Rows weigh `factor` without `weights`. Raises
    InvalidInputError: a row is invalid and not skipped, or `weights` has another length than the rows.
    """
    source, done = reader.source, 0
    counts: list[int] = []
    if source.n_rows is not None:
        check_weights(reader, weights, source.n_rows)
    items = source.stream(reader.target_bytes) if source.access.streams else source.chunks(reader.target_bytes)
    for item in items:
        valid = reader.read_rows(item)
        read = weights[done : done + valid.n_read]
        done += valid.n_read
        counts.append(valid.n_read)
        if len(weights) and len(read) < valid.n_read:
            check_weights(reader, weights, done)
        if not len(weights) and factor != 1:
            read = np.full(valid.n_read, factor)
        if valid.X.shape[0]:
            take(valid.X, read if valid.kept is None or not len(read) else read[valid.kept])
    check_weights(reader, weights, done)
    return np.array(counts, np.int64)
