"""Runs passes on threads of this process or on a Dask cluster, with the same bits on both.

`passes` has the loop over rows, `open` chooses an executor, `reduction` fixes the order of sums, and `records` writes
states to checkpoints. Nothing here knows centers.
"""

from streamkm.engine.base import Executor, Folded, Large, Listener
from streamkm.engine.open import (
    ClusterSettings,
    cluster_memory,
    is_alone,
    is_on_cluster,
    local_executor,
    local_threads,
    open_cluster,
    open_executor,
    under_limit,
)

__all__ = [
    "ClusterSettings",
    "Executor",
    "Folded",
    "Large",
    "Listener",
    "cluster_memory",
    "is_alone",
    "is_on_cluster",
    "local_executor",
    "local_threads",
    "open_cluster",
    "open_executor",
    "under_limit",
]
