"""Functions that run on the workers of a Dask cluster, and the conditions that they set there.

A call gets its items, and apart from them the results of futures. BLAS has one thread while it runs, and Dask learns
the size of its results. The error for a file that cannot be read names the worker. Knows nothing of the client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import starmap
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import scipy.sparse as sp
from dask.sizeof import sizeof

from streamkm.core.blas import ONE_BLAS_THREAD
from streamkm.core.exceptions import OutputError, SourceError, SourceNotFoundError
from streamkm.engine.base import Joining
from streamkm.engine.reduction import fold_shard, runs_of
from streamkm.sources.chunks import Chunk


@dataclass(frozen=True, slots=True)
class Which:
    """The place of a value in the results of a call's futures: the number of the future, and indices in its result."""

    number: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Values that follow each other in a list, which is in the results of a call's futures."""

    where: Which
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """A value that a column has in each of so many rows."""

    value: Any
    n_rows: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Lists, tuples or chunks of one length, by their columns: few objects on the scheduler, however many items."""

    columns: list[Any]
    of: type = list


@dataclass(frozen=True, slots=True)
class ShardFold:
    """What a call does with a shard: number of the first run, lengths of runs, step, joining, what is returned."""

    first: int
    lengths: list[int]
    step: Callable[..., tuple[Any, Any]]
    joining: Joining[Any]
    with_outputs: bool


@dataclass(frozen=True, slots=True)
class Packed:
    """Items of a call with a `Which` or a `Stretch` in place of futures; Dask does not look into it."""

    items: Any


def decoded(packed: Packed, results: list[Any]) -> Any:
    """The items with results in place of futures."""

    def value(item: Any) -> Any:
        if isinstance(item, Which):
            found = results[item.number]
            for index in item.path:
                found = found[index]
            return found
        if isinstance(item, Stretch):
            return list(value(item.where)[item.start : item.stop])
        if isinstance(item, Repeated):
            return [value(item.value)] * item.n_rows
        if isinstance(item, Columns):
            rows = zip(*map(value, item.columns), strict=True)
            return list(starmap(Chunk, rows) if item.of is Chunk else map(item.of, rows))
        return type(item)(map(value, item)) if type(item) in (list, tuple) else item

    return value(packed.items)


def unpacked(packed: bytes) -> Any:
    """A value that was shared."""
    return measurable(cloudpickle.loads(packed))


def work_once(function: Callable[[Any], Any], item: Any) -> Any:
    """Call the function; see `Executor.everywhere`."""
    with _on_worker():
        return function(item)


def work(function: Callable[..., Any], packed: Packed, results: list[Any], *shared: Any) -> list[Any]:
    """Call the function for each of some items; see `Executor.map`."""
    with _on_worker():
        return [function(item, *shared) for item in decoded(packed, results)]


def work_and_keep(
    function: Callable[..., tuple[Any, Any]],
    joining: Joining[Any] | None,
    packed: Packed,
    results: list[Any],
    *shared: Any,
) -> tuple[list[Any], list[Any]]:
    """Call the function for each of some items; return large results and infos, joined. See `Executor.hold`."""
    kept, infos = [], []
    with _on_worker():
        for item in decoded(packed, results):
            large, info = function(item, *shared)
            kept.append(large)
            infos.append(info)
            if joining is not None:
                infos = [joining.pairwise(*shared)(infos)]
    return measurable(kept), measurable(infos)


def work_on_shard(
    fold: ShardFold, packed: Packed, results: list[Any], *shared: Any
) -> list[Any] | tuple[list[Any], list[Any]]:
    """Carry a state over each run of a shard; return the states of subtrees and the outputs. See `Executor.fold`."""
    with _on_worker():
        runs = list(runs_of(decoded(packed, results), fold.lengths))
        states, outputs = fold_shard(runs, fold.first, fold.step, fold.joining.pairwise(*shared), *shared)
    return (measurable(states), outputs) if fold.with_outputs else measurable(states)


def join(joining: Joining[Any], packed: Packed, results: list[Any], *shared: Any) -> Any:
    """Join states that calls have left."""
    return measurable(joining.combine(decoded(packed, results), *shared))


def part(both: tuple[Any, Any], which: int) -> Any:
    """One of the two results of a call."""
    return both[which]


def concatenated(result: Any, packed: Packed) -> Any:
    """Arrays in the result of one call, joined."""
    return np.concatenate(decoded(packed, [result]))


def measurable(value: Any) -> Any:
    """Tell Dask the size of a value, by which it places calls and decides what to move and to spill.

    Dask counts an object of an unknown class as some fifty bytes; a block may have millions.
    """
    for piece in value if isinstance(value, list | tuple) else (value,):
        if (is_dataclass(piece) or sp.issparse(piece)) and type(piece) not in _MEASURED:
            _MEASURED.add(type(piece))
            sizeof.register(type(piece), _bytes_of)
        if isinstance(piece, tuple):
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
