"""Handles of calls that were started on a cluster, and of blocks that workers hold."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from itertools import pairwise
from operator import attrgetter, eq
from typing import Any, overload

from streamkm.engine import dask_tasks as calls
from streamkm.sources.chunks import Chunk

FIELDS = attrgetter(*(field.name for field in fields(Chunk)))


class Call:
    """A call on the cluster, to be waited for; its result is fetched, or stays there as a future."""

    def __init__(self, cluster: Any, future: Any, *, fetch: bool = True):
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

    Held values that follow each other in one result are packed in a few bytes, however many they are. Chunks, and what
    travels beside each, are packed by columns: the scheduler keeps the arguments of a call as objects.
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
            of = _rows_of(item)
            return in_columns(item, of) if of is not None else stretch(item) or list(map(packed, item))
        if type(item) is tuple:
            return tuple(map(packed, item))
        return which(item, ()) if hasattr(item, "key") and hasattr(item, "status") else item

    def in_columns(rows: list[Any], of: type) -> calls.Columns:
        columns = map(list, zip(*(map(FIELDS, rows) if of is Chunk else rows), strict=True))
        return calls.Columns([*map(one_column, columns)], of)

    def one_column(values: list[Any]) -> Any:
        if _is_constant(values):
            return calls.Repeated(packed(values[0]), len(values))
        return _as_range(values) or _as_array(values) or packed(values)

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


def _rows_of(values: list[Any]) -> type | None:
    """The type of values that are packed by columns: several chunks, or lists or tuples of one length; else None.

    Of tuples only those that begin with a chunk: others are few, or hold graphs and futures.
    """
    of = type(values[0]) if len(values) > 1 else None
    if of not in (list, tuple, Chunk) or any(type(value) is not of for value in values):
        return None
    if of is Chunk:
        return of
    one_length = len(values[0]) > 0 and len({len(value) for value in values}) == 1
    return of if one_length and (of is list or all(type(value[0]) is Chunk for value in values)) else None


def _is_constant(values: list[Any]) -> bool:
    """Whether all values are the same object, or the same integer."""
    first = values[0]
    return all(value is first or (type(value) is type(first) is int and value == first) for value in values)


def _as_range(values: list[Any]) -> range | None:
    """Integers that rise by the same step, as a range; None for other values."""
    if any(type(value) is not int for value in values) or values[1] <= values[0]:
        return None
    steps = range(values[0], values[-1] + 1, values[1] - values[0])
    return steps if len(steps) == len(values) and all(map(eq, steps, values)) else None


def _as_array(values: list[Any]) -> array[int] | None:
    """Integers of 64 bits as an array; None for other values."""
    fit = all(type(value) is int and value.bit_length() < 64 for value in values)
    return array("q", values) if fit else None
