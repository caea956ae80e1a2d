"""The graph of a Dask array, cut once into row-blocks: the tasks of each, and those that several need.

Only Dask's protocol of collections is used (graph, keys, optimization), no class of arrays.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from dask.core import get_deps, toposort
from dask.local import get_sync
from dask.sizeof import sizeof
from dask.typing import Key

KEPT_BYTES = 16 << 20  # of what several row-blocks need and this process keeps, such as means of all rows
_SEVERAL = -1  # in place of a row-block's number


@dataclass(frozen=True, slots=True)
class RowGraph:
    """The tasks of one row-block."""

    tasks: dict[Key, Any]  # that no other row-block needs
    inputs: list[Key]  # keys of what they need beside
    columns: list[Key]  # keys of the column blocks

    def compute(self, inputs: Iterable[Any]) -> list[Any]:
        """Run the tasks in this thread on the values of `inputs`; give the column blocks."""
        return run_tasks(self.tasks, self.columns, dict(zip(self.inputs, inputs, strict=True)))


class RowGraphs:
    """The optimized graph of a two-dimensional Dask array, cut into row-blocks.

    The keys of `array` are a list of row-blocks, each a list of column blocks. `futures`: results on a cluster, by key.
    """

    def __init__(self, array: Any) -> None:
        whole, self._rows = array.__dask_graph__(), array.__dask_keys__()
        self.futures: dict[Key, Any] = {}
        for layer in getattr(whole, "layers", {"": whole}).values():
            if getattr(layer, "is_materialized", bool)():  # others are rules how to make tasks
                for key, task in layer.items():
                    if hasattr(task, "client") and hasattr(task, "result"):
                        self.futures[key] = self.futures[task.key] = task
        optimized = dict(array.__dask_optimize__(whole, self._rows))
        self._tasks: dict[Key, Any] = {**optimized, **dict.fromkeys(self.futures)}
        self._needs, _ = get_deps(self._tasks)
        self._owners = self._find_owners()
        self._lock, self._locks = threading.Lock(), dict[Key, threading.Lock]()
        self._kept, self._kept_bytes = OrderedDict[Key, tuple[Any, int]](), 0  # least recently used first

    @cached_property
    def n_users(self) -> Counter[Key]:
        """The number of row-blocks that need each shared value."""
        return Counter(key for number in range(len(self._rows)) for key in self.row(number).inputs)

    def row(self, number: int) -> RowGraph:
        """Give the tasks of a row-block; O(its tasks)."""
        columns = list(self._rows[number])
        tasks, inputs = self._below(columns, lambda key: key in self.futures or self._owners[key] == _SEVERAL)
        return RowGraph(tasks, inputs, columns)

    def of_several(self, keys: Iterable[Key], known: Container[Key] = ()) -> tuple[dict[Key, Any], list[Key]]:
        """Give the tasks of values that several row-blocks need, and keys of their inputs: futures, or in `known`."""
        return self._below(keys, lambda key: key in self.futures or key in known)

    def _below(self, keys: Iterable[Key], is_input: Callable[[Key], bool]) -> tuple[dict[Key, Any], list[Key]]:
        tasks: dict[Key, Any] = {}
        inputs: dict[Key, None] = {}
        todo = list(keys)
        while todo:
            key = todo.pop()
            if key in tasks or key in inputs:
                continue
            if is_input(key):
                inputs[key] = None
            else:
                tasks[key] = self._tasks[key]
                todo.extend(self._needs[key])
        return tasks, list(inputs)

    def _find_owners(self) -> dict[Key, int]:
        """The row-block of each task, or `_SEVERAL`; unneeded tasks are left out."""
        owners = {key: number for number, columns in enumerate(self._rows) for key in columns}
        for key in reversed(toposort(self._tasks, dependencies=self._needs)):
            if key in owners:
                for need in self._needs[key]:
                    if owners.setdefault(need, owners[key]) != owners[key]:
                        owners[need] = _SEVERAL
        return owners

    def values_here(self, keys: Iterable[Key]) -> list[Any]:
        """Values of inputs in this process: futures are fetched, small values computed once, others each time."""
        return [self.futures[key].result() if key in self.futures else self._computed(key) for key in keys]

    def _computed(self, key: Key) -> Any:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key][0]
            tasks, inputs = self.of_several([key])
            (value,) = run_tasks(tasks, [key], {each: self.futures[each].result() for each in inputs})
            n_bytes = int(sizeof(value))
            with self._lock:
                self._kept[key], self._kept_bytes = (value, n_bytes), self._kept_bytes + n_bytes
                while self._kept_bytes > KEPT_BYTES:
                    # one that is too large by itself pushes no other one out
                    _, (_, dropped) = self._kept.popitem(last=n_bytes > KEPT_BYTES)
                    self._kept_bytes -= dropped
            return value


def run_tasks(tasks: Mapping[Key, Any], keys: list[Key], given: Mapping[Key, Any]) -> list[Any]:
    """Run tasks in this thread on the values of their inputs; give the results of `keys`."""
    # a value by itself would be looked through for tasks and keys
    graph = {**tasks, **{key: (partial(same, value),) for key, value in given.items()}}
    return list(get_sync(graph, keys))


def same(value: Any) -> Any:
    """The value itself, as a task gives it."""
    return value
