"""What stands for a call on a cluster that was started, and for blocks that are held there."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from streamkm.engine import dask_tasks as calls


class Finishing(Protocol):
    """A cluster as a call that runs there needs it."""

    def finish(self, future: Any, *, fetch: bool) -> Any:
        """Wait for a call; give its result, or where it is."""


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
    """The large part of what a call gives stays a future, the small part is waited for."""

    def __init__(self, kept: Any, small: Call):
        self._kept, self._small = kept, small

    def result(self) -> tuple[Any, Any]:
        return self._kept, self._small.result()

    def cancel(self) -> None:
        Call(self._small._cluster, self._kept).cancel()
        self._small.cancel()


class Apart:
    """A state that is waited for, and outputs that stay as one future of several."""

    def __init__(self, state: Call, outputs: Any, n_outputs: int):
        self._state, self._outputs, self._n_outputs = state, outputs, n_outputs

    def result(self) -> tuple[Any, list[Held]]:
        return self._state.result(), [Held(self._outputs, index) for index in range(self._n_outputs)]

    def cancel(self) -> None:
        Call(self._state._cluster, self._outputs).cancel()
        self._state.cancel()


class Held:
    """A held block: a future of several, and which of them it is."""

    __slots__ = ("future", "index")

    def __init__(self, future: Any, index: int):
        self.future, self.index = future, index


def encode(item: Any) -> Any:
    """An item as calls get it: futures where Dask sees them; of a list, each of its items."""
    if isinstance(item, list):
        return [encode(each) for each in item]
    return (item.future, calls.Which(item.index)) if isinstance(item, Held) else item
