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
    """A call whose large result stays a future while its small result is fetched."""

    def __init__(self, kept: Any, small: Call):
        self._kept, self._small = kept, small

    def result(self) -> tuple[Any, Any]:
        return self._kept, self._small.result()

    def cancel(self) -> None:
        Call(self._small._cluster, self._kept).cancel()
        self._small.cancel()


class Apart:
    """A call whose state is fetched while its outputs stay together in one future."""

    def __init__(self, state: Call, outputs: Any, n_outputs: int):
        self._state, self._outputs, self._n_outputs = state, outputs, n_outputs

    def result(self) -> tuple[Any, list[Held]]:
        return self._state.result(), [Held(self._outputs, index) for index in range(self._n_outputs)]

    def cancel(self) -> None:
        Call(self._state._cluster, self._outputs).cancel()
        self._state.cancel()


class Held:
    """A held block: the future of several blocks, and the number of this one."""

    __slots__ = ("future", "index")

    def __init__(self, future: Any, index: int):
        self.future, self.index = future, index


def encode(item: Any) -> Any:
    """An item as calls get it: futures where Dask sees them; of a list, each of its items."""
    if isinstance(item, list):
        return [encode(each) for each in item]
    return (item.future, calls.Which(item.index)) if isinstance(item, Held) else item
