"""Where work runs: threads of this process, or a Dask cluster. The only module that chooses, and that starts clusters.

Whatever an executor runs gives bit-identical results on all of them; see `executors`. May import dask_cluster and below.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

from streamkm.errors import InvalidParameterError
from streamkm.executors import Executor, LocalThreads

__all__ = ["Executor", "local_executor", "open_executor"]

logger = logging.getLogger(__name__)


@contextmanager
def open_executor(executor: Any = "auto") -> Iterator[Executor]:
    """Give the executor that a parameter names, BLAS held to one thread while blocks run in parallel.

    Parameters
    ----------
    executor : "auto", int, or distributed.Client
        "auto": the active Dask client if there is one, else threads of this process: as many as Dask's setting
        ``num_workers`` says, if there is one, or as this process may use processors. An int: so many threads.

    Raises
    ------
    InvalidParameterError
        For anything else.
    """
    client = _active_client() if executor == "auto" else executor
    with threadpool_limits(1, user_api="blas"):
        if client is not None and hasattr(client, "submit") and hasattr(client, "scatter"):
            from streamkm.dask_cluster import DaskCluster

            cluster = DaskCluster(client)
            try:
                yield cluster
            except BaseException:
                cluster.cancel()
                raise
            return
        n_threads = _thread_count() if executor == "auto" else executor
        if not isinstance(n_threads, int) or isinstance(n_threads, bool) or n_threads < 1:
            raise InvalidParameterError(
                f'executor={executor!r}; needed: "auto", a number of threads from 1, or a dask.distributed Client'
            )
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="streamkm")
        try:
            yield LocalThreads(pool, n_threads)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def local_executor(executor: Executor) -> Iterator[Executor]:
    """Threads of this process for work on sampled rows, whatever `executor` is; inside `open_executor`."""
    if isinstance(executor, LocalThreads):
        yield executor
        return
    with open_executor(_thread_count()) as here:
        yield here


def _active_client() -> Any:
    """The Dask client of this process, without importing distributed where nobody did."""
    import sys

    if "distributed" not in sys.modules:
        return None
    from distributed import get_client

    try:
        return get_client()
    except ValueError:  # its way to say that there is none
        return None


def _thread_count() -> int:
    """Dask's setting where somebody imported Dask, else the processors that this process may use."""
    import sys

    import joblib

    dask = sys.modules.get("dask")
    setting = None if dask is None else dask.config.get("num_workers", None)
    return int(setting or joblib.cpu_count())
