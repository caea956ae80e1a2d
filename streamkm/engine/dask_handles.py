"""Handles of calls that were started on a cluster, and of blocks that workers hold."""

from __future__ import annotations

import io
import itertools
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import pairwise
from operator import getitem
from typing import Any, overload

import cloudpickle  # type: ignore[import-untyped]


class Call:
    """A call on the cluster, to be waited for; its result is fetched, or stays there as a future.

    `handles`: of what it leaves there, which come with its result. `others`: futures to release with its own.
    """

    def __init__(self, cluster: Any, future: Any, *others: Any, handles: Any = None, fetch: bool = True):
        self._cluster, self._futures, self._handles, self._fetch = cluster, (future, *others), handles, fetch

    def result(self) -> Any:
        result = self._cluster.finish(self._futures[0], fetch=self._fetch)
        return result if self._handles is None else (self._handles, result)

    def cancel(self) -> None:
        for future in self._futures:
            with suppress(OSError, RuntimeError):  # the scheduler is gone, and the call with it
                future.release()


class Held:
    """A value in the result of a future: a held block, or the state of some runs.

    `path` has the indices that lead to it.
    """

    __slots__ = ("future", "on_move", "path")

    def __init__(self, future: Any, *path: int):
        self.future, self.path = future, path
        self.on_move: Callable[[Held], None] | None = None

    def move(self, future: Any, *path: int) -> None:
        """Take note that the value is in the result of another future now."""
        self.future, self.path = future, path
        if self.on_move is not None:
            self.on_move(self)
            self.on_move = None  # this handle itself is kept from now on


class HeldParts(Sequence[Held]):
    """Handles of the first values in a list that is in the result of a future; made when they are asked for."""

    def __init__(self, future: Any, *path: int, count: int):
        self._future, self._path, self._count = future, path, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Held: ...

    @overload
    def __getitem__(self, index: slice) -> list[Held]: ...

    def __getitem__(self, index: int | slice) -> Held | list[Held]:
        found = range(self._count)[index]
        if isinstance(found, range):
            return [Held(self._future, *self._path, each) for each in found]
        return Held(self._future, *self._path, found)


class HeldValues(MutableSequence[Any]):
    """Handles in order. Those of values that follow each other in one result take no memory of their own."""

    def __init__(self) -> None:
        self._runs: list[Any] = []  # handles of the first value of each run
        self._starts: list[int] = []  # number of this value
        self._moved: dict[int, Held] = {}  # values that were moved since, by their numbers
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, index: int, value: Any) -> None:
        """Add a handle at the end."""
        if index != self._count:
            raise IndexError("handles are added at the end")
        if not self._runs or not self._follows(value):
            self._runs.append(value)
            self._starts.append(index)
        self._count += 1

    def _follows(self, value: Any) -> bool:
        last = self._runs[-1]
        if not (isinstance(value, Held) and isinstance(last, Held) and value.future is last.future and last.path):
            return False
        *before, first = last.path
        return value.path == (*before, first + self._count - self._starts[-1])

    def __getitem__(self, index: Any) -> Any:
        found = range(self._count)[index]
        if isinstance(found, range):
            return [self[each] for each in found]
        run = bisect_right(self._starts, found) - 1
        return self._in_run(run, found - self._starts[run])

    def _in_run(self, run: int, more: int) -> Any:
        first, number = self._runs[run], self._starts[run] + more
        if number in self._moved or not isinstance(first, Held):
            return self._moved.get(number, first)
        path = (*first.path[:-1], first.path[-1] + more) if more else first.path
        handle = Held(first.future, *path)
        handle.on_move = partial(self._moved.__setitem__, number)
        return handle

    def __iter__(self) -> Iterator[Any]:
        for run, (start, stop) in enumerate(pairwise((*self._starts, self._count))):
            for more in range(stop - start):
                yield self._in_run(run, more)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Refuse: handles stay."""
        raise TypeError("handles cannot be replaced")

    def __delitem__(self, index: Any) -> None:
        """Refuse: handles stay."""
        raise TypeError("handles cannot be removed")


def values_in(result: Any, handles: Iterable[Held]) -> Iterator[Any]:
    """The values of handles that lie in the result of one future."""
    return (reduce(getitem, handle.path, result) for handle in handles)


def parts_by_call(handles: Iterable[Held], rows: Iterable[int]) -> list[tuple[tuple[list[Any], bytes], int]]:
    """Arrays that workers hold, in order: for each future the arguments of `dask_tasks.concatenated`, and all rows.

    `rows`: of each held array.
    """
    parts = []
    for _, group in itertools.groupby(zip(handles, rows, strict=True), lambda pair: id(pair[0].future)):
        pairs = list(group)
        packed, futures = encode([handle for handle, _ in pairs])
        parts.append(((futures, packed), sum(int(n_rows) for _, n_rows in pairs)))
    return parts


def encode(items: Any) -> tuple[bytes, list[Any]]:
    """Items as calls get them, a few bytes each, as the scheduler keeps them; and the futures that Dask is to see."""
    file = io.BytesIO()
    pickler = _ItemPickler(file)
    pickler.dump(items)
    return zlib.compress(file.getvalue(), 1), pickler.futures


class _ItemPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles items with the number of a future, and indices in its result, in place of what lies there."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self.futures: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> tuple[int, tuple[int, ...]] | None:
        if isinstance(value, Held):
            future, path = value.future, value.path
        elif hasattr(value, "key") and hasattr(value, "status"):
            future, path = value, ()
        else:
            return None
        number = self._numbers.setdefault(id(future), len(self.futures))
        if number == len(self.futures):
            self.futures.append(future)
        return number, path
