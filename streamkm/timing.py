"""How long a fit may take, from a short measurement: a few chunks are read and assigned to rows of them.

May import passes and below; nothing that is measured is kept.
"""

from __future__ import annotations

import time

import numpy as np

from streamkm.budget import Plan
from streamkm.cluster.blocks import CenterTable, add_rows, row_d2
from streamkm.cluster.lloyd import densified
from streamkm.errors import InvalidInputError
from streamkm.sources.base import ChunkedSource
from streamkm.walk import Walk

CHUNKS = 3  # that are read, after one that loads what has to be loaded
SAMPLE_STEPS = 15  # assignments of the row sample that seeding, search and polishing cost, about


def estimate_seconds(walk: Walk, plan: Plan, n_clusters: int, n_threads: int) -> float:
    """Seconds that a fit may take, about: within a factor of two on a machine that does nothing else.

    ``passes * read + (passes - 1) * assign`` for every chunk, by so many threads, and some assignments of the sample.

    Raises
    ------
    InvalidInputError
        If the source has no chunks that can be read by themselves.
    """
    source = walk.source
    if not isinstance(source, ChunkedSource):
        raise InvalidInputError(f"{source.name} streams rows; a few of them cannot be read to measure the time")
    chunks = source.chunks(plan.chunk_bytes)
    chosen = [chunks[i] for i in np.unique(np.linspace(0, len(chunks) - 1, CHUNKS).astype(int))]
    rows = walk.read(chosen[0])
    d = source.n_features or rows.X.shape[1]
    centers = np.zeros((n_clusters, d))
    few = densified(rows.X, np.arange(min(n_clusters, rows.X.shape[0])), rows.X.shape[1])
    centers[: len(few), : few.shape[1]] = few
    dtype = np.float32 if source.is_sparse or np.can_cast(source.dtype, np.float32) else np.float64
    table, sums, counts = CenterTable.build(centers, dtype), np.zeros_like(centers), np.zeros(n_clusters)
    read = assign = 0.0
    n_rows = n_bytes = 0
    for chunk in chosen:
        started = time.perf_counter()
        rows = walk.read(chunk)
        done = time.perf_counter()
        X = rows.X[:, :d] if rows.X.shape[1] > d else rows.X
        labels, _, _ = table.nearest(X)
        add_rows(X, np.empty(0), labels, sums, counts)
        row_d2(X, labels, centers)
        read, assign = read + done - started, assign + time.perf_counter() - done
        n_rows, n_bytes = n_rows + X.shape[0], n_bytes + chunk.n_bytes
    share = sum(chunk.n_bytes for chunk in chunks) / max(1, n_bytes)
    sample = min(plan.sample_rows, plan.n_rows or plan.sample_rows) / max(1, n_rows)
    assignments = max(0, plan.passes - 1) * share + SAMPLE_STEPS * sample
    return (plan.passes * share * read + assignments * assign) / n_threads
