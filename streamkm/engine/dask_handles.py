"""Handles of calls that were started on a cluster, and of blocks that workers hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import eq
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

    def __getitem__(self, index: int) -> Held:
        """A part of the value."""
        return Held(self.future, *self.path, index)

    __iter__ = None  # how many parts there are is not known here


def values_in(result: Any, handles: Iterable[Held]) -> Iterator[Any]:
    """The values of handles that lie in the result of one future."""
    for handle in handles:
        value = result
        for index in handle.path:
            value = value[index]
        yield value


def parts_by_call(handles: Iterable[Held], rows: Iterable[int]) -> list[tuple[tuple[Any, calls.Packed], int]]:
    """Arrays that workers hold, in order: for each future the arguments of `dask_tasks.concatenated`, and all rows.

    `rows`: of each held array.
    """
    parts = []
    for _, group in itertools.groupby(zip(handles, rows, strict=True), lambda pair: id(pair[0].future)):
        pairs = list(group)
        packed, (future,) = encode([handle for handle, _ in pairs])
        parts.append(((future, packed), sum(int(n_rows) for _, n_rows in pairs)))
    return parts


def encode(items: Any) -> tuple[calls.Packed, list[Any]]:
    """Items as calls get them, and the futures among them, which Dask is to see.

    Held values that follow each other in one result are packed in a few bytes, however many they are.
    """
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
        if type(item) is list:
            return in_columns(item) if _is_table(item) else stretch(item) or list(map(packed, item))
        if type(item) is tuple:
            return tuple(map(packed, item))
        return which(item, ()) if hasattr(item, "key") and hasattr(item, "status") else item

    def in_columns(rows: list[Any]) -> calls.Columns:
        columns = map(list, zip(*rows, strict=True))
        return calls.Columns([_as_range(column) or packed(column) for column in columns])

    def stretch(values: list[Any]) -> calls.Stretch | None:
        first = values[0] if values else None
        if not isinstance(first, Held) or not first.path:
            return None
        *before, start = first.path
        for index, value in enumerate(values, start):
            if not isinstance(value, Held) or value.future is not first.future or value.path != (*before, index):
                return None
        return calls.Stretch(which(first.future, tuple(before)), start, start + len(values))

    return calls.Packed(packed(items)), futures


def _is_table(values: list[Any]) -> bool:
    """Whether values are lists of one length, several."""
    lists = len(values) > 1 and all(type(value) is list for value in values)
    return lists and len(values[0]) > 0 and len({len(value) for value in values}) == 1


def _as_range(values: list[Any]) -> range | None:
    """Integers that rise by the same step, as a range; None for other values."""
    if any(type(value) is not int for value in values) or values[1] <= values[0]:
        return None
    steps = range(values[0], values[-1] + 1, values[1] - values[0])
    return steps if len(steps) == len(values) and all(map(eq, steps, values)) else None
