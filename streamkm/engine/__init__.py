"""Where calls run: threads of this process or a Dask cluster; the same results, bit for bit, on both.

`open` chooses and starts, `base` says what an executor does, `reduction` in which order sums are joined; Dask and
distributed come in here and in `sources.dask`. Nothing here knows what a sketch or a center is.
"""

from streamkm.engine.base import Executor, Folded, Joining, Large, Listener
from streamkm.engine.limited import under_limit
from streamkm.engine.open import (
    ClusterSettings,
    is_alone,
    is_on_cluster,
    local_executor,
    local_threads,
    open_cluster,
    open_executor,
)

__all__ = [
    "ClusterSettings",
    "Executor",
    "Folded",
    "Joining",
    "Large",
    "Listener",
    "is_alone",
    "is_on_cluster",
    "local_executor",
    "local_threads",
    "open_cluster",
    "open_executor",
    "under_limit",
]
