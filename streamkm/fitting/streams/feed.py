"""Rows of a source into a stream: read here, chunk by chunk, as only one of them is taken at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.fitting.streams.stream import Stream
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import check_weights


def feed(stream: Stream, reader: RowReader, weights: NDArray[np.float64], factor: float = 1.0) -> NDArray[np.int64]:
    """Take all rows of a source, read here, chunk by chunk; invalid ones are left out where the reader skips them.

    `stream`: changed. Where a chunk is refused, those before it have been taken. `weights`: float64 (n,) or (0,).
    `factor`: what each row weighs where there are no weights. Returns int64 (chunks,): rows of each chunk that was
    read, invalid ones included. Raises InvalidInputError: if a row is invalid, or `weights` has another length than the
    rows.
    """
    source, done = reader.source, 0
    counts: list[int] = []
    if source.n_rows is not None:
        check_weights(reader, weights, source.n_rows)
    items = source.stream(reader.target_bytes) if source.streams else source.chunks(reader.target_bytes)
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
            stream.add(valid.X, read if valid.kept is None or not len(read) else read[valid.kept])
    check_weights(reader, weights, done)
    return np.array(counts, np.int64)
