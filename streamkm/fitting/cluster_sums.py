"""Sums of rows by cluster, in one pass, within a memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import sklearn
from numpy.typing import NDArray
from sklearn.neighbors import kneighbors_graph

from streamkm.cluster.totals import Totals
from streamkm.core.exceptions import InvalidInputError, MemoryLimitError
from streamkm.core.memory import human_bytes, memory_limit_bytes, trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import is_on_cluster, local_threads, open_executor, under_limit
from streamkm.engine.memory import MIB
from streamkm.passes.cluster_sums import ClusterSums
from streamkm.passes.context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.planning.memory_budget import MemoryBudget, largest_chunk, reading_of
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes

STAGE = "sums"
NEIGHBOURS = 15  # of a center: as many as graphs of cells usually have
WORKING_MIB = 16  # of distances between centers at a time


@dataclass(frozen=True, slots=True)
class SumsPlan:
    """How rows are read to be added up by cluster, and what that takes.

    Attributes
    ----------
    source : RowSource
        Of rows as they stand in the data.
    n_clusters : int
    chunk_bytes, n_threads : int
    peak_bytes : int
        Projected resident bytes.
    """

    source: RowSource
    n_clusters: int
    chunk_bytes: int
    n_threads: int
    peak_bytes: int

    @classmethod
    def of(cls, source: RowSource, n_clusters: int, *, memory_limit: Any = "auto", executor: Any = "auto") -> SumsPlan:
        """Plan within a limit; reads no rows.

        Raises InvalidInputError: rows whose number only reading can tell, or that can be read once. Raises
        MemoryLimitError: sums of so many clusters have no room.
        """
        n_rows, n_features = source.n_rows, source.n_features
        if n_rows is None or n_features is None or not source.replayable:
            raise InvalidInputError(
                f"{source.name} does not tell how many rows and features it has; sums by cluster need HDF5, Zarr, "
                f".npy, .npz or Parquet"
            )
        on_cluster = is_on_cluster(executor)
        budget = MemoryBudget.of(memory_limit, source, on_cluster=on_cluster)
        chunk_bytes = budget.chunk_bytes(source, "auto", decoded_row_bytes(source))
        largest, n_chunks = largest_chunk(source, chunk_bytes), len(source.chunks(chunk_bytes))

        def peak(n_threads: int) -> int:
            reading = reading_of(source, n_threads, largest, n_chunks=n_chunks, on_cluster=on_cluster)
            return budget.base_bytes + reading.peak(ClusterSums.memory(n_rows, n_clusters, n_features, reading))

        needed = peak(1)
        if needed > budget.now_bytes:
            raise MemoryLimitError(
                f"sums of {n_clusters:,} clusters with {n_features:,} features need about {human_bytes(needed)}, above "
                f"the limit of {human_bytes(budget.now_bytes)}; raise memory_limit to {-(-needed // MIB):,} MiB, or "
                f"make fewer clusters"
            )
        n_threads = budget.threads(local_threads(executor), peak)
        return cls(source, n_clusters, chunk_bytes, n_threads, peak(n_threads))


def sum_clusters(
    plan: SumsPlan,
    labels: NDArray[np.int32],
    *,
    memory_limit: Any = "auto",
    executor: Any = "auto",
    progress: Progress | None = None,
) -> Totals:
    """Add up the rows of each cluster in float64, in one pass; the same bits for any number of threads and workers.

    `labels` (n,): of all rows, -1 for those that are left out. Raises InvalidInputError: not as many labels as rows.
    """
    source = plan.source
    if len(labels) != source.n_rows:
        raise InvalidInputError(f"{len(labels):,} labels for {source.name}, which has {source.n_rows:,} rows")
    assert source.n_features is not None  # as the plan saw to
    reader = RowReader(source, plan.chunk_bytes, "euclidean", "skip")  # of invalid rows, labels are -1
    sums = ClusterSums(np.ascontiguousarray(labels, np.int32), plan.n_clusters, source.n_features)
    stages = Progress() if progress is None else progress
    with (
        under_limit(memory_limit),
        open_executor(executor, plan.n_threads) as workers,
        stages.stage(STAGE, source.n_chunks(plan.chunk_bytes)) as stage,
    ):
        trim_heap(memory_limit_bytes(memory_limit))
        return PassContext(executor=workers, reader=reader).run(sums, stage)


def nearest_centers(centers: NDArray[Any], n_clusters: int) -> sp.csr_array:
    """Distances from each center to the nearest others (k, k); none of clusters that were not found."""
    n_found = len(centers)
    found = sp.csr_array((n_clusters, n_clusters))
    if n_found > 1:
        with sklearn.config_context(working_memory=WORKING_MIB):
            found = sp.csr_array(kneighbors_graph(centers, min(NEIGHBOURS, n_found - 1), mode="distance"))
        found.resize((n_clusters, n_clusters))
        found.sort_indices()
    return found
