"""What a kernel fit will do, decided before the first read: sizes, passes, bytes.

May import budget and below; reads no rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkm.budget import (
    SAMPLE_BYTES,
    SAMPLE_ROWS_PER_CLUSTER,
    Plan,
    chunk_size,
    decoded_row_bytes,
)
from streamkm.errors import InvalidInputError, MemoryLimitError
from streamkm.limits import human_bytes, memory_limit_bytes, resident_bytes
from streamkm.projection import LIBRARY_BYTES, LOADING_BYTES
from streamkm.sources.base import ChunkedSource, RowSource

METHODS = {
    "nystroem": "kernel values against landmarks, projected on the leading directions",
    "two-step": "clusters of the landmarks alone; other rows join the nearest",
    "gaussian": "Gaussian combinations of all kernel columns",
    "sub-gaussian": "random signs over all kernel columns",
    "ros": "randomized Hadamard combinations of all kernel columns",
    "countsketch": "kernel columns added up, with random signs, in buckets",
    "fourier": "random Fourier features, projected on their leading directions",
    "orthogonal-fourier": "orthogonal random Fourier features, projected on their leading directions",
}
COLUMN_SKETCHES = ("gaussian", "sub-gaussian", "ros", "countsketch")
SMALLEST_SAMPLE_ROWS = 10_000  # fewer than k-means keeps: each costs its kernel values twice
LARGEST_AUTO_RANK = 256
COLUMNS_PER_DIRECTION = 8
LARGEST_AUTO_LANDMARKS = 2048
MOST_EVALUATIONS = 1 << 32  # of the kernel, where all rows meet all rows: some minutes


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is decided for a kernel fit.

    Attributes
    ----------
    n_landmarks : int
        Columns of the sketch, c.
    rank : int
        Features, m.
    """

    n_landmarks: int
    rank: int


def kernel_sizes(n_clusters: int, n_landmarks: int | str, rank: int | str, eps: float, n_rows: int | None) -> Sizes:
    """Sizes that "auto" means.

    The rank is k / eps (Wang, Gittens and Mahoney, JMLR 20, 2019, theorem 1: cost within 1 + eps, up to lower order),
    at most 256; landmarks are 8 times as many, or the root of n (Yin, Liu and Wang, NeurIPS 2022: Omega(sqrt(n)) keeps
    the rate of exact kernel k-means), at most 2,048. Never more than rows.
    """
    most = n_rows or np.iinfo(np.int64).max
    wanted = min(LARGEST_AUTO_RANK, int(np.ceil(n_clusters / eps))) if rank == "auto" else int(rank)
    if n_landmarks == "auto":
        root = int(np.ceil(np.sqrt(n_rows or 0)))
        columns = max(wanted, min(LARGEST_AUTO_LANDMARKS, max(COLUMNS_PER_DIRECTION * wanted, root)))
    else:
        columns = int(n_landmarks)
    columns = min(columns, most)
    return Sizes(columns, min(wanted, columns))


def plan_kernel_fit(
    source: RowSource,
    *,
    n_clusters: int,
    method: str,
    sizes: Sizes,
    stream: bool,
    chunk_bytes: int | str,
    memory_limit: Any,
    weighted: bool,
) -> Plan:
    """Decide how a kernel fit will go, from what is known without reading.

    Parameters
    ----------
    stream : bool
        Whether projection and clustering see all rows, not the row sample: 4 passes instead of 2.

    Raises
    ------
    InvalidInputError
        If the source cannot be walked as often as needed, or has too many rows for `method`.
    MemoryLimitError
        If the projected memory exceeds `memory_limit`; see `limits.memory_limit_bytes`.
    """
    n_rows, row_bytes = source.estimated_rows, decoded_row_bytes(source)
    decoded = None if n_rows is None else n_rows * row_bytes
    size = chunk_size(decoded) if chunk_bytes == "auto" else int(chunk_bytes)
    sample_rows = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    sample_rows = max(n_clusters, sizes.n_landmarks, min(sample_rows, SAMPLE_BYTES // max(1, row_bytes)))
    columns, rank = sizes.n_landmarks, sizes.rank
    held = columns
    if method in COLUMN_SKETCHES:
        if n_rows is not None and n_rows**2 > MOST_EVALUATIONS:
            raise InvalidInputError(
                f"method={method!r} evaluates the kernel at all {n_rows:,}^2 pairs of rows; at most "
                f'{MOST_EVALUATIONS:,} are done ({int(MOST_EVALUATIONS**0.5):,} rows): use method="nystroem"'
            )
        held = n_rows or int(MOST_EVALUATIONS**0.5)
        sample_rows = max(sample_rows, held)
    width = source.n_features or 0
    landmark_bytes = held * (8 * row_bytes // max(1, source.dtype.itemsize) if source.is_sparse else 8 * width)
    memory = {"chunks": 4 * size, "landmarks": landmark_bytes + 4 * held * (rank + columns)}
    memory["products of columns"] = 8 * 4 * columns**2
    if n_rows is not None:
        memory["blocks"] = (n_rows if stream else min(n_rows, sample_rows)) * (8 + 4 * rank)
        memory["row sample"] = 2 * min(n_rows, sample_rows) * row_bytes
        memory["labels"] = 4 * n_rows
    base = max(LIBRARY_BYTES, resident_bytes() + LOADING_BYTES)
    limit = memory_limit_bytes(memory_limit)
    counts_first = weighted and source.n_rows is None and isinstance(source, ChunkedSource)
    plan = Plan(
        source=source.name,
        n_rows=n_rows,
        n_features=source.n_features,
        stored_bytes=source.n_bytes,
        passes=(4 if stream else 2) + counts_first,
        counts_first=counts_first,
        chunk_bytes=size,
        n_chunks=len(source.chunks(size)) if isinstance(source, ChunkedSource) else None,
        sketch=method,
        n_components=rank,
        why_sketch=f"{METHODS[method]}; {columns:,} columns",
        regime="blocks" if stream else "sample",
        why_regime="on the features of all rows" if stream else "on the features of the row sample",
        coreset="uniform",
        sample_rows=sample_rows,
        assign_space="sketch",
        memory={"fit": base + sum(memory.values())},
        limit_bytes=limit,
        base_bytes=base,
        needs=None,
    )
    if not source.replayable:
        raise InvalidInputError(
            f"{source.name} can be walked once only and a fit needs {plan.passes} passes; "
            "pass a list of chunks, or a function that returns a fresh iterator"
        )
    if plan.peak_bytes > limit:
        parts = ", ".join(f"{name} {human_bytes(part)}" for name, part in memory.items())
        raise MemoryLimitError(
            f"the fit of {source.name} needs about {human_bytes(plan.peak_bytes)} ({parts}), above the limit of "
            f'{human_bytes(limit)}; raise memory_limit, or use fewer n_landmarks, a smaller rank, or fit_on="sample"'
        )
    return plan
