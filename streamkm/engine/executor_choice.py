"""The choice of an executor: threads of this process, or a Dask cluster that the caller has started."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from numbers import Integral
from typing import Any

from streamkm.core.exceptions import ClusterError, InvalidParameterError
from streamkm.core.memory import heap_restored, is_given
from streamkm.core.process import ONE_BLAS_THREAD
from streamkm.engine.dask_workers import WorkerMemory, worker_memory
from streamkm.engine.executor import Executor, LocalThreads
from streamkm.kernels.centers.pruned import nearest_pruned
from streamkm.kernels.compiling import compile_elsewhere
from streamkm.sources.row_source import RowSource

CONNECT_SECONDS = 10

logger = logging.getLogger(__name__)


@contextmanager
def open_executor(executor: Any = "auto", most_threads: int | None = None) -> Iterator[Executor]:
    """Yield the executor that a parameter names; BLAS has one thread while blocks run in parallel.

    `executor`: a number of threads, a `distributed.Client`, or "auto": the active client if there is one, else threads,
    as many as Dask's setting ``num_workers`` or the processors allow, at most `most_threads`. In a task of a Dask
    worker "auto" is one thread; with a client, the task leaves its worker's thread to calls that it would otherwise
    block. Raises InvalidParameterError for other values, and for a client that is closed or asynchronous.
    """
    client = _client_of(executor)
    with ONE_BLAS_THREAD:
        if client is not None:
            from distributed import worker_client

            from streamkm.engine.dask import DaskCluster

            _check_client(client)
            with worker_client() if _in_task() else nullcontext():
                cluster = DaskCluster(client)
                try:
                    yield cluster
                except BaseException:  # its calls are canceled, and its blocks released
                    cluster.cancel()
                    raise
            return
        n_threads = _thread_count() if executor == "auto" else executor
        if isinstance(n_threads, bool) or not isinstance(n_threads, Integral) or int(n_threads) < 1:
            raise InvalidParameterError(
                f'executor={executor!r}; needed: "auto", a number of threads from 1, or a dask.distributed Client'
            )
        n_threads = min(int(n_threads), most_threads or int(n_threads))
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="streamkm")
        try:
            yield (_ThreadsInTask if _in_task() else LocalThreads)(pool, int(n_threads))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def alone(executor: Executor, stage: str, function: Callable[..., Any], handles: Iterable[Any] = ()) -> Any:
    """``function(threads, values)`` on one worker of a cluster, with all its threads and the values of the handles."""
    return executor.each(stage, _on_all_threads, [list(handles)], executor.share(function))[0]


def _on_all_threads(values: list[Any], function: Callable[..., Any]) -> Any:
    from distributed import get_worker

    with open_executor(get_worker().state.nthreads) as threads:
        return function(threads, values)


class _ThreadsInTask(LocalThreads):
    """Threads of a Dask worker's process, started by a task of it."""

    def items(self, source: RowSource, target_bytes: int) -> Iterator[tuple[Any, int | None]]:
        """See `Executor.items`; the task leaves its thread to the cluster while it waits for values of a Dask array."""
        futures = source.computed.graphs().futures if source.computed else {}
        if futures:
            from distributed import wait, worker_client

            with worker_client() as client:
                # futures that came with the task belong to no client, and would never hear that they are done
                keys = list({future.key for future in futures.values()})
                own = dict(zip(keys, client.get({}, keys, sync=False), strict=True))
                futures.update({name: own[future.key] for name, future in futures.items()})
                wait(list(own.values()))
        yield from super().items(source, target_bytes)


def _check_client(client: Any) -> None:
    """Raise InvalidParameterError for a client that is closed or asynchronous."""
    if client.asynchronous:
        raise InvalidParameterError(
            "the Dask client's calls must be awaited (asynchronous=True); fit in a thread of its own "
            "(asyncio.to_thread), or pass executor= a client without asynchronous=True or a number of threads"
        )
    if client.status != "running":
        raise InvalidParameterError(
            f"the Dask client is {client.status}; pass executor= a client that is connected, or a number of threads"
        )


@contextmanager
def open_cluster(scheduler: str | None) -> Iterator[Any]:
    """Yield a client of the scheduler at an address, if any; ``executor="auto"`` finds it. Raises ClusterError.

    Certificates for a ``tls://`` address stand in Dask's configuration.
    """
    if scheduler is None:
        yield None
        return
    from distributed import Client

    try:
        client = Client(scheduler, set_as_default=False, timeout=CONNECT_SECONDS)
    except OSError as error:
        raise ClusterError(
            f"scheduler {scheduler} cannot be reached within {CONNECT_SECONDS} s ({error}); see that it runs, and that "
            f"address and certificates are its own"
        ) from error
    with client, client.as_current():
        logger.info("cluster: %s, %d workers", scheduler, len(client.nthreads()))
        yield client


@contextmanager
def local_executor(executor: Executor) -> Iterator[Executor]:
    """Threads of this process for work on sampled rows, for any `executor`; inside `open_executor`."""
    if isinstance(executor, LocalThreads):
        yield executor
        return
    with open_executor(_thread_count()) as here:
        yield here


def local_threads(executor: Any = "auto") -> int:
    """Threads of this process that `open_executor` would start for work on rows; 1 for a Dask cluster."""
    if executor == "auto" and not is_on_cluster():
        return _thread_count()
    return max(1, executor) if isinstance(executor, int) else 1


def is_on_cluster(executor: Any = "auto") -> bool:
    """Whether `open_executor` would give a Dask cluster."""
    return _client_of(executor) is not None


def cluster_memory(executor: Any = "auto") -> tuple[WorkerMemory, ...]:
    """The memory of the workers of the Dask cluster that `open_executor` would give; empty for threads.

    Raises InvalidParameterError for a client that cannot work, and ClusterError if the scheduler does not answer.
    """
    client = _client_of(executor)
    if client is None:
        return ()
    _check_client(client)
    return worker_memory(client)


def is_alone(executor: Any = "auto") -> bool:
    """Whether `open_executor` would give threads, outside of tasks of a Dask worker."""
    return not is_on_cluster(executor) and not _in_task()


def under_limit(memory_limit: Any) -> AbstractContextManager[None]:
    """Settings of the process for work under a limit; if one is given, another process compiles first."""
    if is_given(memory_limit):
        compile_elsewhere(nearest_pruned)  # which the last fit of `streamkm warm` calls
    return heap_restored


def _client_of(executor: Any) -> Any:
    """The Dask client that a parameter names, without importing distributed; None for threads.

    A worker's own client does not count: a task that used it would hold a thread that calls might need.
    """
    if executor != "auto":
        return executor if hasattr(executor, "submit") and hasattr(executor, "scatter") else None
    if "distributed" not in sys.modules or _in_task():
        return None
    from distributed import Client

    with suppress(ValueError):  # its way to say that there is none
        client = Client.current()
        return None if client.id.startswith("Client-worker-") else client
    return None


def _in_task() -> bool:
    """Whether this is a task of a Dask worker."""
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    with suppress(ValueError):  # its way to say that there is none
        return get_worker() is not None
    return False


def _thread_count() -> int:
    """One in a task of a Dask worker; else Dask's setting if Dask is imported, or the number of processors."""
    if _in_task():
        return 1
    import joblib

    dask = sys.modules.get("dask")
    setting = None if dask is None else dask.config.get("num_workers", None)
    return int(setting or joblib.cpu_count())
