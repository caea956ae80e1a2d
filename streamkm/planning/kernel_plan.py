"""What a kernel fit will do, decided before the first read: sizes, passes, bytes.

Reads no rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidInputError
from streamkm.planning.kernel_memory import KernelNeeds
from streamkm.planning.plan import (
    SAMPLE_ROWS_PER_CLUSTER,
    Allowance,
    Plan,
    Sizes,
    checked,
    decoded_row_bytes,
    smaller_sizes,
)
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
LANDMARKS = ("uniform", "leverage", "kmeans")
POOL_ROWS = 20_000  # of the sample, that landmarks are chosen from
SMALLEST_SAMPLE_ROWS = 10_000  # fewer than k-means keeps: each costs its kernel values twice
LARGEST_AUTO_RANK = 256
COLUMNS_PER_DIRECTION = 8
LARGEST_AUTO_LANDMARKS = 2048
MOST_EVALUATIONS = 1 << 32  # of the kernel, where all rows meet all rows: some minutes


@dataclass(frozen=True, slots=True)
class KernelSizes:
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


def kernel_sizes(
    n_clusters: int, n_landmarks: int | str, rank: int | str, eps: float, n_rows: int | None
) -> KernelSizes:
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
    return KernelSizes(columns, min(wanted, columns))


def plan_kernel_fit(
    source: RowSource,
    *,
    n_clusters: int,
    method: str,
    how: str,
    sizes: KernelSizes,
    all_rows: bool,
    chunk_bytes: int | str,
    memory_limit: Any,
    n_threads: int,
    weighted: bool,
) -> Plan:
    """Decide how a kernel fit will go, from what is known without reading.

    Parameters
    ----------
    how : one of `LANDMARKS`
    all_rows : bool
        Whether projection and clustering see all rows, not the row sample: 4 passes instead of 2.
    n_threads : int
        Threads of this process that will read.

    Raises
    ------
    InvalidInputError
        If the source cannot be walked as often as needed, or has too many rows for `method`.
    MemoryLimitError
        If the projected memory exceeds `memory_limit`; see `core.memory.memory_limit_bytes`.
    """
    n_rows, row_bytes = source.estimated_rows, decoded_row_bytes(source)
    allowance = Allowance.of(memory_limit, source)
    size = allowance.chunk_bytes(source, chunk_bytes, row_bytes, n_threads)
    columns, rank = sizes.n_landmarks, sizes.rank
    wanted = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    sample_rows = max(n_clusters, columns, min(wanted, allowance.most_sampled(row_bytes)))
    held = 0 if method.endswith("fourier") else columns
    if method in COLUMN_SKETCHES:
        if n_rows is not None and n_rows**2 > MOST_EVALUATIONS:
            raise InvalidInputError(
                f"method={method!r} evaluates the kernel at all {n_rows:,}^2 pairs of rows; at most "
                f'{MOST_EVALUATIONS:,} are done ({int(MOST_EVALUATIONS**0.5):,} rows): use method="nystroem"'
            )
        held = n_rows or int(MOST_EVALUATIONS**0.5)
        sample_rows = max(sample_rows, held)
    needs = KernelNeeds(
        n_rows=n_rows or sample_rows,
        sample_rows=sample_rows,
        n_clusters=n_clusters,
        n_features=0 if source.is_sparse else source.n_features or 0,
        n_threads=n_threads,
        n_columns=columns,
        n_held=held,
        rank=rank,
        row_bytes=row_bytes,
        landmark_bytes=_landmark_bytes(source, row_bytes),
        pool_rows=min(POOL_ROWS, sample_rows, n_rows or POOL_ROWS) if how == "kmeans" else 0,
        largest_chunk=0,
        read_factor=source.read_factor,
        made_bytes=source.made_bytes,
        all_rows=all_rows,
        streams=not isinstance(source, ChunkedSource),
    )
    for tried in smaller_sizes(Sizes(size, n_threads, sample_rows), chunk_bytes, sample_rows):
        size = tried.chunk_bytes  # of its own accord, a plan takes smaller chunks and fewer threads
        chunks = source.chunks(size) if isinstance(source, ChunkedSource) else ()
        largest = max((chunk.n_bytes for chunk in chunks), default=size)
        needs = replace(needs, largest_chunk=largest, n_threads=tried.n_threads)
        if max(needs.stages(allowance.base_bytes).values()) <= allowance.limit_bytes:
            break
    counts_first = weighted and source.n_rows is None and isinstance(source, ChunkedSource)
    plan = Plan(
        source=source.name,
        n_rows=n_rows,
        n_features=source.n_features,
        stored_bytes=source.n_bytes,
        passes=(4 if all_rows else 2) + counts_first,
        counts_first=counts_first,
        chunk_bytes=size,
        n_chunks=len(chunks) if isinstance(source, ChunkedSource) else None,
        sketch=method,
        n_components=rank,
        why_sketch=f"{METHODS[method]}; {columns:,} columns",
        regime="blocks" if all_rows else "sample",
        why_regime="on the features of all rows" if all_rows else "on the features of the row sample",
        coreset="uniform",
        sample_rows=sample_rows,
        assign_space="sketch",
        memory=needs.stages(allowance.base_bytes),
        limit_bytes=allowance.limit_bytes,
        base_bytes=allowance.base_bytes,
        needs=None,
        n_threads=needs.n_threads,
    )
    if not source.replayable:
        raise InvalidInputError(
            f"{source.name} can be walked once only and a fit needs {plan.passes} passes; "
            "pass a list of chunks, or a function that returns a fresh iterator"
        )
    remedy = 'or use fewer n_landmarks, a smaller rank, or fit_on="sample"'
    return checked(plan, remedy, needs.largest_chunk, allowance)


def _landmark_bytes(source: RowSource, row_bytes: int) -> int:
    """Bytes of a row as a landmark: as floats, twice as it is laid out for products; or entries and inverted lists."""
    if source.is_sparse:
        return 3 * row_bytes
    working = 4 if np.can_cast(source.dtype, np.float32) else 8
    return (working + 8) * (source.n_features or row_bytes // source.dtype.itemsize)
