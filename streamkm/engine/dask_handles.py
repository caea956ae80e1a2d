"""Handles of calls that were started on a cluster, and of blocks that workers hold."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from streamkm.engine import dask_tasks as calls


class Finishing(Protocol):
    """The interface of the executor that handles need."""

    def finish(self, future: Any, *, fetch: bool) -> Any:
        """Wait for a call; return its result or its handle."""


class Call:
    """A call on the cluster, to be waited for; its result is fetched, or stays there as a future."""

    def __init__(self, cluster: Finishing, future: Any, *, fetch: bool = True):
        self._cluster, self._future, self._fetch = cluster, future, fetch

    def result(self) -> Any:
        return self._cluster.finish(self._future, fetch=self._fetch)

    def cancel(self) -> None:
        with suppress(OSError, RuntimeError):  # the scheduler is gone, and the call with it
            self._future.release()


class Pair:
    """A call, and handles of what it and others leave on the cluster."""

    def __init__(self, call: Call, handles: Any, *futures: Any):
        self._call, self._handles, self._futures = call, handles, futures

    def result(self) -> tuple[Any, Any]:
        result = self._call.result()
        return self._handles, result

    def cancel(self) -> None:
        for future in self._futures:
            with suppress(OSError, RuntimeError):
                future.release()
        self._call.cancel()


class Held:
    """A value in the result of a future: a held block, or the state of some runs.

    `path` has the indices that lead to it.
    """

    __slots__ = ("future", "path")

    def __init__(self, future: Any, *path: int):
        self.future, self.path = future, path


def encode(items: Any) -> tuple[calls.Packed, list[Any]]:
    """Items as calls get them, and the futures among them, which Dask is to see."""
    numbers: dict[int, int] = {}
    futures: list[Any] = []

    def which(future: Any, path: tuple[int, ...]) -> calls.Which:
        if id(future) not in numbers:
            numbers[id(future)] = len(futures)
            futures.append(future)
        return calls.Which(numbers[id(future)], path)

    def packed(item: Any) -> Any:
        if isinstance(item, Held):
            return which(item.future, item.path)
        if type(item) in (list, tuple):
            return type(item)(map(packed, item))
        return which(item, ()) if hasattr(item, "key") and hasattr(item, "status") else item

    return calls.Packed(packed(items)), futures
