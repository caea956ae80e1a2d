"""Calls on a Dask cluster: handles of their results, the encoding of items, and the functions that workers run.

BLAS has one thread during a call, Dask learns the size of results, and errors of files name the worker.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import reduce
from operator import getitem
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import scipy.sparse as sp
from dask.sizeof import sizeof

from streamkm.core.exceptions import OutputError, SourceError, SourceNotFoundError
from streamkm.core.process import ONE_BLAS_THREAD
from streamkm.engine.reduction import fold_shard, joiner, runs_of


class Call:
    """A call on the cluster; its result, after `handles` if given, is fetched or stays there as a future."""

    def __init__(self, cluster: Any, future: Any, *others: Any, handles: Any = None, fetch: bool = True):
        self._cluster, self._futures, self._handles, self._fetch = cluster, (future, *others), handles, fetch

    def result(self) -> Any:
        result = self._cluster.finish(self._futures[0], fetch=self._fetch)
        return result if self._handles is None else (*self._handles, result)

    def cancel(self) -> None:
        for future in self._futures:
            with suppress(OSError, RuntimeError):  # the scheduler is gone, and the call with it
                future.release()


class Held:
    """A value in the result of a future, at the indices `path`: a held block, or the state of some runs."""

    __slots__ = ("future", "path")

    def __init__(self, future: Any, *path: int):
        self.future, self.path = future, path


def held_blocks(run: list[Any]) -> list[Held]:
    """The held blocks of a run, without the values beside them; empty if its items are something else."""
    blocks = [item[0] if isinstance(item, list) and item else item for item in run]
    return blocks if all(isinstance(block, Held) for block in blocks) else []


def future_of(run: list[Any]) -> Any:
    """The future whose result has all held blocks of a run, or None."""
    held = held_blocks(run)
    return held[0].future if len({id(block.future) for block in held}) == 1 else None


def parts_by_call(handles: Iterable[Held], rows: Iterable[int]) -> list[tuple[tuple[list[Any], bytes], int]]:
    """The arguments of `concatenated` and the total of `rows` for each future with some of the arrays, in order."""
    parts = []
    for _, group in itertools.groupby(zip(handles, rows, strict=True), lambda pair: id(pair[0].future)):
        pairs = list(group)
        packed, futures = encode([handle for handle, _ in pairs])
        parts.append(((futures, packed), sum(int(n_rows) for _, n_rows in pairs)))
    return parts


def encode(items: Any) -> tuple[bytes, list[Any]]:
    """Items packed in a few bytes each, as the scheduler keeps them; and the futures that Dask must see."""
    file = io.BytesIO()
    pickler = _ItemPickler(file)
    pickler.dump(items)
    return zlib.compress(file.getvalue(), 1), pickler.futures


class _ItemPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles items with the number of a future, and indices in its result, in place of a held value."""

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


def decoded(packed: bytes, results: list[Any]) -> Any:
    """The items that `encode` has packed, with results in place of futures."""
    return _ItemUnpickler(packed, results).load()


class _ItemUnpickler(pickle.Unpickler):
    """Replaces numbers of futures and indices by the values in their results."""

    def __init__(self, packed: bytes, results: list[Any]):
        super().__init__(io.BytesIO(zlib.decompress(packed)))
        self._results = results

    def persistent_load(self, place: Any) -> Any:
        number, path = place
        return reduce(getitem, path, self._results[number])


def unpacked(packed: bytes) -> Any:
    """A value that was shared."""
    return measurable(cloudpickle.loads(packed))


def work(function: Callable[..., Any], packed: bytes, results: list[Any], *shared: Any) -> list[Any]:
    """Call the function for each of some items; see `Executor.map`."""
    with _on_worker():
        return [function(item, *shared) for item in decoded(packed, results)]


def keep(
    function: Callable[..., tuple[Any, Any]], join: Callable[..., Any] | None, infos: Any, item: Any, *shared: Any
) -> tuple[list[Any], Any]:
    """The step of a shard with held results: returns the infos so far, joined if there is a `join`, and the result."""
    large, info = function(item, *shared)
    infos = [*(infos or ()), info]
    return infos if join is None else [joiner(join, shared)(infos)], large


def work_on_shard(
    first: int,
    lengths: list[int],
    step: Callable[..., Any],
    join: Callable[..., Any] | None,
    with_outputs: bool,
    packed: bytes,
    results: list[Any],
    *shared: Any,
) -> tuple[list[Any], list[Any]]:
    """Carry a state over each run of a shard, from run `first` on; see `Executor.fold`.

    Returns states of subtrees, and outputs or an empty list. `lengths`: items in each run. `join`: None for one run.
    """
    with _on_worker():
        runs = list(runs_of(decoded(packed, results), lengths))
        states, outputs = fold_shard(runs, first, step, joiner(join, shared) if join else list, *shared)
    return measurable(states), measurable(outputs) if with_outputs else []


def join_states(join: Callable[..., Any], packed: bytes, results: list[Any], *shared: Any) -> Any:
    """Join states that calls have left; none is changed, as other calls may join them again."""
    first, *others = decoded(packed, results)
    return measurable(joiner(join, shared)([deepcopy(first), *others]))


def part(both: tuple[Any, Any], which: int) -> Any:
    """One of the two results of a call."""
    return both[which]


def concatenated(results: list[Any], packed: bytes) -> Any:
    """Arrays in the results of calls, joined."""
    return np.concatenate(decoded(packed, results))


def measurable(value: Any) -> Any:
    """Tell Dask the size of a value, by which it places, moves and spills; it counts unknown classes as 50 bytes."""
    for piece in value if isinstance(value, list | tuple) else (value,):
        if (is_dataclass(piece) or sp.issparse(piece)) and type(piece) not in _MEASURED:
            _MEASURED.add(type(piece))
            sizeof.register(type(piece), _bytes_of)
        if isinstance(piece, list | tuple):
            measurable(piece)
    return value


def _bytes_of(value: Any) -> int:
    """Bytes of all arrays of a value."""
    if is_dataclass(value):
        return sum(_bytes_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    if sp.issparse(value):
        return sum(int(getattr(value, name).nbytes) for name in ("data", "indices", "indptr") if hasattr(value, name))
    return int(sizeof(value))


_MEASURED: set[type] = set()


@contextmanager
def _on_worker() -> Iterator[None]:
    """Run a call with one BLAS thread; errors of reading and writing name this worker."""
    from distributed import get_worker

    try:
        with ONE_BLAS_THREAD:
            yield
    except OutputError as error:
        raise type(error)(f"{error}, seen from worker {get_worker().address}") from error
    except (SourceError, FileNotFoundError, PermissionError) as error:
        causes = (error, error.__cause__)
        missing = any(isinstance(each, FileNotFoundError) for each in causes)
        seen = f"{error}, seen from worker {get_worker().address}"
        # what has a URL is at the same place for everybody: objects change there, and credentials are refused
        if "://" not in str(error):
            seen = f"{seen} in {os.getcwd()}"
            if missing or any(isinstance(each, PermissionError) for each in causes):
                seen = f"{seen}; every worker must see the data under the same path"
        raise (SourceNotFoundError if missing else SourceError)(seen) from error
