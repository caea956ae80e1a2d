"""Runs passes on threads of this process or on a Dask cluster, with the same bits on both. Knows no centers."""

from streamkm.engine.executor import Executor, Folded, Large, Listener
from streamkm.engine.executor_choice import (
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
